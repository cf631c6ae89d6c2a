"""The interface guest-source of world.wit: the text of a Python inferlet, for the component that runs it."""

from __future__ import annotations

from ..errors import Unsupported
from ..inferlets.inferlet import Inferlet


def source(inferlet: Inferlet) -> tuple[str, str]:
    program = inferlet.program
    if program.source is None:
        raise Unsupported("this program is a component, not Python text")
    return program.name, program.source
