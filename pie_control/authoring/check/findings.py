"""What a check finds."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Finding:
    """A mistake, in one line of a file. `advice` says what to do."""

    file: str
    line: int
    column: int
    message: str
    advice: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}\n    {self.source}\n    {self.advice}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def meant(name: str, known: Iterable[str]) -> str:
    """Advice for an unknown name."""
    public = sorted(one for one in set(known) if not one.startswith("_"))
    close = difflib.get_close_matches(name, public, 1)
    return f"do you mean `{close[0]}`?" if close else f"there are: {', '.join(public)}"
