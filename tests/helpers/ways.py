"""The two ways of a call from a guest to the host: in Python, and compiled. Tests of the sandbox run over both."""

from __future__ import annotations

from pie_control.sandbox.compiled.crossings import Crossings

NAMES = ("python", "compiled")
current: Crossings | None = None
"""The compiled way while it is tested; set by the fixture `way`."""
