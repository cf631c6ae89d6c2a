"""A causal model in two parts: its base, which is its layers, and its head by its own code, with the caps and factors
of logits. There the base is replaced by a stub."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from ...errors import CheckpointError
from .code import text_of


class _Output(MoeModelOutputWithPast):  # type: ignore[misc]
    """Has every attribute that a head may pass on: None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Through(nn.Module):
    """Stands for the base: it hands hidden states on."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["base"] = base

    def __getattr__(self, name: str) -> Any:
        return self if name in ("decoder", "language_model") else getattr(self.__dict__["base"], name)

    def forward(self, *_: Any, inputs_embeds: Tensor | None = None, **__: Any) -> Any:
        return _Output(last_hidden_state=inputs_embeds)


def sinks_of(module: Any, more: dict[str, Any]) -> Tensor | None:
    """The sinks of an attention that is called with `more`."""
    given = more.get("s_aux")
    found: Tensor | None = getattr(module, "sinks", None) if given is None else given
    return found


def _base_name(model: Any) -> str:
    embedding = model.get_input_embeddings()
    for name, module in model.named_children():
        if module is not embedding and any(each is embedding for each in module.modules()):
            return str(name)
    raise CheckpointError("it has no base model apart from its head")


def base_of(model: Any) -> nn.Module:
    """The model without its head; of a model of more than text, the text model. Raises CheckpointError."""
    found: nn.Module = model.get_submodule(_base_name(model))
    if text_of(model.config) is model.config:
        return found
    embedding = model.get_input_embeddings()
    models = (each for each in found.modules() if isinstance(each, PreTrainedModel))
    text: nn.Module = [each for each in models if any(part is embedding for part in each.modules())][-1]
    return text


class Head:
    """Hidden states [N, hidden_size], after the last norm, to logits [N, vocab_size]."""

    def __init__(self, model: Any) -> None:
        """Raises CheckpointError."""
        name = _base_name(model)
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, name: _Through(model._modules[name])}

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].to(torch.promote_types(logits.dtype, torch.float32))


def asks_for_tokens(base: Any) -> bool:
    """Whether layers have embeddings of their own."""
    return bool(getattr(base.config, "hidden_size_per_layer_input", None)) and hasattr(base, "get_per_layer_inputs")


def first_position(base: Any) -> int:
    """The position of the first token: 0, but where code counts from behind the one of padding."""
    embeddings: Any = getattr(base, "embeddings", None)
    return int(embeddings.padding_idx) + 1 if hasattr(embeddings, "create_position_ids_from_input_ids") else 0


def run(
    base: Any, hidden: Tensor, positions: Tensor, cache: object | None = None, tokens: Tensor | None = None
) -> Tensor:
    """Runs the layers of transformers' module over vectors [B, T, hidden_size] at positions [B, T]; `cache` is a
    `Cache` of transformers for those that keep a state, `tokens` are [B, T] for those that ask for them. Returns
    [B, T, hidden_size], after the last norm."""
    positions = positions + first_position(base)
    given: dict[str, Any] = {"inputs_embeds": hidden, "position_ids": positions, "use_cache": cache is not None}
    if asks_for_tokens(base):
        given["per_layer_inputs"] = base.get_per_layer_inputs(tokens)
    if cache is not None:
        takes = inspect.signature(base.forward).parameters
        given["cache_params" if "cache_params" in takes else "past_key_values"] = cache
    output: Tensor = base(**given)[0]
    return output
