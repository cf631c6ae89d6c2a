"""Maps each kind of batch to its handler: the function with the call's name, in the module with the call's name, here
or in a folder beside this file."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..execution.launched import Outcome
from ..execution.served_model import ServedModel
from ..protocol import BATCHES, Batch

Handler = Callable[[ServedModel, Any], Outcome]


_MODULES = {
    found.name.rpartition(".")[2]: found.name
    for found in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    if not found.ispkg
}


def _find(call: str) -> Handler:
    handler: Handler = getattr(import_module(_MODULES[call]), call)
    return handler


HANDLERS: Mapping[type[Batch], Handler] = {kind: _find(call) for call, kind in BATCHES.items()}
