"""Texts for people, JSON texts, and texts that wait to become tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

SHOWN = 40


def shown(text: str) -> str:
    """The end of a text, as `repr` writes it."""
    return repr(text) if len(text) <= SHOWN else "..." + repr(text[-SHOWN:])


def json_text(value: Any) -> str:
    """The JSON text of what JSON has. Raises as `json.dumps` does, and ValueError for NaN and infinities, which JSON
    has not: it says where one is."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError(_not_finite(value) or str(error)) from None


def _not_finite(value: Any) -> str:
    """What to do about a number that is none of JSON; "": there is none."""
    left: list[tuple[str, Any]] = [("$", value)]
    seen: set[int] = set()
    while left:
        path, one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return f"{path} is {one}, which is no number of JSON: give null (None) or a text for it"
        if isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            parts = one.items() if isinstance(one, dict) else enumerate(one)
            left += [(f"{path}[{key!r}]", part) for key, part in parts]
    return ""


def mended(text: str) -> str:
    """The text with "?" in place of halves of surrogate pairs, which JSON can name, and which cannot be sent."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@dataclass(frozen=True)
class Noted:
    """Text that waits to be tokenized."""

    text: str
    special_tokens: bool


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens two texts have in common."""
    length = min(len(left), len(right))
    return next((n for n in range(length) if left[n] != right[n]), length)


def common_beginning(texts: Sequence[list[int]]) -> int:
    """How many first tokens all of these texts have in common: the first and the last of them in order differ most."""
    return common_length(min(texts), max(texts))


def tokenize_noted(noted: Sequence[Noted], tokenize: Callable[[str, bool], list[int]]) -> list[int]:
    """Tokens of texts one behind the other. All are one piece, unless there are special tokens in them and not all
    texts are read alike: then what is plain is tokenized apart."""
    text, mode = "".join(one.text for one in noted), noted[0].special_tokens
    tokens = tokenize(text, mode)
    if all(one.special_tokens is mode for one in noted) or tokens == tokenize(text, not mode):
        return tokens
    parts = groupby(noted, lambda one: one.special_tokens)
    runs = [("".join(one.text for one in run), mode) for mode, run in parts]
    return [token for text, mode in runs for token in tokenize(text, mode)]
