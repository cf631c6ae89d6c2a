"""A bound on how deep a text of a guest may nest, looked at before any parser sees it.

Parsers, and all that walks over what they give (`json`, `repr`, chat templates), call themselves once a level, on the
native stack. What CPython allows differs from version to version, and does not fit every stack: on a guest's fiber, an
overflow ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import InvalidArgument

MAX_DEPTH = 128
"""Levels of lists and objects within each other. Schemas of real tools have about ten."""
PIECE = 1 << 20
"""Bytes that are looked at together: each takes ten bytes of memory meanwhile."""


def _steps() -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    steps = np.zeros(256, np.int8)
    steps[[ord("["), ord("{")]] = 1
    steps[[ord("]"), ord("}")]] = -1
    return steps


_STEP = _steps()


def check_depth(text: str, what: str, most: int = MAX_DEPTH) -> None:
    """Raises InvalidArgument if brackets and braces outside of strings of a JSON text are open more than `most` deep.
    Time is linear in the text; most texts have so few brackets that counting these is enough."""
    if text.count("[") + text.count("{") <= most:
        return
    if depth_of(text.encode("utf-8", "surrogatepass")) > most:
        raise InvalidArgument(f"{what} nests lists and objects deeper than {most} levels: make it flatter")


def _without_escapes(text: bytes) -> Iterator[bytes]:
    """The text, piece by piece, so that other threads have their turns: with something else in place of each backslash
    and what it escapes. Backslashes pair up from the left."""
    rest = b""
    for begin in range(0, len(text), PIECE):
        piece = rest + text[begin : begin + PIECE]
        rest = piece[-1:] if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(rest)].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        if piece:
            yield piece


def depth_of(text: bytes) -> int:
    """The most brackets and braces that are open at a time, in as much of the text as is JSON; there, quotes that no
    backslash escapes begin and end strings in turn."""
    most = level = quotes = 0
    for piece in _without_escapes(text):
        characters = np.frombuffer(piece, np.uint8)
        inside = np.cumsum(characters == ord('"'), dtype=np.int32) + quotes & 1
        steps = _STEP[characters]
        steps[inside == 1] = 0
        levels = np.cumsum(steps, dtype=np.int32) + level
        most, level, quotes = max(most, int(levels.max())), int(levels[-1]), int(inside[-1])
    return most
