"""core.wit: runtime management and communication, handled by the control layer (paper, sections 4.1 and 4.3)."""

from __future__ import annotations

import time
from typing import Any

from ..inferlets.inferlet import Inferlet
from ..inferlets.mailbox import Received
from ..sandbox.fibers import SUSPEND
from ..scheduling import Done
from .handles import Queue, account_of, issue, model_of, queue_of
from .traits import TRAITS

LOG_LEVELS = ("debug", "info", "warning", "error")


def get_arg(inferlet: Inferlet) -> list[str]:
    return inferlet.arguments


def get_env(inferlet: Inferlet) -> list[tuple[str, str]]:
    return list(inferlet.environment.items())


def send(inferlet: Inferlet, message: str) -> None:
    inferlet.put_message(message)


def receive(inferlet: Inferlet) -> int:
    return inferlet.receive()


def take_message(inferlet: Inferlet, future: int) -> str:
    message: Received = inferlet.futures.take(future, Received)
    return message.text


def set_result(inferlet: Inferlet, value: str) -> None:
    inferlet.put_result(value)


def log(inferlet: Inferlet, level: int, message: str) -> None:
    inferlet.put_log(f"{LOG_LEVELS[level]}: {message}")


def now(_inferlet: Inferlet) -> int:
    return time.time_ns()


def sleep(inferlet: Inferlet, nanoseconds: int) -> int:
    future = inferlet.futures.new()
    inferlet.resolve_later(future, Done(), time.monotonic_ns() + nanoseconds)
    return future


def wait(inferlet: Inferlet, futures: list[int]) -> Any:
    done = inferlet.futures.done(futures)
    if done or not futures:
        return done
    inferlet.await_futures(futures)
    return SUSPEND


def take(inferlet: Inferlet, future: int) -> None:
    inferlet.futures.take(future, Done)


def cancel(inferlet: Inferlet, future: int) -> None:
    inferlet.cancel(future)


def available_models(inferlet: Inferlet) -> list[str]:
    return list(inferlet.models)


def available_traits(inferlet: Inferlet, model: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    model_of(inferlet, model)
    return [(trait.name, trait.version, trait.functions, trait.supertraits) for trait in TRAITS.values()]


def get_model_info(inferlet: Inferlet, model: str) -> tuple[str, int, int, int, list[int], bool]:
    found = model_of(inferlet, model)
    about = found.description
    return (
        about.name,
        about.page_size,
        about.vocab_size,
        about.max_context,
        list(about.stop_tokens),
        found.tokenizer.has_chat_template,
    )


def create_queue(inferlet: Inferlet, model: str) -> int:
    found = model_of(inferlet, model)
    account = account_of(inferlet, found)
    inferlet.next_queue += 1
    inferlet.queues[inferlet.next_queue] = Queue(account, account.create_queue(), found)
    return inferlet.next_queue


def destroy_queue(inferlet: Inferlet, queue: int) -> None:
    found = queue_of(inferlet, queue)
    found.account.destroy_queue(found.number)
    del inferlet.queues[queue]


def synchronize(inferlet: Inferlet, queue: int) -> int:
    found = queue_of(inferlet, queue)
    return issue(inferlet, found.account.synchronize, found.number)


def set_queue_priority(inferlet: Inferlet, queue: int, priority: int) -> None:
    found = queue_of(inferlet, queue)
    found.account.set_queue_priority(found.number, priority)


def usage(inferlet: Inferlet) -> tuple[int, ...]:
    held = [session.holdings() for session in inferlet.sessions.values()]
    limits = inferlet.limits
    return (
        sum(pages for pages, _ in held),
        limits.max_pages,
        sum(embeds for _, embeds in held),
        limits.max_embeds,
        len(inferlet.queues),
        limits.max_queues,
        len(inferlet.futures),
        limits.max_futures,
        limits.memory_bytes,
        int(inferlet.cpu_seconds * 1e9),
        int(limits.cpu_seconds * 1e9),
    )
