"""Large memory on the host."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20


def lazy_zero_bytes(count: int) -> NDArray[np.uint8]:
    """Zeros, which take memory only when they are first written; in huge pages if the system has them. With small
    pages, random reads wait for address translation as long as for memory."""
    if count < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(count, np.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, Python's default, gets small pages
    memory = mmap.mmap(-1, count + HUGE_PAGE, private)
    _advise_huge_pages(memory)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % HUGE_PAGE
    return whole[first : first + count]


def _advise_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # this kernel has none: small pages work too
