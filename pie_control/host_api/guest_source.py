"""The interface guest-source of world.wit: the program of a Python inferlet, for the component that runs it."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from ..programs.host.python_source import Compilation, MadeAhead
from ..sandbox.fibers import SUSPEND
from .guest import Guest
from .suspending import suspending

PIECE = 1 << 20
"""Characters that cross at once, of the code of a program or the text of one to be compiled."""
NO_PYTHON = "this program is a component, not Python text"


@suspending
def source(owner: Guest | MadeAhead) -> Any:
    """Suspends an instance that has no program yet; `PythonGuests` resumes it, with None to rehearse, or with one. An
    instance that asks again has run its own, and waits for another launch of it."""
    if type(owner) is MadeAhead:
        return SUSPEND
    if owner.source is None:
        raise Unsupported(NO_PYTHON)
    if owner.has_source and isinstance(owner, Guest):
        owner.inferlet.life.has_returned = True
        return SUSPEND
    owner.has_source = True
    name, text, code = owner.source
    return name, text, code[:PIECE]


def read(owner: Guest | Compilation, begin: int, length: int) -> str:
    if owner.source is None:
        raise Unsupported(NO_PYTHON)
    whole = owner.source[2] or (owner.text if isinstance(owner, Compilation) else "")
    return whole[begin : begin + min(length, PIECE)]


def put_code(owner: Guest | Compilation, piece: str) -> None:
    if not isinstance(owner, Compilation):
        raise Unsupported("only the compiler of programs gives code: an inferlet has `set-result`")
    owner.put_code(piece)
