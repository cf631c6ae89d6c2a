"""Coroutines that a program made and never awaited: the `await` that was forgotten."""

from __future__ import annotations

import contextlib
import linecache
import re
import warnings
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

_MOST = 8
"""Most of them that are told."""
_LINES = 3
"""Lines of the program that are shown for one of them."""

Forgotten = list[str]
"""A line for each."""


@contextlib.contextmanager
def not_awaited() -> Iterator[Forgotten]:
    """Collects those that are dropped meanwhile; Python only warns of them."""
    found: Forgotten = []
    module: Any = warnings
    before = module._warn_unawaited_coroutine

    def note(coroutine: CoroutineType[Any, Any, Any]) -> None:
        if len(found) < _MOST:
            found.append(coroutine.__qualname__)

    module._warn_unawaited_coroutine = note
    try:
        yield found
    finally:
        module._warn_unawaited_coroutine = before


def advice_on_forgotten(forgotten: Forgotten) -> str:
    """What to do, with the lines of the program that may be meant."""
    return "\n".join(_advice(name) for name in dict.fromkeys(forgotten))


def _advice(qualified: str) -> str:
    name = qualified.rpartition(".")[2]
    call = re.compile(rf"\b{re.escape(name)}\s*\(")
    places = [
        f"  line {number} of {file}: {line.strip()}"
        for file, lines in _program_files()
        for number, line in enumerate(lines, start=1)
        if call.search(line) and not re.search(r"\bawait\b|\bdef\b", line)
    ]
    told = "\n".join(["", *places[:_LINES]]) if places else ""
    return f"`{qualified}(...)` was called but never awaited, so it did nothing: write `await` in front{told}"


def _program_files() -> Iterator[tuple[str, list[str]]]:
    """The modules of the program, whose lines tracebacks show, too."""
    import sys

    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    for file in {main: None, **{one: None for one in linecache.cache if not one.startswith(("/", "<"))}}:
        yield file, linecache.getlines(file)
