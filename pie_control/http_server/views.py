"""Values of the runtime in the form in which clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pie_control.host_api.traits import TRAITS
from pie_control.programs.store import ProgramInfo
from pie_inference.protocol import ModelDescription

from . import messages as wire
from .host import InferletHost


@dataclass(frozen=True)
class ModelInfo:
    """A model that inferlets can use. Sizes are in bytes, pages hold `page_size` tokens."""

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


_SHARED = tuple(name for name in ModelInfo.__dataclass_fields__ if name not in ("traits", "has_chat_template"))


def describe_model(model: ModelDescription) -> ModelInfo:
    """The description without the tokenizer, which is large and of no use to a client."""
    config: Mapping[str, object] = model.tokenizer_config
    values = {name: getattr(model, name) for name in _SHARED}
    return ModelInfo(**values, traits=tuple(TRAITS), has_chat_template=bool(config.get("chat_template")))


def find_program(host: InferletHost, hash: str) -> ProgramInfo | None:
    """The program with this content hash, if the server has it."""
    return next((program for program in host.programs() if program.program == hash), None)


def look_up(host: InferletHost, request: wire.Request) -> object:
    """The answer to a request of a session that changes nothing."""
    match request:
        case wire.Inferlet(inferlet=inferlet):
            return host.inferlet(inferlet).info()
        case wire.Inferlets():
            return host.inferlets()
        case wire.Logs(inferlet=inferlet):
            return host.inferlet(inferlet).logs()
        case wire.Program(program=program):
            return find_program(host, program)
        case wire.Programs():
            return host.programs()
        case wire.Models():
            return [describe_model(model) for model in host.models()]
        case wire.Statistics():
            return host.statistics()
    raise AssertionError(f"{type(request).__name__} is no look-up")
