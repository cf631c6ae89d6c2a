"""A bound on how deep a text of a guest may nest, looked at before any parser sees it.

Parsers, and all that walks over what they give (`json`, `repr`, chat templates), call themselves once a level, on the
native stack. What CPython allows differs from version to version, and does not fit every stack: on a guest's fiber, an
overflow ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class _Piece(NamedTuple):
    """`levels`: how many brackets and braces are open behind each character from `begin` on; `commas`: where commas
    are, from there."""

    begin: int
    levels: NDArray[np.int32]
    commas: NDArray[np.intp]

    @property
    def outermost(self) -> NDArray[np.intp]:
        """The commas of the list or object that the text is, from `begin` on."""
        found: NDArray[np.intp] = self.commas[self.levels[self.commas] == 1]
        return found


def _pieces(text: bytes) -> Iterator[_Piece]:
    """What has to be looked at, in as much of the text as is JSON. There, quotes that no backslash escapes begin and
    end strings in turn."""
    level = quotes = end = 0
    for piece in _without_escapes(text):
        begin, end = end, end + len(piece)
        if quotes and b'"' not in piece:
            continue  # all of it is in a string
        characters = np.frombuffer(piece, np.uint8)
        inside = np.cumsum(characters == ord('"'), dtype=np.int32) + quotes & 1
        steps = _STEP[characters]
        steps[inside == 1] = 0
        levels = np.cumsum(steps, dtype=np.int32) + level
        yield _Piece(begin, levels, np.flatnonzero((characters == ord(",")) & (inside == 0)))
        level, quotes = int(levels[-1]), int(inside[-1])


def depth_of(text: bytes) -> int:
    """The most brackets and braces that are open at a time, in as much of the text as is JSON."""
    return max((int(piece.levels.max()) for piece in _pieces(text)), default=0)


def members_of(text: bytes) -> int:
    """At most how many items the list has, or members the object, that a JSON text is: one for each comma."""
    return 1 + sum(len(piece.outermost) for piece in _pieces(text))


def outline_of(text: bytes, most: int) -> tuple[int, list[int]]:
    """The depth of a JSON text, and where the commas are between its items or members; no further ones beyond `most`.
    Other threads have their turns meanwhile."""
    depth, commas = 0, list[int]()
    for piece in _pieces(text):
        depth = max(depth, int(piece.levels.max()))
        commas += (piece.outermost[: most - len(commas)] + piece.begin).tolist()
    return depth, commas
