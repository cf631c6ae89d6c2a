"""children.wit: inferlets that an inferlet launches."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ...config import InferletLimits
from ...errors import InvalidArgument, QuotaExceeded
from ...inferlets.relations.children import MOST_KEPT, Child
from ...texts import byte_size
from ..guest import Guest


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    """What a child may hold; None: as its parent."""

    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    max_pages: int | None = None
    max_embeds: int | None = None
    max_queues: int | None = None
    max_children: int | None = None


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of `launch`."""

    environment: dict[str, str] = {}
    limits: _Limits = msgspec.field(default_factory=_Limits)


def launch(guest: Guest, program: str, arguments: list[str], options: str) -> int:
    given, inferlet = _read(options), guest.inferlet
    limits = _narrowed(inferlet.limits, given.limits)
    size = sum(map(byte_size, (program, *arguments, *given.environment, *given.environment.values())))
    if size > limits.max_message_bytes:
        most = limits.max_message_bytes
        raise InvalidArgument(f"arguments and environment have {size} bytes, more than {most}: send them later")
    kept = sum(one.kept_bytes for one in guest.handles_of(Child))
    if kept > MOST_KEPT:
        why = f"{kept} bytes of results and messages of children that have ended wait"
        raise QuotaExceeded(f"{why}: receive the messages, or drop children first")
    guest.pending.check(0)
    child = inferlet.kin.ask(inferlet.waits, limits)
    try:
        handle = guest.add_handle(child, child.forget)
    except BaseException:
        inferlet.kin.refused(child.number, InvalidArgument("no handle"))
        raise
    guest.reach.nursery.launches(inferlet.number, child.number, program, arguments, given.environment)
    return handle


def _read(options: str) -> _Options:
    try:
        return msgspec.json.decode(options or "{}", type=_Options)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"options are a JSON object with environment and limits: {error}") from None


def _narrowed(limits: InferletLimits, given: _Limits) -> InferletLimits:
    """Raises InvalidArgument for one beyond that of the parent."""
    wanted = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None}
    for name, value in wanted.items():
        most = getattr(limits, name)
        if not 0 <= value <= most:
            raise InvalidArgument(f"limits: {name} is {value}; a child may have 0 to {most}, as its parent")
    return replace(limits, **wanted)


def join(guest: Guest, child: int) -> int:
    one = guest.handle(child, Child)
    future = guest.futures.new()
    one.join(future)
    return future


def cancel_child(guest: Guest, child: int) -> None:
    guest.handle(child, Child).cancel(guest.reach.nursery)
