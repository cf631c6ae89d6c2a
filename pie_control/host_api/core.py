"""core.wit: runtime management and communication, handled by the control layer (paper, sections 4.1 and 4.3)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..calls.values import Done
from ..inferlets.events import Span
from ..inferlets.model import ModelView
from ..inferlets.relations.children import Child
from ..inferlets.relations.mail import Letter, Source
from ..programs.host.python_source import Compilation
from ..resources.kinds import EMBEDS, PAGES, STATES, charged
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending, when_done
from .traits import traits_of

MODEL_INFO = (
    "name",
    "architecture",
    "page_size",
    "vocab_size",
    "hidden_size",
    "max_context",
    "max_batch_tokens",
    "max_dist",
    "stop_tokens",
    "pooling",
    "sampling",
)
"""What an inferlet is told of a model as its worker says it."""


def get_arg(owner: Guest | Compilation) -> Sequence[str]:
    return owner.arguments


def get_env(owner: Guest | Compilation) -> list[tuple[str, str]]:
    return list(owner.environment.items())


def send(guest: Guest, to: int, message: str) -> int | None:
    """To 0: to the client."""
    mail = guest.inferlet.mail
    if to == 0:
        return mail.send(message, Done())
    return guest.handle(to, Child).send(message, mail.check_size(message), Done())


def receive(guest: Guest, source: int) -> int:
    """From 0: from the client."""
    if source == 0:
        return guest.inferlet.mail.receive()
    box = guest.handle(source, Source)
    future = guest.futures.new()
    box.receive(future)
    return future


def _take_message(guest: Guest, future: int) -> tuple[str, str, list[tuple[str, int]]] | None:
    letter: Letter = guest.futures.take(future, Letter)
    if letter.message is None:
        return None
    blobs, handles = guest.inferlet.blobs, list[tuple[str, int]]()
    try:
        for name, data in letter.message.blobs.items():
            blobs.reserve(len(data))
            handles.append((name, guest.add_blob(blobs.adopt(data))))
    except BaseException:
        for _, handle in handles:
            guest.drop_handle(handle)
        letter.not_taken()
        raise
    letter.taken()
    return letter.message.text, letter.message.sender, handles


@suspending
def await_message(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_message(guest, future))


def set_result(owner: Guest | Compilation, value: str) -> None:
    owner.put_result(value)


def log(guest: Guest, level: str, message: str) -> None:
    guest.inferlet.mail.log(f"{level}: {message}")
    if level == "error":
        guest.inferlet.last_error = message


def span(guest: Guest, operation: str, name: str, microseconds: int, error: str) -> None:
    guest.inferlet.did(Span(operation, name, microseconds, error))


def sleep(guest: Guest, nanoseconds: int) -> int:
    future = guest.futures.new()
    guest.inferlet.waits.resolve_later(future, Done(), time.monotonic_ns() + nanoseconds)
    return future


@suspending
def wait(guest: Guest, futures: list[int]) -> Any:
    done = guest.futures.done(futures)
    if done or not futures:
        return done
    guest.inferlet.waits.await_futures(futures)
    return SUSPEND


def cancel(guest: Guest, future: int) -> None:
    guest.inferlet.waits.cancel(future)
    guest.drop_import(future)


def drop(guest: Guest, handle: int) -> None:
    guest.drop_handle(handle)


def available_models(guest: Guest) -> list[str]:
    """The first is the default: the one that the launch has chosen, also where there is none of this name, so that its
    use is refused."""
    chosen = guest.environment.get("model")
    others = [name for name in guest.models if name != chosen]
    return [chosen, *others] if chosen else others


def get_model_info(guest: Guest, model: str) -> str:
    return guest.model(model).info(_model_info)


def _model_info(found: ModelView) -> str:
    about = found.description
    same = {name: getattr(about, name) for name in MODEL_INFO}
    special = {f"{name}_text": _text(about.tokenizer_config.get(f"{name}_token")) for name in ("bos", "eos")}
    image_token = about.vision.placeholder if about.vision else None
    traits = [
        {"name": trait.name, "version": trait.version, "functions": functions, "supertraits": trait.supertraits}
        for trait, functions in traits_of(about)
    ]
    begin, end = found.frame
    others = {
        "begin_tokens": begin,
        "end_tokens": end,
        "has_chat_template": found.has_chat_template,
        "image_token": image_token,
        "moves_tokens": not about.fixed_positions,
        "state_pages": charged(about, STATES, 1)[1] if about.num_states else 0,
        "adapters": found.adapters,
        "traits": traits,
    }
    return json.dumps({**same, **special, **others})


def _text(token: object) -> object:
    """The text of a special token as tokenizer_config.json has it: a text, or an object with one, or nothing."""
    return token.get("content") if isinstance(token, dict) else token


def create_queue(guest: Guest, model: str) -> int:
    return guest.create_queue(model)


def usage(guest: Guest) -> str:
    pages, embeds = guest.usage()
    limits, models = guest.inferlet.limits, [one.description for one in guest.models.values()]
    told = {
        "pages": pages,
        "max_pages": min(limits.max_pages, sum(map(PAGES.pool_size, models))),
        "embeds": embeds,
        "max_embeds": min(limits.max_embeds, sum(map(EMBEDS.pool_size, models))),
        "queues": len(guest.queues),
        "max_queues": limits.max_queues,
        "futures": len(guest.futures),
        "max_futures": limits.max_futures,
        "max_memory_bytes": limits.memory_bytes,
        "cpu_nanoseconds": int(guest.inferlet.processor_time.spent_at(time.thread_time()) * 1e9),
        "max_cpu_nanoseconds": int(limits.cpu_seconds * 1e9),
    }
    return msgspec.json.encode(told).decode()
