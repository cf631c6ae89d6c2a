"""Values of the server in the form that clients see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from pie_control.calls import implemented_traits
from pie_control.programs.store import ProgramInfo
from pie_control.tenant_api import TenantApi
from pie_inference.protocol import ModelDescription

from .messages import encode


@dataclass(frozen=True)
class ModelInfo:
    """A model that inferlets can use. Sizes are in bytes, pages hold `page_size` tokens. `pooling`: how
    states become the vector of a text; empty: the model was not made for embeddings."""

    name: str
    architecture: str
    traits: tuple[str, ...]
    dtype: str
    device: str
    vocab_size: int
    max_context: int
    page_size: int
    num_pages: int
    num_embeds: int
    page_bytes: int
    weight_bytes: int
    stop_tokens: tuple[int, ...]
    has_chat_template: bool
    pooling: str


@dataclass(frozen=True)
class LogEntry:
    """A line of an inferlet's log. `time` is in seconds since the epoch; `number`: its place in the log, from 1 on."""

    time: float
    stream: str
    text: str
    number: int


_WORKED_OUT = ("traits", "has_chat_template")
_SHARED = tuple(name for name in ModelInfo.__dataclass_fields__ if name not in _WORKED_OUT)


def describe_model(model: ModelDescription) -> ModelInfo:
    """The description without the tokenizer, which is large and useless to a client."""
    config: Mapping[str, object] = model.tokenizer_config
    values = {name: getattr(model, name) for name in _SHARED}
    traits = tuple(trait.name for trait in implemented_traits(model.calls, bool(model.tokenizer)))
    return ModelInfo(**values, traits=traits, has_chat_template=bool(config.get("chat_template")))


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
