"""Version 0.1 of the API, from 0.2: errors had an enum for a code (the sandbox sees to that, from the type), and what
is now JSON were records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...calls.values import Done
from ...sandbox.fibers import SUSPEND
from ...sandbox.functions import HostFunction
from .. import wit_files
from ..guest import Guest

VERSION = "0.1.0"
TRAITS = ("Allocate", "Forward", "InputText", "Tokenize", "OutputText", "Fused")

SAMPLER_CONFIG = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
MODEL_INFO = ("name", "page_size", "vocab_size", "max_context", "stop_tokens", "has_chat_template")
USAGE_INFO = (
    "pages",
    "max_pages",
    "embeds",
    "max_embeds",
    "queues",
    "max_queues",
    "futures",
    "max_futures",
    "max_memory_bytes",
    "cpu_nanoseconds",
    "max_cpu_nanoseconds",
)
"""Fields of the records, in order: keys of the JSON objects."""


def _send(newer: HostFunction) -> HostFunction:
    """Suspends the guest where it is now given a future."""

    def send(guest: Guest, message: str) -> Any:
        future = newer.call(guest, message)
        if future is None:
            return None

        def take(_: object = None) -> None:
            guest.futures.take(future, Done)

        if guest.futures.done((future,)):
            return take()
        guest.inferlet.await_futures([future], take)
        return SUSPEND

    return replace(newer, call=send, suspends=True)


def _available_traits(newer: HostFunction) -> HostFunction:
    """Core was not listed, nor is what came later."""
    known = {name for _, name in wit_files.older(VERSION).signatures}

    def available_traits(guest: Guest, model: str) -> list[tuple[str, str, list[str], list[str]]]:
        return [
            (trait["name"], VERSION, [name for name in trait["functions"] if name in known], trait["supertraits"])
            for trait in json.loads(newer.call(guest, model))
            if trait["name"] in TRAITS
        ]

    return replace(newer, call=available_traits)


def _record(fields: tuple[str, ...]) -> Callable[[HostFunction], HostFunction]:
    def adapter(newer: HostFunction) -> HostFunction:
        def function(*arguments: Any) -> tuple[Any, ...]:
            found = json.loads(newer.call(*arguments))
            return tuple(found[field] for field in fields)

        return replace(newer, call=function)

    return adapter


def _create_sampler(newer: HostFunction) -> HostFunction:
    def create_sampler(guest: Guest, config: tuple[Any, ...]) -> Any:
        return newer.call(guest, json.dumps(dict(zip(SAMPLER_CONFIG, config, strict=True))))

    return replace(newer, call=create_sampler)


def _tokenize(newer: HostFunction) -> HostFunction:
    """Special tokens were always recognized."""

    def tokenize(guest: Guest, queue: int, text: str) -> Any:
        return newer.call(guest, queue, text, True)

    return replace(newer, call=tokenize)


ADAPTERS: Mapping[tuple[str, str], Callable[[HostFunction], HostFunction]] = {
    ("core", "send"): _send,
    ("core", "available-traits"): _available_traits,
    ("core", "get-model-info"): _record(MODEL_INFO),
    ("core", "usage"): _record(USAGE_INFO),
    ("fused", "create-sampler"): _create_sampler,
    ("tokenize", "tokenize"): _tokenize,
}
"""What changed, by interface and name: an adapter makes the function of this version from that of the next."""
