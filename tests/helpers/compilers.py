"""The processes that a server of this process starts for programs."""

from __future__ import annotations

import psutil


def compilers() -> list[psutil.Process]:
    """Those in which components are compiled."""
    return _children("compile_child")


def application_hosts() -> list[psutil.Process]:
    """Those in which inferlets run."""
    return _children("pie_control.application")


def _children(word: str) -> list[psutil.Process]:
    """Those of this process that are alive."""
    return [child for child in psutil.Process().children(recursive=True) if word in " ".join(_words(child))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []
