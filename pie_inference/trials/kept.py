"""Keeps trials in a file beside the compiled kernels, whose name has the compiler, the sources and the processor."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..options.cache_files import read_own_file, write_atomically
from .measure import Timed

Trials = Mapping[str, Sequence[Timed]]
"""What each size took, by kind of product."""

log = logging.getLogger("pie.kernels")


def path_beside(library: Path) -> Path:
    """The file for trials of a compiled library, in its folder."""
    return library.with_name(f"{library.name.partition('.')[0]}-trials.json")


def find_trials(path: Path, key: str) -> Trials | None:
    """The trials kept under this key. A file that cannot be read is as good as none: trials are made anew."""
    try:
        found = _read(path).get(key)
        return None if found is None else _trials_of(found)
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        log.warning("%s is not used, products are tried anew: %s", path, error)
        return None


def keep_trials(path: Path, key: str, trials: Trials) -> None:
    """Adds trials to the file. Without it, each start tries again: no reason not to serve."""
    try:
        others = _read(path)
    except (ValueError, OSError):
        others = {}
    kinds = {kind: [[each.size, dict(each.seconds)] for each in timed] for kind, timed in trials.items()}
    try:
        write_atomically(path, json.dumps({**others, key: kinds}, indent=1).encode())
    except OSError as error:
        log.warning("%s cannot be written, so each start tries the products again: %s", path, error)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_own_file(path))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def _trials_of(found: Mapping[str, Any]) -> Trials:
    return {
        kind: [Timed(str(size), {way: float(each) for way, each in seconds.items()}) for size, seconds in timed]
        for kind, timed in found.items()
    }
