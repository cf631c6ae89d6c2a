"""The interface guest-source of world.wit: the program of a Python inferlet, for the component that runs it."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from ..programs.host.python_source import MadeAhead
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending


@suspending
def source(owner: Guest | MadeAhead) -> Any:
    """Suspends an instance that has no program yet; `PythonGuests` resumes it, with None to rehearse, or with one."""
    if type(owner) is MadeAhead:
        return SUSPEND
    if owner.source is not None:
        return owner.source
    raise Unsupported("this program is a component, not Python text")
