"""The interface guest-source of world.wit: the program of a Python inferlet, for the component that runs it."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from ..programs.host.python_source import MadeAhead
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending


def made_ahead(owner: Guest | MadeAhead) -> bool:
    """Whether the instance waits for a program, to rehearse meanwhile."""
    return type(owner) is MadeAhead


@suspending
def source(owner: Guest | MadeAhead) -> Any:
    """Suspends an instance that was made ahead; `PythonGuests.take` resumes it with a program."""
    if owner.source is not None:
        return owner.source
    if made_ahead(owner):
        return SUSPEND
    raise Unsupported("this program is a component, not Python text")
