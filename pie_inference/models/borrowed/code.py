"""The code of transformers: which class serves a config.json, and modules of it without memory. Everything that
depends on how transformers is made is here and in `filling`."""

from __future__ import annotations

import copy
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AttentionInterface
from transformers.core_model_loading import build_glob_alternation
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D

from ...errors import CheckpointError
from ..config_json import check_whole, wrong
from .parts import text_part, with_numbers

VERSION = transformers.__version__
STATES = {"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "recurrent", "linear"}
"""Kinds of layers that keep a state beside keys and values."""

SEEING: Mapping[str, str] = {
    **MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
"""Types of more than text, each with its class: the part of it that makes text serves."""

CAUSAL: Mapping[str, str] = {
    **{kind: name for kind, name in SEEING.items() if name.endswith("ForCausalLM")},
    **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
"""Types of text, each with its class; some are only known to transformers as those of more than text (Mistral 4)."""

THINKER = "thinker_config"
"""Key of the part that makes text, of models that speak."""

NOT_OF_MODEL = ("auto_map", "transformers_version", "quantization_config")
"""Keys of config.json that do not change what a model computes."""
FIELD = re.compile(r"Validation error for field '(\w+)'")
"""How transformers says that a value is of another type."""
transformers.utils.logging.set_verbosity(logging.CRITICAL)

Attend = Callable[..., Tensor]
"""Attention(module, query, key, value, what else transformers says) of [batch, heads, rows, width] to
[batch, rows, heads, width]."""

_attending: ContextVar[Attend] = ContextVar("_attending")  # each thread has its own


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **more: Any) -> Any:
    """What transformers calls in place of an attention of its own."""
    return _attending.get()(module, query, key, value, mask, **more), None


NAME = "pie_pages"
AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Attention by `attend` within."""
    before = _attending.set(attend)
    try:
        yield
    finally:
        _attending.reset(before)


def running() -> Any:
    """What attends now."""
    return _attending.get()


def first_line(error: BaseException) -> str:
    """What an error of foreign code says, in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


def _reason(error: BaseException) -> str:
    """What transformers' checks of a configuration say, without the errors that they put around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error.args[0] if error.args else error).split())[:300]


def read(raw: Mapping[str, Any], architecture: str) -> Any:
    """The configuration of transformers; that of its text model alone where this has a class of its own and the whole
    cannot be made. Raises CheckpointError."""
    kind = raw.get("model_type")
    if kind == "mistral" and raw.get("layer_types"):  # as transformers takes it
        return read({**raw, "model_type": "ministral"}, architecture.replace("Mistral", "Ministral"))
    named = kind if isinstance(kind, str) else ""
    known = CAUSAL.get(named) or SEEING.get(named)
    if known and _letters(architecture) in (_letters(known), _letters(f"{named}ForCausalLM")):
        architecture = known
    if architecture not in (known, SEEING.get(named)):
        own = [each for each, name in CAUSAL.items() if name == architecture]
        told = f"; if it is a {architecture} of transformers, set model_type to {own[0]!r}" if own and not known else ""
        if architecture == MODEL_MAPPING_NAMES.get(named):
            told = (
                "; it has no head: of models for embeddings, those of Pie's own families serve, such as Qwen3-Embedding"
            )
        raise CheckpointError(
            f"config.json: architecture {architecture} is not supported: Pie has no such family, and transformers "
            f"{VERSION} has {known or 'no causal model'} for model_type {kind!r}{told}"
        )
    if isinstance(raw.get(THINKER), Mapping):
        return read(raw[THINKER], SEEING.get(str(raw[THINKER].get("model_type")), ""))
    values = {key: value for key, value in raw.items() if key not in NOT_OF_MODEL}
    try:
        config = CONFIG_MAPPING[named].from_dict(_with_floats(values))
        if _is_flat(values, config):
            text_values = {key: value for key, value in values.items() if key not in ("model_type", "vision_config")}
            config = CONFIG_MAPPING[named].from_dict(_with_floats({**values, "text_config": text_values}))
        text = text_of(config)
    except RecursionError:
        raise CheckpointError("config.json: its objects are nested too deeply") from None
    except Exception as error:
        if field := FIELD.search(str(error)):
            raise _wrong_field(field[1], values) from None
        raise CheckpointError(f"config.json: transformers {VERSION} does not accept it: {_reason(error)}") from None
    vars(text).pop("quantization_config", None)
    _check(text)
    of_text = getattr(transformers, architecture).config_class is type(text)
    if text is not config and (of_text or _needs_timm(config)):
        text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
        config = text
    if config.model_type not in (CAUSAL if config is text else SEEING):
        raise CheckpointError(f"config.json: model_type {config.model_type!r} is no causal model")
    return config


def _is_flat(values: Mapping[str, Any], config: Any) -> bool:
    """Whether those of the text model are in config.json itself, as older versions of transformers wrote them, where
    the type does not look for them (GLM-4.1V)."""
    if "text_config" in values or "text_config" not in config.sub_configs:
        return False
    keys = ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")
    return any(values[key] != getattr(config.text_config, key, None) for key in keys if key in values)


def _letters(name: str) -> str:
    """The letters and digits of a name: code in checkpoints writes names of types in other ways than transformers."""
    return "".join(filter(str.isalnum, name)).lower()


def _wrong_field(key: str, values: Mapping[str, Any]) -> CheckpointError:
    """What to say of a value that is not of its type in transformers, whose message names types of Python."""
    parts = [values, *(part for part in values.values() if isinstance(part, Mapping))]
    value = next((part[key] for part in parts if key in part), None)
    return wrong(key, f"of the type that transformers {VERSION} asks for", value)


def text_of(config: Any) -> Any:
    """The configuration of the text model; that of a model of nothing else is its own."""
    return config if getattr(config, "is_encoder_decoder", False) else config.get_text_config(decoder=True)


def _needs_timm(config: Any) -> bool:
    """Whether a part that sees can only be made with another package."""
    return any(hasattr(getattr(config, name, None), "architecture") for name in config.sub_configs)


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
    check_whole("num_hidden_layers", layers)
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if kinds is not None and len(kinds) != layers:
            raise CheckpointError(f"config.json: {name} has {len(kinds)} entries for {layers} layers")
    if getattr(config, "is_encoder_decoder", None):
        raise CheckpointError("config.json: is_encoder_decoder: models with an encoder are not supported")


def class_of(config: Any) -> Any:
    """The class of a model."""
    names = CAUSAL if text_of(config) is config else SEEING
    return getattr(transformers, names[config.model_type])


def why_state(config: Any) -> str:
    """The key of config.json that says that the model keeps a state beside keys and values; "": it keeps none."""
    config = text_of(config)
    for name in ("layer_types", "layers_block_type"):
        found = sorted(STATES & set(getattr(config, name, None) or ()))
        if found:
            return f"{name} has {found[0]!r}"
    known = config.model_type in CAUSAL
    return f"model_type {config.model_type!r}" if known and getattr(class_of(config), "_is_stateful", False) else ""


def _prepared(config: Any, attention: str) -> Any:
    """A copy that says how a module of it attends and runs experts; its parts that see do both by code of their own."""
    own = copy.deepcopy(config)
    text = text_of(own)
    own.use_cache = text.use_cache = False
    own._attn_implementation = "eager"
    text._attn_implementation = attention
    kind = class_of(text) if text.model_type in CAUSAL else class_of(own)
    if attention == NAME and kind._can_set_experts_implementation():
        text._experts_implementation = "grouped_mm"
    return own


def _modules(kind: Any, config: Any, dtype: torch.dtype, attention: str) -> Any:
    """A model as its class makes it. Older code has a table of attentions, or one alone, which is a method `_attn`."""
    try:
        model = kind._from_config(_prepared(config, attention), dtype=dtype)
    except KeyError as error:
        if NAME not in str(error):
            raise
        model = kind._from_config(_prepared(config, "eager"), dtype=dtype)
        text_of(model.config)._attn_implementation = NAME  # so that nobody makes a mask
        if not any(map(_attends_alone, model.modules())):
            raise
    for module in filter(_attends_alone, model.modules() if attention == NAME else ()):
        module._attn = partial(_attend_alone, module)
    if attention == NAME:
        _turn_weights(model)
    _keep_wide(model, dtype)
    return model


def _turn_weights(model: Any) -> None:
    """Makes linear layers of the modules of GPT-2 whose weights are [in_features, out_features]."""
    for name, module in [each for each in model.named_modules() if type(each[1]) is Conv1D]:
        linear: Any = nn.Linear(module.nx, module.nf, dtype=module.weight.dtype)
        linear.is_turned = True
        model.set_submodule(name, linear)


def _keep_wide(model: Any, dtype: torch.dtype) -> None:
    """Makes float32 of the parameters and buffers that `from_pretrained` keeps so in a model of this dtype, such as
    biases by which routers choose experts."""
    if wide := list(model._get_dtype_plan(dtype)):
        pattern, *_ = build_glob_alternation(wide)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if pattern.search(name):
                tensor.data = tensor.data.float()


def _attends_alone(module: Any) -> bool:
    method = getattr(module, "_attn", None)
    return method is not None and list(inspect.signature(method).parameters)[:3] == ["query", "key", "value"]


def _attend_alone(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None) -> Any:
    """Attention in place of a method `_attn`."""
    divisor = getattr(module, "scale_attn", getattr(module, "norm_factor", 1.0))
    window = module.config.window_size if getattr(module, "attention_type", "") == "local" else None
    query, key = query.to(value.dtype), key.to(value.dtype)
    found, _ = _attention(module, query, key, value, mask, scaling=1 / divisor, sliding_window=window)
    return found.transpose(1, 2), None


def make(config: Any, dtype: torch.dtype, device: str, attention: str = NAME) -> Any:
    """A model with the weights of nobody, the same each time; on the device `meta` it takes no memory. Of a model of
    more than text, it is the part that makes text. Raises CheckpointError."""
    kind, sees = class_of(config), bool(config.sub_configs)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta" if sees else device), warnings.catch_warnings():
            torch.default_generator.manual_seed(0)
            warnings.simplefilter("ignore")
            model = _modules(kind, config, dtype, attention).eval()
        return with_numbers(text_part(model), device) if sees else model
    except KeyError as error:
        values = text_of(config).to_dict()
        for part in (values, *(each for each in values.values() if isinstance(each, Mapping))):
            for key in (key for key, value in part.items() if isinstance(value, str) and error.args == (value,)):
                raise wrong(key, f"a name that transformers {VERSION} knows", part[key]) from None
        reason = "attends beside its interface of attention" if NAME in str(error) else f"needs {error}"
        raise CheckpointError(f"config.json: {kind.__name__} is not supported: transformers' code {reason}") from None
    except Exception as error:
        raise CheckpointError(
            f"config.json: {kind.__name__} of transformers {VERSION} cannot be made of it: {first_line(error)}"
        ) from None
