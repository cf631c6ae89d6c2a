"""Large memory on the host."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20


def lazy_zero_bytes(count: int) -> NDArray[np.uint8]:
    """Zeros, taken from the system when they are first written, where it can in huge pages: what is read at random
    otherwise waits for address translation as long as for memory."""
    if count < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(count, np.uint8)
    memory = mmap.mmap(-1, count + HUGE_PAGE)
    _advise_huge_pages(memory)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % HUGE_PAGE
    return whole[first : first + count]


def _advise_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # a kernel without them: small pages serve as well


def release_freed() -> None:
    """Gives memory back to the system that malloc has kept: what loading a model needed in passing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)
