"""Values of the server in the form that clients see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from pie_control.calls import implemented_traits
from pie_control.programs.store import ProgramInfo
from pie_control.tenant_api import TenantApi
from pie_inference.protocol import ModelDescription

from .messages import encode

OF_MODEL = (
    *("name", "architecture", "dtype", "device", "vocab_size", "max_context", "page_size", "num_pages", "num_embeds"),
    *("page_bytes", "weight_bytes", "stop_tokens", "pooling"),
)
"""What clients are told of a model as its description has it: not the tokenizer, which is large and useless to them."""


@dataclass(frozen=True)
class LogEntry:
    """A line of an inferlet's log. `time` is in seconds since the epoch; `number`: its place in the log, from 1 on."""

    time: float
    stream: str
    text: str
    number: int


def describe_model(model: ModelDescription) -> dict[str, Any]:
    """A model that inferlets can use. Sizes are in bytes, pages hold `page_size` tokens. `pooling`: how states become
    the vector of a text; empty: the model was not made for embeddings."""
    traits = [trait.name for trait in implemented_traits(model.calls, bool(model.tokenizer))]
    told = {name: getattr(model, name) for name in OF_MODEL}
    return {**told, "traits": traits, "has_chat_template": bool(model.tokenizer_config.get("chat_template"))}


def find_program(api: TenantApi, hash: str) -> ProgramInfo | None:
    """The program with this content hash, if the tenant has it."""
    return next((program for program in api.programs() if program.program == hash), None)


async def encoded_logs(api: TenantApi, inferlet: str, after: int = 0, *, of_all: bool = False) -> bytes:
    """JSON of the log of an inferlet, of any tenant's if `of_all`, oldest line first, behind the line of a number, as
    a list of `LogEntry`; raises UnknownName."""
    lines = api.logs(inferlet, after, of_all=of_all)
    return await encoded_list(LogEntry(line.time, line.stream, line.text, line.number) for line in lines)


async def encoded_list(items: Iterable[object]) -> bytes:
    """JSON of a list that may be long: made on a thread, one by one, so that others have turns."""
    return await asyncio.to_thread(lambda: b"".join((b"[", b",".join(map(encode, items)), b"]")))


class InferletListing:
    """JSON of all inferlets of a tenant, made once for all who ask while it is being made: it may be long."""

    def __init__(self, api: TenantApi) -> None:
        self._api = api
        self._making: asyncio.Task[msgspec.Raw] | None = None

    async def encoded(self) -> msgspec.Raw:
        """The list of `InferletInfo`."""
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._forget)
        return await asyncio.shield(self._making)

    async def _make(self) -> msgspec.Raw:
        return msgspec.Raw(await encoded_list(await self._api.look_at_all()))

    def _forget(self, _made: object) -> None:
        self._making = None
