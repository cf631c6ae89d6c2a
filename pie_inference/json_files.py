"""Reads files of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import CheckpointError

MOST_LEVELS = 64
"""Objects and lists within each other."""


def check_depth(path: Path, value: Any) -> None:
    """Raises CheckpointError, which names the file, if its objects are nested too deeply for code that follows them."""
    level = [value]
    for _ in range(MOST_LEVELS):
        inside = (each for each in level if isinstance(each, dict | list))
        level = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    if level:
        raise CheckpointError(f"{path}: unreadable: its objects are nested too deeply")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file with a JSON object. Raises CheckpointError, which names the file."""
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return value


def read_json_value(path: Path) -> Any:
    """Reads a file with any JSON. Raises CheckpointError, which names the file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: unreadable: {error}") from error
    except RecursionError:
        raise CheckpointError(f"{path}: unreadable: its objects are nested too deeply") from None
