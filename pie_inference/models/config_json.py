"""config.json of a checkpoint, read key by key: errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError

MOST_LAYERS = 512
"""More are taken for a mistake: lists of them would take memory before a tensor is missed."""


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

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, at least 1; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"config.json: {key} must be a whole number above 0, not {value!r}")
        if key == "num_hidden_layers" and value > MOST_LAYERS:
            raise CheckpointError(f"config.json: {key} must be 1 to {MOST_LAYERS}, not {value}")
        return value

    def optional_whole(self, key: str) -> int | None:
        """A whole number, at least 1, or None if it is missing or null. Raises CheckpointError."""
        return None if self._values.get(key) is None else self.whole(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not is_number(value, above=0):
            raise CheckpointError(f"config.json: {key} must be a number above 0, not {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None if it is missing or null. Raises CheckpointError."""
        return None if self._values.get(key) is None else self.number(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A string; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"config.json: {key} must be a string, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty if it is missing or null. Raises CheckpointError."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise CheckpointError(f"config.json: {key} must be a list, not {value!r}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean; `default` if it is missing or null. Raises CheckpointError."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}")
        return value

    def section(self, key: str) -> Mapping[str, Any]:
        """An object; empty if it is missing or null. Raises CheckpointError."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise CheckpointError(f"config.json: {key} must be an object, not {value!r}")
        return value

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise CheckpointError(f"config.json: {key!r} is missing")
        return value
