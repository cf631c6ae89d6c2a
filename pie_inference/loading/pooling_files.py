"""Reads how a model pools hidden states, where its folder has the files of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..json_files import read_json, read_json_value

MODULES = "modules.json"
MODES = {"lasttoken": "last", "mean": "mean", "mean_tokens": "mean"}
OLDER = "pooling_mode_"
"""Older versions of sentence-transformers wrote a key for each mode, which begins so; newer ones name it."""


def read_pooling(folder: Path) -> str:
    """How states become the vector of a text: "last" or "mean"; "": there is no file that says so, since the model was
    not made for embeddings. Raises CheckpointError for a way that is not supported."""
    path = folder / MODULES
    if not path.exists():
        return ""
    found = [_mode(folder, module) for module in _modules(path) if str(module.get("type", "")).endswith("Pooling")]
    if len(found) != 1:
        raise CheckpointError(f"{path}: there are {len(found)} modules of type Pooling, expected 1")
    return found[0]


def _modules(path: Path) -> list[dict[str, Any]]:
    modules = read_json_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: expected a list of objects")
    for module in modules:
        if str(module.get("type", "")).rpartition(".")[2] not in ("Transformer", "Pooling", "Normalize"):
            raise CheckpointError(f"{path}: a module of type {module.get('type')!r} is not supported")
    return modules


def _mode(folder: Path, module: dict[str, Any]) -> str:
    name = str(module.get("path", ""))
    if Path(name).name != name:
        raise CheckpointError(f"{folder / MODULES}: {name!r} is not a folder beside it")
    path = folder / name / "config.json"
    config = read_json(path)
    older = [key.removeprefix(OLDER) for key, value in config.items() if key.startswith(OLDER) and value is True]
    named = config.get("pooling_mode", older)
    modes = sorted(map(str, named if isinstance(named, list) else [named]))
    if len(modes) != 1 or modes[0] not in MODES:
        raise CheckpointError(f"{path}: pooling by {', '.join(modes) or 'nothing'}; supported: {' or '.join(MODES)}")
    return MODES[modes[0]]
