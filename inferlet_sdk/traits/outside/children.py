"""Inferlets that an inferlet launches (children.wit)."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from inferlet_sdk import bindings
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import call
from inferlet_sdk.event_loop import wait_for, waited_for
from inferlet_sdk.futures import HostFuture, await_done
from inferlet_sdk.texts import json_text
from inferlet_sdk.traits.arguments import number, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.outside.blobs import take_message_if_any
from inferlet_sdk.traits.outside.spans import traceparent

__all__ = [
    "Child",
    "ChildEnd",
    "ChildFailed",
    "cancel_child",
    "drop_child",
    "join",
    "launch",
    "receive_child",
    "send_child",
]


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended. `status`: "finished", "failed", "terminated", "exceeded", "evicted" or "lost"; `result`: what
    its `main` returned; `error`: why it ended otherwise; `inferlet`: its id."""

    inferlet: str
    status: str
    result: Any
    error: str | None


class ChildFailed(RuntimeError):
    """A child did not finish. `end` says how it ended."""

    def __init__(self, end: ChildEnd) -> None:
        super().__init__(f"the child {end.inferlet} {end.status}: {end.error or 'no reason is known'}")
        self.end = end


class Child:
    """An inferlet that this one has launched, on the same host and within its limits.

        child = launch("summarize", url)
        await child.send("go on")
        async for message in child:
            ...
        result = await child

    `await child` gives its result, and raises ChildFailed unless it finished. A child ends with its parent.
    """

    def __init__(self, handle: int) -> None:
        self.handle: int | None = handle
        self._host = bindings.host

    def __repr__(self) -> str:
        return f"Child({self.handle})"

    def join(self) -> HostFuture[ChildEnd]:
        """How it ended, whatever that is; you may ask again, also after a timeout. Raises at the `await` what kept it
        from being launched: NotFound, InvalidArgument, Exhausted."""
        return join(self)

    def result(self) -> Any:
        """What its `main` returned: `await child.result()`, the same as `await child`; without `await` in a plain `def
        main`. Raises ChildFailed, and as `join`."""
        return waited_for(self._result())

    async def _result(self) -> Any:
        end = await self.join()
        if end.status != "finished":
            raise ChildFailed(end)
        return end.result

    def __await__(self) -> Any:
        return self._result().__await__()

    def send(self, message: str) -> Awaitable[None]:
        """Sends a message that the child gets with `args.receive()`. `await` waits while it receives slowly."""
        return send_child(self, message)

    def receive(self) -> HostFuture[str | None]:
        """The next message that the child sends with `args.send`; None when it has ended and all are taken."""
        return receive_child(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if (message := await self.receive()) is None:
            raise StopAsyncIteration
        return message

    def __iter__(self) -> Iterator[str]:
        while (message := self.receive().result()) is not None:
            yield message

    def cancel(self) -> None:
        """Ends it soon; nothing happens if it has ended."""
        cancel_child(self)

    def close(self) -> None:
        """Drops what was not taken of it. A child that runs goes on. Idempotent."""
        handle, self.handle = self.handle, None
        if handle is not None:
            call(bindings.core.drop, handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            drop(self, self._host)


def launch(
    program: str | Callable[..., Any] | None = None,
    /,
    *args: Any,
    environment: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
    cpu_seconds: float | None = None,
    max_pages: int | None = None,
    max_embeds: int | None = None,
    max_queues: int | None = None,
    max_children: int | None = None,
    **kwargs: Any,
) -> Child:
    """Launches a child: a program that was uploaded, by its name or hash, or this one again (None), or a function of
    this one, beside `main`, which takes `args` first as `main` does.

    `args` and `kwargs` are the parameters of its `main`, as in `launch("story", topic="bees")`: JSON values; texts in
    `args` are words of a command line, as "--topic". The limits bound what it may hold with its own children; by
    default what this inferlet may. What children hold counts as this inferlet's as well.

    Returns at once. Raises QuotaExceeded if too many of the family run; what else keeps it from being launched is
    raised by `await child`.
    """
    if environment is not None and not isinstance(environment, Mapping):
        raise wrong("environment", "a mapping of names to texts", environment)
    env = dict(environment or {})
    if span := traceparent():
        env.setdefault("traceparent", span)
    name = _program(program, env)
    arguments = _arguments(args, kwargs, env)
    for key, value in env.items():
        checked_text(key, "environment")
        checked_text(value, f"environment[{key!r}]")
    limits = {
        "memory_bytes": memory_bytes,
        "max_pages": max_pages,
        "max_embeds": max_embeds,
        "max_queues": max_queues,
        "max_children": max_children,
    }
    bounds: dict[str, float] = {key: whole(value, key) for key, value in limits.items() if value is not None}
    if cpu_seconds is not None:
        bounds["cpu_seconds"] = number(cpu_seconds, "cpu_seconds")
    return Child(call(bindings.children.launch, name, arguments, json.dumps({"environment": env, "limits": bounds})))


def _program(program: str | Callable[..., Any] | None, env: dict[str, str]) -> str:
    """What the host calls it; a function of this program is named in the environment."""
    if program is None:
        return ""
    if not inspect.isfunction(program):
        return checked_text(program, "program", "the name or hash of a program, or a function of this one")
    name: str = program.__name__
    if program.__module__ != "__main__" or vars(sys.modules["__main__"]).get(name) is not program:
        raise ValueError(f"program: {name} does not stand at the top of the main file of this program")
    env["main"] = name
    return ""


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any], env: dict[str, str]) -> list[str]:
    """The words of the command line; values that are no texts, and those by name, go to the environment."""
    values = {place: value for place, value in enumerate(args) if not isinstance(value, str)}
    told = {place: _as_json(value, f"args[{place}]") for place, value in values.items()}
    if values:
        env["args"] = json.dumps(values)
    if kwargs:
        for name, value in kwargs.items():
            _as_json(value, name)
        env["kwargs"] = json.dumps(kwargs)
    return [told[place] if place in told else checked_text(one, f"args[{place}]") for place, one in enumerate(args)]


def _as_json(value: Any, name: str) -> str:
    try:
        return json_text(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except (TypeError, RecursionError):
        raise wrong(name, "text, a number, True, False, None, or lists and dicts of these", value) from None


# ---- calls under their own names ----


def _handle(child: Child | int) -> int:
    handle = child.handle if isinstance(child, Child) else child
    if handle is None:
        raise ValueError("child: it was closed")
    return whole(handle, "child", least=1, wanted="what `launch` returned")


def _end(future: int) -> ChildEnd:
    wait_for([future])
    told = json.loads(bindings.core.await_text(future))
    result = told["result"]
    return ChildEnd(told["inferlet"], told["status"], None if result is None else json.loads(result), told["error"])


def join(child: Child | int) -> HostFuture[ChildEnd]:
    """How a child ended; `Child.join` is the same."""
    return HostFuture(call(bindings.children.join, _handle(child)), _end)


class _Gone(HostFuture[None]):
    """A message that is on its way."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: None)
        self._taken = True


def send_child(child: Child | int, message: str) -> HostFuture[None]:
    """Sends a message to a child; `Child.send` is the same. In a plain `def main` it waits in place."""
    future = call(bindings.core.send, _handle(child), checked_text(message, "message"))
    if future is None:
        return _Gone()
    going: HostFuture[None] = HostFuture(future, await_done)
    if asyncio._get_running_loop() is None:
        going.result()
    return going


def receive_child(child: Child | int) -> HostFuture[str | None]:
    """The next message of a child; `Child.receive` is the same."""
    return HostFuture(call(bindings.core.receive, _handle(child)), take_message_if_any)


def cancel_child(child: Child | int) -> None:
    """Ends a child soon; `Child.cancel` is the same."""
    call(bindings.children.cancel_child, _handle(child))


def drop_child(child: Child | int) -> None:
    """Drops a child's handle; `Child.close` is the same."""
    if isinstance(child, Child):
        child.close()
    else:
        call(bindings.core.drop, _handle(child))
