"""Maps each kind of batch to its handler: the function with the call's name, in the module with the call's name."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..execution.launched import Outcome
from ..execution.served_model import ServedModel
from ..protocol import BATCHES, Batch

Handler = Callable[[ServedModel, Any], Outcome]


def _find() -> Iterator[tuple[str, Handler]]:
    """Every call with its handler."""
    for found in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        call = found.name.rpartition(".")[2]
        if call in BATCHES:
            yield call, getattr(import_module(found.name), call)


_FOUND = dict(_find())
HANDLERS: Mapping[type[Batch], Handler] = {kind: _FOUND[call] for call, kind in BATCHES.items()}
