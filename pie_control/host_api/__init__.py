"""What an inferlet may call: the functions of the WIT, by interface. Those of `pie_control.calls` are derived from
their records; the modules here have the others, one for each WIT interface, one function for each WIT function. The
folder `published` makes those of older versions of them."""

from __future__ import annotations

from ..sandbox.contract import Contract
from ..sandbox.functions import HostFunction
from . import core, derived, fused, grammar, guest_source, tokenize
from .images import blobs, input_image
from .interfaces import checked, written_functions
from .limits.bounds import bounds_of
from .outside import children, http, topics
from .published import editions
from .suspending import is_suspending
from .taken import exports, introspective_forward, output_text

PACKAGE = "pie:inferlet"
MODULES = (
    *(core, blobs, tokenize, input_image, fused, introspective_forward, output_text, grammar, exports, http, topics),
    children,
    guest_source,
)


def contract() -> Contract:
    """All that components may import, in every published version."""
    return Contract(PACKAGE, list(editions(functions())))


def functions() -> dict[tuple[str, str], HostFunction]:
    """The functions of the newest version by interface and name, as in the WIT."""
    written = [one for module in MODULES for one in written_functions(module)]
    found = [(interface, name, call, call) for interface, name, call in derived.functions()]
    found += [(interface, name, call, checked(name, call)) for interface, name, call in written]
    return {
        (interface.replace("_", "-"), name.replace("_", "-")): HostFunction(
            call, is_suspending(marked), bounds_of(interface, name)
        )
        for interface, name, marked, call in found
    }
