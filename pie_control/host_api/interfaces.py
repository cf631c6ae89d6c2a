"""Functions of a module of this package as the WIT names them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from .guest import Guest

Function = Callable[..., Any]


def written_functions(module: ModuleType) -> Iterator[tuple[str, str, Function]]:
    """Interface, name and function of each public function of a module."""
    interface = module.__name__.rpartition(".")[2]
    for name, call in vars(module).items():
        if isinstance(call, FunctionType) and call.__module__ == module.__name__ and not name.startswith("_"):
            yield interface, name, call


def checked(name: str, call: Function) -> Function:
    """The function; if it is one of a queue, it refuses those of models without its trait."""
    if "queue" not in inspect.signature(call).parameters:
        return call

    @functools.wraps(call)
    def function(guest: Guest, queue: int, *arguments: Any) -> Any:
        guest.space(queue, name)
        return call(guest, queue, *arguments)

    return function
