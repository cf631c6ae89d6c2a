"""Core: runtime management and communication (paper, sections 4.1 and 4.3)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

from inferlet_sdk import bindings
from inferlet_sdk.dropped import give_back
from inferlet_sdk.errors import QuotaExceeded, call
from inferlet_sdk.event_loop import until_any_done
from inferlet_sdk.futures import HostFuture, await_done
from inferlet_sdk.texts import json_text
from inferlet_sdk.traits.arguments import LARGEST_U64, HasQueue, number, queue_number, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.outside.blobs import Message, take_message, take_message_if_any
from inferlet_sdk.traits.outside.spans import span

__all__ = [
    "available_adapters",
    "available_models",
    "available_traits",
    "cancel",
    "create_queue",
    "destroy_queue",
    "drop",
    "get_arg",
    "get_env",
    "get_model_info",
    "log",
    "now",
    "receive",
    "receive_from",
    "send",
    "set_queue_priority",
    "set_result",
    "sleep",
    "span",
    "synchronize",
    "usage",
    "wait",
]

T = TypeVar("T")
LogLevel = Literal["debug", "info", "warning", "error"]

CLIENT = 0
"""The client that launched the inferlet, or its parent, in place of a handle."""


@dataclass(frozen=True)
class TraitInfo:
    """A group of API functions that a model implements."""

    name: str
    version: str
    functions: tuple[str, ...]
    supertraits: tuple[str, ...]


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model that an inferlet needs."""

    name: str
    architecture: str
    page_size: int  # tokens in a page
    vocab_size: int
    hidden_size: int  # numbers of a hidden state
    max_context: int  # most tokens that a context may hold
    max_batch_tokens: int  # most input tokens that run at once
    max_dist: int  # largest k of `get_next_dist`
    stop_tokens: tuple[int, ...]  # tokens after which generation ends
    bos_text: str | None  # of the special tokens; None: the model has none
    eos_text: str | None
    has_chat_template: bool
    image_token: int | None  # stands for what is seen in an image; None: the model takes none
    moves_tokens: bool  # whether `shift_kvpage` can move tokens to other positions
    begin_tokens: tuple[int, ...]  # stand before a text that is for the model as a whole; `tokenize` adds none
    end_tokens: tuple[int, ...]  # stand behind it
    state_pages: int  # pages that the state of a text counts as; 0: the model keeps keys and values alone
    sampling: Mapping[str, float]  # what its authors advise, by names of `Sampler`; what they leave out is not there
    pooling: str  # how states become the vector of a text, "last" or "mean"; "": the model was not made for embeddings


@dataclass(frozen=True)
class Usage:
    """The resources that the inferlet holds now, and its limits."""

    pages: int
    max_pages: int
    embeds: int
    max_embeds: int
    queues: int
    max_queues: int
    futures: int
    max_futures: int
    max_memory_bytes: int
    cpu_nanoseconds: int
    max_cpu_nanoseconds: int


def get_arg() -> list[str]:
    """The arguments given at launch."""
    return list(call(bindings.core.get_arg))


def get_env() -> dict[str, str]:
    """Launch metadata: `inferlet`, `program` and `user`, set by the server, and the entries that the client added."""
    return dict(call(bindings.core.get_env))


class _Gone:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class _Going(HostFuture[None]):
    """A message that waits for a slow client."""

    __slots__ = ("awaited",)

    def __init__(self, number: int) -> None:
        super().__init__(number, await_done)
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        return super().__await__()

    def wait_in_place(self) -> None:
        """Suspends the whole program until there is room."""
        if not self._taken:
            self.result()


_GONE = _Gone()
_going: _Going | None = None
"""The last message that had to wait."""


def send(message: str) -> Awaitable[None]:
    """Sends a message to the client that launched the inferlet. If the client is slow, `await` waits until there is
    room for more.

    Where nothing can or does await, the program as a whole waits instead: in a plain `def main` at once, else in the
    next `send`.
    """
    global _going
    if not isinstance(message, str):
        raise wrong("message", "text (`json.dumps` turns values into text)", message)
    checked_text(message, "message")
    if _going is not None and not _going.awaited:
        _going.wait_in_place()
    try:
        number = call(bindings.core.send, CLIENT, message)
    except QuotaExceeded:  # many tasks wait to send, unless the message itself is too large
        if _going is None:
            raise
        _going.wait_in_place()
        number = call(bindings.core.send, CLIENT, message)
    if number is None:
        return _GONE
    _going = _Going(number)
    if asyncio._get_running_loop() is None:
        _going.wait_in_place()
    return _going


def forget_sends() -> None:
    """The inferlet that has sent has ended."""
    global _going
    _going = None


def receive() -> HostFuture[Message]:
    """The next message from the client: a text, with the blobs that came with it in `.blobs`. Fails with QuotaExceeded
    if these do not fit beside what the inferlet holds; then the message waits for the next `receive`."""
    return HostFuture(call(bindings.core.receive, CLIENT), take_message)


def receive_from(handle: int) -> HostFuture[Message | None]:
    """The next message of a child or in a subscription, by its handle. None: the child has ended, and all its messages
    are taken. `receive_child` and `next_published` do it for each."""
    return HostFuture(call(bindings.core.receive, whole(handle, "handle", least=1)), take_message_if_any)


def set_result(value: Any) -> None:
    """Sets the result for the client, as JSON. The last call counts; a return value of `main` other than None sets it
    too. Raises ValueError for NaN and infinities, which JSON has not.
    """
    call(bindings.core.set_result, json_text(value))


def log(message: object, level: LogLevel = "info") -> None:
    """Adds a line to the log of the inferlet."""
    levels = bindings.core.LogLevel
    if level not in LogLevel.__args__:  # type: ignore[attr-defined]
        raise ValueError(f"level: log level {level!r} does not exist: use one of debug, info, warning, error")
    call(bindings.core.log, levels[level.upper()], checked_text(str(message), "message"))


def now() -> float:
    """Seconds since the Unix epoch."""
    return time.time()


def sleep(seconds: float) -> HostFuture[None]:
    """A future that is done after `seconds` seconds. `asyncio.sleep` works too."""
    duration = number(seconds, "seconds") * 1e9
    if not duration <= LARGEST_U64:  # also NaN
        raise ValueError(f"seconds: {seconds} is not a time")
    nanoseconds = max(0, min(round(max(duration, 0)), LARGEST_U64))
    return HostFuture(call(bindings.core.sleep, nanoseconds), await_done)


async def wait(futures: Sequence[HostFuture[Any]]) -> list[HostFuture[Any]]:
    """Waits until at least one of `futures` is done; returns the done ones. Await these to get their values."""
    futures = list(futures) if isinstance(futures, Iterable) else [futures]
    for place, future in enumerate(futures):
        _check_future(future, f"futures[{place}]")
    done = await until_any_done([future.number for future in futures])
    return [future for future in futures if future.number in done]


def cancel(future: HostFuture[Any]) -> None:
    """Gives up a future; the call itself still takes effect."""
    _check_future(future, "future")
    future.cancel()


def _check_future(future: object, name: str) -> None:
    if not isinstance(future, HostFuture):
        raise TypeError(f"{name}: give a future that a call returned, not {type(future).__name__}")


def drop(handle: int) -> None:
    """Gives back what a handle stands for: a queue, a sampler, a blob and so on. The names of each kind do the same."""
    call(bindings.core.drop, whole(handle, "handle"))


def available_models() -> list[str]:
    """Names of the models; the first is the default."""
    return list(call(bindings.core.available_models))


def _model(model: object) -> str:
    return checked_text(getattr(model, "name", model), "model")


def available_traits(model: str) -> list[TraitInfo]:
    """Traits that a model implements; raises NotFound for an unknown model."""
    return [_from_json(TraitInfo, trait) for trait in _model_info(model)["traits"]]


def available_adapters(model: str) -> list[str]:
    """Names of the LoRA adapters that a model has now: the operator may drop them at any time. Raises NotFound for an
    unknown model."""
    return list(_model_info(model)["adapters"])


def get_model_info(model: str) -> ModelInfo:
    """Page size, vocabulary and limits of a model; raises NotFound for an unknown model."""
    return _read_model_info(call(bindings.core.get_model_info, _model(model)))


@lru_cache(8)  # an instance may be launched many times, and models seldom change
def _read_model_info(text: str) -> ModelInfo:
    return _from_json(ModelInfo, json.loads(text))


def _model_info(model: str) -> dict[str, Any]:
    info: dict[str, Any] = json.loads(call(bindings.core.get_model_info, _model(model)))
    return info


def create_queue(model: str) -> int:
    """Creates a command queue; raises QuotaExceeded if the inferlet has too many."""
    name = _model(model)
    give_back()
    return int(call(bindings.core.create_queue, name))


def destroy_queue(queue: int | HasQueue) -> None:
    """Destroys a queue after the commands that it holds."""
    call(bindings.core.drop, queue_number(queue))


def synchronize(queue: int | HasQueue) -> HostFuture[None]:
    """A future that is done when every command issued to the queue so far has taken effect."""
    return HostFuture(call(bindings.core.synchronize, queue_number(queue)), await_done)


def set_queue_priority(queue: int | HasQueue, priority: int) -> None:
    """Queues with higher priority are served first. A new queue has priority 0."""
    arguments = queue_number(queue), whole(priority, "priority", -(2**31), 2**31 - 1)
    call(bindings.core.set_queue_priority, *arguments)


def usage() -> Usage:
    """The resources that the inferlet holds now, and its limits."""
    give_back()
    return _from_json(Usage, json.loads(call(bindings.core.usage)))


def _from_json(kind: type[T], values: dict[str, Any]) -> T:
    """A dataclass from a JSON object, which may have keys of its own besides; lists become tuples."""
    known = {name: values[name] for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})
