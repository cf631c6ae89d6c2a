"""What an inferlet may call: the functions of the WIT, by interface. Those of `pie_control.calls` are derived from
their records; the modules here have the others, one for each WIT interface, one function for each WIT function."""

from __future__ import annotations

import functools

from ..sandbox.contract import Contract, Edition
from ..sandbox.functions import HostFunction
from . import core, derived, exports, fused, grammar, guest_source, tokenize, wit_files
from .images import blobs, input_image
from .interfaces import checked, written_functions
from .limits.bounds import bounds_of
from .outside import children, http, topics
from .suspending import is_suspending

PACKAGE = "pie:inferlet"
MODULES = (
    *(core, blobs, tokenize, input_image, fused, grammar, exports, http, topics),
    children,
    guest_source,
)


def contract() -> Contract:
    """All that components may import. There is one edition; a further one would stand behind it."""
    package = wit_files.current()
    return Contract(PACKAGE, [Edition(package.version, package.signatures, functions())])


@functools.cache
def functions() -> dict[tuple[str, str], HostFunction]:
    """The functions by interface and name, as in the WIT."""
    written = [one for module in MODULES for one in written_functions(module)]
    found = [(interface, name, call, call) for interface, name, call in derived.functions()]
    found += [(interface, name, call, checked(name, call)) for interface, name, call in written]
    return {
        (interface.replace("_", "-"), name.replace("_", "-")): HostFunction(
            call, is_suspending(marked), bounds_of(interface, name)
        )
        for interface, name, marked, call in found
    }
