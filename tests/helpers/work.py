"""How much work something is, however fast the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_of(body: Callable[[], object]) -> int:
    """Lines of Python that run in it."""
    lines = 0

    def count_line(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count_line

    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        body()
    finally:
        sys.settrace(before)
    return lines
