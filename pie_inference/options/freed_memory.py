"""Memory that a process has freed, and malloc keeps."""

from __future__ import annotations

import ctypes


def release_freed() -> None:
    """Gives freed memory that malloc keeps back to the system, such as the temporary memory of loading a model, or the
    tables of inferlets."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
