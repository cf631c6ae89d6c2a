"""adapter_config.json, as PEFT writes it: what of it is served, and what is refused by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AdapterError
from .folder import AdapterFolder
from .patterns import full_matches, suffix_matches

CONFIG_FILE = "adapter_config.json"
MOST_CONFIG_BYTES = 1 << 20
MOST_RANK = 1024

ALL_LINEAR = "all-linear"
LAYER_INDEX = re.compile(r".*?\.[^.]*\.(\d+)\.")

CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` with which PEFT changes the base weights, so the adapter alone is wrong."""

READ = {
    *("r", "lora_alpha", "target_modules", "exclude_modules", "bias", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "init_lora_weights", "peft_type", "base_model_name_or_path"),
}
IGNORED = {
    *("auto_mapping", "peft_version", "task_type", "revision", "inference_mode", "lora_dropout", "megatron_config"),
    *("megatron_core", "loftq_config", "eva_config", "qalora_group_size", "runtime_config", "ensure_weight_tying"),
    "fan_in_fan_out",  # how the base weight is stored, which is not touched
}
"""Keys that change how an adapter is trained or stored, not what it computes."""

INSTEAD = {
    "modules_to_save": "it has whole layers of its own: train it without, or merge it into the model",
    "use_dora": "DoRA divides by norms of the whole weight: merge it into the model",
    "target_parameters": "experts of a layer take no adapters: name layers of attention as target_modules, or merge it",
    "trainable_token_indices": "it changes the embedding table: merge it into the model",
}
"""What can be done about keys that are refused."""


@dataclass(frozen=True)
class PeftConfig:
    """The configuration of a LoRA adapter."""

    rank: int
    alpha: float
    rank_stabilized: bool
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    ranks: Mapping[str, int]  # by pattern
    alphas: Mapping[str, float]  # by pattern
    layers: Collection[int] | None  # None: all
    layers_patterns: tuple[str, ...]
    base: str  # what it says of its base model

    def target_names(self, names: Sequence[str]) -> set[str]:
        """The modules that it adapts, of those with these names. Raises AdapterError."""
        found = self._named(self.targets, names)
        if not isinstance(self.targets, str) and self.layers is not None:
            found = {name for name in found if self._layer_of(name) in self.layers}
        return found - (self._named(self.excluded, names) if self.excluded else set())

    def _named(self, wanted: str | tuple[str, ...], names: Sequence[str]) -> set[str]:
        if isinstance(wanted, str):
            return set(names) if wanted.lower() == ALL_LINEAR else full_matches([wanted], names)[0]
        return {name for name in names if any(name == one or name.endswith(f".{one}") for one in wanted)}

    def _layer_of(self, name: str) -> int | None:
        patterns = [re.compile(rf"(?:^|.*?\.){one}\.(\d+)\.") for one in self.layers_patterns] or [LAYER_INDEX]
        found = next((match for pattern in patterns if (match := pattern.match(name))), None)
        return int(found[1]) if found else None

    def ranks_and_scales(self, names: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Rank and scale of each of these modules. Raises AdapterError."""
        ranks, alphas = _by_pattern(self.ranks, names), _by_pattern(self.alphas, names)
        found = {}
        for name in names:
            rank, alpha = ranks.get(name, self.rank), alphas.get(name, self.alpha)
            found[name] = rank, alpha / (math.sqrt(rank) if self.rank_stabilized else rank)
        return found


def _by_pattern(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The value of each name that a pattern matches: that of the first one."""
    patterns = list(values)
    found: dict[str, Any] = {}
    for pattern, matching in zip(patterns, suffix_matches(patterns, names), strict=True):
        for name in matching:
            found.setdefault(name, values[pattern])
    return found


def read_peft_config(folder: AdapterFolder) -> PeftConfig:
    """Reads adapter_config.json. Raises AdapterError, with the key that cannot be served."""
    data = folder.read(CONFIG_FILE, MOST_CONFIG_BYTES, "; an adapter is a folder as PEFT saves it")
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{CONFIG_FILE}: unreadable: {error}") from None
    if not isinstance(given, dict):
        raise AdapterError(f"{CONFIG_FILE}: not a JSON object")
    try:
        return _read(given)
    except AdapterError as error:
        raise AdapterError(f"{CONFIG_FILE}: {error}") from None


def _read(given: Mapping[str, Any]) -> PeftConfig:
    _refuse(given)
    layers = given.get("layers_to_transform")
    if isinstance(layers, int) and not isinstance(layers, bool):
        layers = [layers]
    if layers is not None and not (isinstance(layers, list) and all(type(one) is int for one in layers)):
        raise AdapterError("layers_to_transform must be numbers of layers")
    return PeftConfig(
        rank=_rank("r", given.get("r", 8)),
        alpha=_number("lora_alpha", given.get("lora_alpha", 8)),
        rank_stabilized=bool(given.get("use_rslora")),
        targets=_names("target_modules", given.get("target_modules")),
        excluded=_names("exclude_modules", given.get("exclude_modules") or []),
        ranks={key: _rank("rank_pattern", value) for key, value in _table(given, "rank_pattern").items()},
        alphas={key: _number("alpha_pattern", value) for key, value in _table(given, "alpha_pattern").items()},
        layers=frozenset(layers) if layers else None,
        layers_patterns=_layer_patterns(given.get("layers_pattern")),
        base=str(given.get("base_model_name_or_path") or "unknown"),
    )


def _refuse(given: Mapping[str, Any]) -> None:
    """Raises AdapterError for what would be computed wrong."""
    if given.get("peft_type") != "LORA":
        raise AdapterError(f"peft_type is {str(given.get('peft_type'))[:50]!r}; only LORA is served")
    if given.get("bias", "none") != "none":
        raise AdapterError(
            f"bias is {str(given['bias'])[:50]!r}; only none is served: train the adapter without biases"
        )
    start = given.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGE_BASE):
        raise AdapterError(
            f"init_lora_weights is {start[:50]!r}, which changes the base model's weights: save the adapter with "
            "PEFT's path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        )
    for key in given.keys() - READ - IGNORED:
        if given[key]:
            what = INSTEAD.get(key, "this feature of PEFT is not served: train without it, or merge it into the model")
            raise AdapterError(f"{key[:80]} is set: {what}")


def _rank(key: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_RANK:
        raise AdapterError(f"{key} must be a rank of 1 to {MOST_RANK}, not {str(value)[:50]}")
    return value


def _number(key: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # of an integer that no float can hold
        number = math.inf
    if not math.isfinite(number):
        raise AdapterError(f"{key} must be a number, not {str(value)[:50]}")
    return number


def _names(key: str, value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value) and (value or key != "target_modules"):
        return tuple(value)
    raise AdapterError(f"{key} must be a list of names, a regular expression or {ALL_LINEAR!r}, not {str(value)[:50]}")


def _table(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, dict):
        raise AdapterError(f"{key} must be an object, not {str(value)[:50]}")
    return value


def _layer_patterns(value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(one, str) and re.fullmatch(r"\w*", one) for one in found):
        raise AdapterError("layers_pattern must be names of lists of layers")
    return tuple(one for one in found if one)
