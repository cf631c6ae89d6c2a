"""core.wit: runtime management and communication, handled by the control layer (paper, sections 4.1 and 4.3)."""

from __future__ import annotations

import time
from typing import Any

from ..calls.values import Done
from ..inferlets.mailbox import Received
from ..programs.languages.python_source import Compilation
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending
from .traits import traits_of

LOG_LEVELS = ("debug", "info", "warning", "error")


def get_arg(owner: Guest | Compilation) -> list[str]:
    return owner.arguments


def get_env(owner: Guest | Compilation) -> list[tuple[str, str]]:
    return list(owner.environment.items())


def send(guest: Guest, message: str) -> int | None:
    return guest.inferlet.put_message(message, Done())


def receive(guest: Guest) -> int:
    return guest.inferlet.receive()


def take_message(guest: Guest, future: int) -> str:
    message: Received = guest.futures.take(future, Received)
    return message.text


def set_result(owner: Guest | Compilation, value: str) -> None:
    owner.put_result(value)


def log(guest: Guest, level: int, message: str) -> None:
    guest.inferlet.put_log(f"{LOG_LEVELS[level]}: {message}")


def now(_guest: Guest) -> int:
    return time.time_ns()


def sleep(guest: Guest, nanoseconds: int) -> int:
    future = guest.futures.new()
    guest.inferlet.resolve_later(future, Done(), time.monotonic_ns() + nanoseconds)
    return future


@suspending
def wait(guest: Guest, futures: list[int]) -> Any:
    done = guest.futures.done(futures)
    if done or not futures:
        return done
    guest.inferlet.await_futures(futures)
    return SUSPEND


def take(guest: Guest, future: int) -> None:
    guest.futures.take(future, Done)


def cancel(guest: Guest, future: int) -> None:
    guest.inferlet.cancel(future)


def available_models(guest: Guest) -> list[str]:
    return list(guest.models)


def available_traits(guest: Guest, model: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [
        (trait.name, trait.version, functions, trait.supertraits)
        for trait, functions in traits_of(guest.model(model).description)
    ]


def get_model_info(guest: Guest, model: str) -> tuple[str, int, int, int, list[int], bool]:
    found = guest.model(model)
    about = found.description
    return (
        about.name,
        about.page_size,
        about.vocab_size,
        about.max_context,
        list(about.stop_tokens),
        found.tokenizer.has_chat_template,
    )


def create_queue(guest: Guest, model: str) -> int:
    return guest.create_queue(model)


def destroy_queue(guest: Guest, queue: int) -> None:
    guest.destroy_queue(queue)


def usage(guest: Guest) -> tuple[int, ...]:
    pages, embeds = guest.usage()
    limits = guest.inferlet.limits
    return (
        pages,
        limits.max_pages,
        embeds,
        limits.max_embeds,
        len(guest.queues),
        limits.max_queues,
        len(guest.futures),
        limits.max_futures,
        limits.memory_bytes,
        int(guest.inferlet.cpu_seconds * 1e9),
        int(limits.cpu_seconds * 1e9),
    )
