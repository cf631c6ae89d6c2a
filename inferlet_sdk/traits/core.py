"""Core: runtime management and communication (paper, sections 4.1 and 4.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferlet_sdk import bindings
from inferlet_sdk.dropped import give_back
from inferlet_sdk.errors import call
from inferlet_sdk.event_loop import until_any_done
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import LARGEST_U64, HasQueue, number, queue_number, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text

__all__ = [
    "available_models",
    "available_traits",
    "cancel",
    "create_queue",
    "destroy_queue",
    "get_arg",
    "get_env",
    "get_model_info",
    "log",
    "now",
    "receive",
    "send",
    "set_queue_priority",
    "set_result",
    "sleep",
    "synchronize",
    "usage",
    "wait",
]

LogLevel = Literal["debug", "info", "warning", "error"]


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
    page_size: int  # tokens in a page
    vocab_size: int
    max_context: int  # most tokens that a context may hold
    stop_tokens: tuple[int, ...]  # tokens after which generation ends
    has_chat_template: bool


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


def send(message: str) -> None:
    """Sends a message to the client that launched the inferlet."""
    if not isinstance(message, str):
        raise wrong("message", "text (`json.dumps` turns values into text)", message)
    call(bindings.core.send, checked_text(message, "message"))


def receive() -> HostFuture[str]:
    """The next message from the client."""
    return HostFuture(call(bindings.core.receive), bindings.core.take_message)


def set_result(value: Any) -> None:
    """Sets the result for the client, as JSON. The last call counts; a return value of `main` other than None sets it
    too.
    """
    call(bindings.core.set_result, json.dumps(value))


def log(message: object, level: LogLevel = "info") -> None:
    """Adds a line to the log of the inferlet."""
    levels = bindings.core.LogLevel
    if level not in LogLevel.__args__:  # type: ignore[attr-defined]
        raise ValueError(f"level: log level {level!r} does not exist: use one of debug, info, warning, error")
    call(bindings.core.log, levels[level.upper()], checked_text(str(message), "message"))


def now() -> float:
    """Seconds since the Unix epoch."""
    nanoseconds: int = call(bindings.core.now)
    return nanoseconds / 1e9


def sleep(seconds: float) -> HostFuture[None]:
    """A future that is done after `seconds` seconds. `asyncio.sleep` works too."""
    duration = number(seconds, "seconds") * 1e9
    if not duration <= LARGEST_U64:  # also NaN
        raise ValueError(f"seconds: {seconds} is not a time")
    return HostFuture(call(bindings.core.sleep, max(0, min(round(max(duration, 0)), LARGEST_U64))), bindings.core.take)


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


def available_models() -> list[str]:
    """Names of the models; the first is the default."""
    return list(call(bindings.core.available_models))


def _model(model: object) -> str:
    return checked_text(getattr(model, "name", model), "model")


def available_traits(model: str) -> list[TraitInfo]:
    """Traits that a model implements; raises NotFound for an unknown model."""
    traits = call(bindings.core.available_traits, _model(model))
    return [TraitInfo(t.name, t.version, tuple(t.functions), tuple(t.supertraits)) for t in traits]


def get_model_info(model: str) -> ModelInfo:
    """Page size, vocabulary and limits of a model; raises NotFound for an unknown model."""
    info = call(bindings.core.get_model_info, _model(model))
    return ModelInfo(
        name=info.name,
        page_size=info.page_size,
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        stop_tokens=tuple(info.stop_tokens),
        has_chat_template=info.has_chat_template,
    )


def create_queue(model: str) -> int:
    """Creates a command queue; raises QuotaExceeded if the inferlet has too many."""
    name = _model(model)
    give_back()
    return int(call(bindings.core.create_queue, name))


def destroy_queue(queue: int | HasQueue) -> None:
    """Destroys a queue after the commands that it holds."""
    call(bindings.core.destroy_queue, queue_number(queue))


def synchronize(queue: int | HasQueue) -> HostFuture[None]:
    """A future that is done when every command issued to the queue so far has taken effect."""
    return HostFuture(call(bindings.core.synchronize, queue_number(queue)), bindings.core.take)


def set_queue_priority(queue: int | HasQueue, priority: int) -> None:
    """Queues with higher priority are served first. A new queue has priority 0."""
    arguments = queue_number(queue), whole(priority, "priority", -(2**31), 2**31 - 1)
    call(bindings.core.set_queue_priority, *arguments)


def usage() -> Usage:
    """The resources that the inferlet holds now, and its limits."""
    give_back()
    host = call(bindings.core.usage)
    return Usage(**{name: getattr(host, name) for name in Usage.__dataclass_fields__})
