"""config.json of a checkpoint, read key by key: errors name the key, its value, and what to do.

`check_values` looks at what any model may have, whoever's code runs it; the rest is checked where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError

MOST_LAYERS = 512
"""More are taken for a mistake: lists of them would take memory before a tensor is missed."""
LARGEST = 2**31 - 1
"""Sizes, positions and tokens are 32-bit numbers in batches and kernels."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), (1, MOST_LAYERS)),
    "head_dim": (1, 1 << 16),  # frequencies are computed for them
    **dict.fromkeys((*EXPERTS, "num_experts_per_tok"), (0, LARGEST)),
    **dict.fromkeys(("hidden_size", "vocab_size", "intermediate_size", "moe_intermediate_size"), (1, LARGEST)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), (1, LARGEST)),
    **dict.fromkeys(("max_position_embeddings", "sliding_window", "decoder_sparse_step"), (1, LARGEST)),
}
"""Keys of whole numbers, or of lists of them, with the least and the most; families may ask for more."""
NOT_NEGATIVE = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta")
"""Keys of numbers that are at least 0."""
PARTS = ("text_config", "thinker_config", "rope_parameters", "rope_scaling", "full_attention", "sliding_attention")
"""Objects within that have such keys, too."""


def wrong(key: str, wanted: str, value: object) -> CheckpointError:
    """The error for a value that is not as it must be."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
    return CheckpointError(
        f"config.json: {key} must be {wanted}, not {shown}: correct it there, or get the checkpoint's files again"
    )


def check_values(config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for values that make no sense in a model of any kind. Keys that are missing or null are
    left to whoever reads them."""
    if config.get("is_causal") is False:
        raise CheckpointError(
            "config.json: is_causal false is not supported: its tokens see those behind them, so "
            "what is computed of a text would change with each token"
        )
    unused = "sliding_window" if config.get("use_sliding_window") is False else None
    for key, value in config.items():
        if value is None or key == unused:
            continue
        if key in PARTS and isinstance(value, Mapping):
            check_values(value)
        elif key in BOUNDS:
            for each in value if isinstance(value, list) and value else [value]:
                check_whole(key, each, least=0)
        elif key in NOT_NEGATIVE and not is_number(value, above=-1e-300):
            raise wrong(key, "a number that is at least 0", value)
    check_heads(config.get("num_attention_heads"), config.get("num_key_value_heads"))
    experts = next((config[key] for key in EXPERTS if config.get(key)), None)
    check_experts(config.get("num_experts_per_tok"), experts)


def check_whole(key: str, value: object, least: int = 1) -> None:
    """Raises CheckpointError for what is no whole number within the bounds of `key`."""
    lowest, most = BOUNDS.get(key, (least, LARGEST))
    lowest = max(least, lowest)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= most:
        raise wrong(key, f"a whole number from {lowest} to {most}", value)


def check_heads(heads: object, kv_heads: object) -> None:
    """Raises CheckpointError if key-value heads do not divide attention heads."""
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise wrong("num_attention_heads", f"a multiple of num_key_value_heads, which is {kv_heads}", heads)


def check_experts(chosen: object, experts: object) -> None:
    """Raises CheckpointError if a token uses more experts than there are, or none of them."""
    if isinstance(chosen, int) and isinstance(experts, int) and not 1 <= chosen <= experts:
        raise wrong("num_experts_per_tok", f"a whole number from 1 to {experts}, the number of experts", chosen)


def is_number(value: object, *, above: float) -> bool:
    """Whether it is a finite number above `above`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > above


class ConfigJson:
    """The values of a config.json, with a family's defaults for keys that it leaves out."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._values = {**(defaults or {}), **values}

    def within(self, key: str) -> ConfigJson:
        """The object at `key`, with the architecture of this one; this one itself if there is no such object."""
        inner = self.section(key)
        return ConfigJson({**inner, "architecture": self.get("architecture")}) if inner else self

    def refuse(self, *keys: str) -> None:
        """Raises CheckpointError if one of `keys` is set to anything but null, false or an empty list."""
        for key in keys:
            if self.get(key):
                raise CheckpointError(f"config.json: {key} {self.get(key)!r} is not supported")

    def with_defaults(self, **defaults: Any) -> ConfigJson:
        """A copy with `defaults` for missing keys; a key that is null stays null."""
        return ConfigJson(self._values, defaults)

    def get(self, key: str, default: Any = None) -> Any:
        """The unchecked value; `default` if it is missing or null."""
        value = self._values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, at least `least`; `default` if it is missing or null. Raises CheckpointError."""
        value: int = self._required(key, default)
        check_whole(key, value, least)
        return value

    def optional_whole(self, key: str) -> int | None:
        """A whole number, at least 1, or None if it is missing or null. Raises CheckpointError."""
        return None if self._values.get(key) is None else self.whole(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not is_number(value, above=0):
            raise wrong(key, "a number above 0", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None if it is missing or null. Raises CheckpointError."""
        return None if self._values.get(key) is None else self.number(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A string; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise wrong(key, "a string", value)
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty if it is missing or null. Raises CheckpointError."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise wrong(key, "a list", value)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise wrong(key, "true or false", value)
        return value

    def section(self, key: str) -> Mapping[str, Any]:
        """An object; empty if it is missing or null. Raises CheckpointError."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise wrong(key, "an object", value)
        return value

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise CheckpointError(
                f"config.json: {key!r} is missing or null, and this architecture needs it: add it, or get the "
                "checkpoint's files again"
            )
        return value
