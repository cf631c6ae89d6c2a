"""A causal model in two parts: its base, which is its layers, and its head by its own code, with the caps and factors
of logits. There the base is replaced by a stub."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import CheckpointError
from .code import text_of

FACTORS = {"falcon_h1": "embedding_multiplier"}
"""Types whose base multiplies the vectors of tokens, but not vectors that it is given; its attribute has the factor."""


class _Output(tuple[Tensor]):
    """Hidden states, as a base gives them: also by name. It has every other attribute that a head may pass on: None.
    An output of transformers takes as long as the rest of a head."""

    @property
    def last_hidden_state(self) -> Tensor:
        """The only one."""
        return self[0]

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

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return _Output((inputs_embeds,))


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


class Base:
    """Runs the layers of transformers' module."""

    def __init__(self, model: Any) -> None:
        """Raises CheckpointError."""
        base: Any = base_of(model)
        self.module = base
        embeddings: Any = getattr(base, "embeddings", None)
        counts = hasattr(embeddings, "create_position_ids_from_input_ids")
        self.first_position = int(embeddings.padding_idx) + 1 if counts else 0
        """The position of the first token: 0, but where code counts from behind the one of padding."""
        per_layer = getattr(base.config, "hidden_size_per_layer_input", None)
        self.asks_for_tokens = bool(per_layer) and hasattr(base, "get_per_layer_inputs")
        """Whether layers have embeddings of their own."""
        self.factor: float = getattr(base, FACTORS.get(base.config.model_type, ""), 1.0)
        """What the vectors of tokens are multiplied by before it gets them."""
        takes = inspect.signature(base.forward).parameters
        names = ("cache", "cache_params", "past_key_values")  # the first as of transformers 5.24
        self._cache_name = next((name for name in names if name in takes), "past_key_values")

    def __call__(
        self, hidden: Tensor, positions: Tensor, cache: object | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """Vectors [B, T, hidden_size] at positions [B, T]; `cache` is a `Cache` of transformers for those that keep a
        state, `tokens` are [B, T] for those that ask for them. Returns [B, T, hidden_size], after the last norm."""
        if self.first_position:
            positions = positions + self.first_position
        given: dict[str, Any] = {"inputs_embeds": hidden, "position_ids": positions, "use_cache": cache is not None}
        if self.asks_for_tokens:
            given["per_layer_inputs"] = self.module.get_per_layer_inputs(tokens)
        if cache is not None:
            given[self._cache_name] = cache
        output: Tensor = self.module(**given)[0]
        return output
