"""The code of transformers: which class serves a config.json, and modules of it without memory. Everything that
depends on how transformers is made is here and in `weights.py`."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AttentionInterface
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ...errors import CheckpointError
from ..config_json import MOST_LAYERS

VERSION = transformers.__version__
STATES = {"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "recurrent", "linear"}
"""Kinds of layers that keep a state beside keys and values."""

SEEING = ("aya_vision", "cohere2_vision", "internvl", "llava", "llava_next", "mistral3")
"""Types that see whose text model is a causal model as it stands: it serves text."""

NOT_OF_MODEL = ("auto_map", "transformers_version", "quantization_config")
"""Keys of config.json that do not change what a model computes."""
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
"""Keys whose numbers transformers does not check."""

transformers.utils.logging.set_verbosity(logging.CRITICAL)

Attend = Callable[..., Tensor]
"""Attention(module, query, key, value, what else transformers says) of [batch, heads, rows, width] to
[batch, rows, heads, width]."""

_attending: list[Attend] = []


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **more: Any) -> Any:
    """What transformers calls in place of an attention of its own."""
    return _attending[-1](module, query, key, value, mask, **more), None


NAME = "pie_pages"
AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Attention by `attend` within."""
    _attending.append(attend)
    try:
        yield
    finally:
        _attending.pop()


def first_line(error: BaseException) -> str:
    """What an error of foreign code says, in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


def read(raw: Mapping[str, Any], architecture: str) -> Any:
    """The configuration of transformers, or that of its text model. Raises CheckpointError."""
    kind = raw.get("model_type")
    named = kind if isinstance(kind, str) else ""
    names = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if named in SEEING else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    known = names.get(named)
    if known != architecture:
        raise CheckpointError(
            f"config.json: architecture {architecture} is not supported: Pie has no such family, and transformers "
            f"{VERSION} has {known or 'no causal model'} for model_type {kind!r}"
        )
    for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        _check_layers(key, raw.get(key, 1))
    for key in SIZES:
        if isinstance(size := raw.get(key), int) and size < 1:
            raise CheckpointError(f"config.json: {key} must be a whole number above 0, not {size}")
    values = {key: value for key, value in raw.items() if key not in NOT_OF_MODEL}
    try:
        config = CONFIG_MAPPING[named].from_dict(_with_floats(values))
    except RecursionError:
        raise CheckpointError("config.json: its objects are nested too deeply") from None
    except Exception as error:
        raise CheckpointError(f"config.json: transformers {VERSION} does not accept it: {first_line(error)}") from None
    if named in SEEING:
        whole, config = config, config.get_text_config(decoder=True)
        config.tie_word_embeddings = whole.tie_word_embeddings
    elif config.get_text_config(decoder=True) is not config and not getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(f"config.json: model_type {named!r}: models of more than text are not supported")
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise CheckpointError(f"config.json: text_config: model_type {config.model_type!r} is no causal model")
    vars(config).pop("quantization_config", None)  # of its text model
    _check(config)
    return config


def _with_floats(value: Any) -> Any:
    """What JSON has no number for is written by transformers as an object."""
    if isinstance(value, list):
        return [_with_floats(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"}:
        return float(value["__float__"])
    return {key: _with_floats(each) for key, each in value.items()}


def _check(config: Any) -> None:
    """Raises CheckpointError for what is refused before a module is made."""
    layers = getattr(config, "num_hidden_layers", None)
    _check_layers("num_hidden_layers", layers)
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if kinds is not None and len(kinds) != layers:
            raise CheckpointError(f"config.json: {name} has {len(kinds)} entries for {layers} layers")
    if getattr(config, "is_encoder_decoder", None):
        raise CheckpointError("config.json: is_encoder_decoder: models with an encoder are not supported")


def _check_layers(key: str, layers: object) -> None:
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise CheckpointError(f"config.json: {key} must be 1 to {MOST_LAYERS}, not {layers!r}")


def class_of(config: Any) -> Any:
    """The class of a causal model."""
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])


def why_state(config: Any) -> str:
    """Which key of config.json says that the model keeps a state beside keys and values; "": it keeps none."""
    for name in ("layer_types", "layers_block_type"):
        found = sorted(STATES & set(getattr(config, name, None) or ()))
        if found:
            return f"{name} has {found[0]!r}"
    return f"model_type {config.model_type!r}" if getattr(class_of(config), "_is_stateful", False) else ""


def make(config: Any, dtype: torch.dtype, device: str, attention: str = NAME) -> Any:
    """A model with the weights of nobody; on the device `meta` it takes no memory. Raises CheckpointError."""
    kind = class_of(config)
    experts = {}
    if attention == NAME and kind._can_set_experts_implementation():
        experts = {"experts_implementation": "grouped_mm"}
    try:
        with torch.device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = copy.deepcopy(config)
            own.use_cache = False
            return kind._from_config(own, dtype=dtype, attn_implementation=attention, **experts).eval()
    except KeyError as error:
        reason = "attends beside its interface of attention" if NAME in str(error) else f"needs {error}"
        raise CheckpointError(f"config.json: {kind.__name__} is not supported: transformers' code {reason}") from None
    except Exception as error:
        raise CheckpointError(
            f"config.json: {kind.__name__} of transformers {VERSION} cannot be made of it: {first_line(error)}"
        ) from None
