"""What an inferlet may call: the functions of the WIT, by interface. Those of `pie_control.calls` are derived from
their records; the modules here have the others, one for each WIT interface, one function for each WIT function."""

from __future__ import annotations

from ..sandbox.functions import HostFunction
from . import core, derived, fused, guest_source, tokenize
from .bounds import bounds_of
from .interfaces import written_functions
from .suspending import is_suspending

PACKAGE = "pie:inferlet/"
MODULES = (core, tokenize, fused, guest_source)


def functions() -> dict[tuple[str, str], HostFunction]:
    """All host functions by (interface, name), as in the WIT."""
    found = (*derived.functions(), *(one for module in MODULES for one in written_functions(module)))
    return {
        (PACKAGE + interface.replace("_", "-"), name.replace("_", "-")): HostFunction(
            call, is_suspending(call), bounds_of(interface, name)
        )
        for interface, name, call in found
    }
