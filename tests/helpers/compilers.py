"""The processes in which components are compiled."""

from __future__ import annotations

import psutil


def compilers() -> list[psutil.Process]:
    """Those of this process that are alive."""
    return [child for child in psutil.Process().children() if "compile_child" in " ".join(_words(child))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []
