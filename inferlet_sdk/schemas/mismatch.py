"""Errors of values that do not fit their type.

ValueError
└── SchemaMismatch     a value is not what its type wants
    └── Truncated      the text of a value ended before the value did
TypeError
└── UnsupportedType    an annotation that JSON cannot express, or that is not understood
"""

from __future__ import annotations

import json
import re

_LONGEST_TOLD = 60
_NAME = re.compile(r"[A-Za-z_]\w*")

Path = tuple[str | int, ...]
"""Where a value is within another: keys of objects and places of lists."""


def shown_path(path: Path) -> str:
    """A path as JSONPath writes it: `$.items[2].price`."""
    return "$" + "".join(map(_shown_step, path))


def _shown_step(step: str | int) -> str:
    if isinstance(step, str) and _NAME.fullmatch(step):
        return f".{step}"
    return f"[{json.dumps(step)}]"


def told(value: object) -> str:
    """A value as JSON, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _LONGEST_TOLD else text[: _LONGEST_TOLD - 3] + "..."


class SchemaMismatch(ValueError):
    """A value that its type refuses. `path` says where it is; `text` is what a model wrote, if a model did."""

    def __init__(self, reason: str, path: Path = (), text: str = "") -> None:
        super().__init__(f"{shown_path(path)}: {reason}")
        self.path = path
        self.reason = reason
        self.text = text


class Truncated(SchemaMismatch):
    """The text ended within the value: raise `max_tokens`."""


class UnsupportedType(TypeError):
    """An annotation that has no JSON Schema here; the message names it and says what to use."""


def mismatch(path: Path, wanted: str, value: object) -> SchemaMismatch:
    """The error for a value of another type."""
    return SchemaMismatch(f"expected {wanted}, got {told(value)}", path)
