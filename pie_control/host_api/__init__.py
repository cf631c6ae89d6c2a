"""What an inferlet may call: one module per WIT interface, of the same name; one function per WIT function."""

from __future__ import annotations

from types import FunctionType, ModuleType

from ..sandbox.functions import HostFunction
from . import allocate, core, forward, fused, guest_source, input_text, output_text, tokenize

PACKAGE = "pie:inferlet/"
INTERFACES = (core, allocate, input_text, forward, tokenize, output_text, fused, guest_source)
SUSPENDING = frozenset({("core", "wait"), ("guest-source", "source")})


def _interface_functions(module: ModuleType) -> dict[tuple[str, str], HostFunction]:
    interface = module.__name__.rsplit(".", 1)[1].replace("_", "-")
    return {
        (PACKAGE + interface, name.replace("_", "-")): HostFunction(call, (interface, name) in SUSPENDING)
        for name, call in vars(module).items()
        if isinstance(call, FunctionType) and call.__module__ == module.__name__ and not name.startswith("_")
    }


def functions() -> dict[tuple[str, str], HostFunction]:
    """All host functions by (interface, name), as in the WIT."""
    return {key: value for module in INTERFACES for key, value in _interface_functions(module).items()}
