"""Maps each kind of batch to its handler: the function with the call's name, in the module with the call's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..execution.launched import Outcome
from ..execution.served_model import ServedModel
from ..protocol import BATCHES, Batch

Handler = Callable[[ServedModel, Any], Outcome]


def _find(call: str) -> Handler:
    handler: Handler = getattr(import_module(f"{__package__}.{call}"), call)
    return handler


HANDLERS: Mapping[type[Batch], Handler] = {kind: _find(call) for call, kind in BATCHES.items()}
