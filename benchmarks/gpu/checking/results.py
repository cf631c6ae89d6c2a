"""The setting of a check, its result, and the file that carries results from the process that made them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


class Unavailable(Exception):
    """A path that cannot run here; the message says why."""


@dataclass(frozen=True)
class Setting:
    """Where the checks run."""

    device: torch.device
    cases: int  # number of cases of each kind; 0: all
    folder: Path  # for checkpoints

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Errors:
    """The largest difference, and the relative error; the check fails if the latter is more than `allowed`. A check
    that decides by itself raises AssertionError."""

    max_abs: float | None = None
    relative: float | None = None
    allowed: float | None = None
    note: str = ""


Checks = Iterator[tuple[str, Callable[[], Errors]]]


@dataclass(frozen=True)
class Found:
    """The result of one check. Errors are against float64 unless the note says otherwise."""

    path: str  # what was checked, such as "triton attention"
    name: str
    passed: bool | None  # None: the check cannot run here, and `note` says why
    seconds: float = 0.0
    max_abs_error: float | None = None
    relative_error: float | None = None  # of root mean squares, or of largest numbers, depending on the check
    note: str = ""


def append(file: Path, found: Found) -> None:
    """Appends one line of JSON, so that results outlive their process. A later line replaces one of the same name."""
    with file.open("a") as lines:
        lines.write(json.dumps(dataclasses.asdict(found)) + "\n")


def read(file: Path) -> list[Found]:
    """All results in the file; a line truncated by a crash is left out."""
    found = dict[str, Found]()
    for line in file.read_text().splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):
            each = Found(**json.loads(line))
            found[each.name] = each
    return list(found.values())
