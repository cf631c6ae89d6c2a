"""The interface guest-source of world.wit: the program of a Python inferlet, for the component that runs it."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from ..programs.host.python_source import MadeAhead
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending


@suspending
def made_ahead(owner: Guest | MadeAhead) -> Any:
    """Suspends an instance that has no program yet; `PythonGuests` resumes it, to rehearse or since there is one."""
    return SUSPEND if type(owner) is MadeAhead else False


def source(owner: Guest | MadeAhead) -> Any:
    if owner.source is not None:
        return owner.source
    raise Unsupported("this program is a component, not Python text")
