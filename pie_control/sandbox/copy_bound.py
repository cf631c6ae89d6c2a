"""Bounds how much wasmtime copies for one call between a guest and the host.

wasmtime converts the arguments of a host function before it calls ours: a tenth of a second for a list of a million
numbers, in which nobody else runs. It has a bound for that, 128 MiB a call, and `Store::set_hostcall_fuel` to change
it, but not in its C API. So the bound is set by its address in the store: the field is found by its default, and the
self-test shows that it is the right one. The version of wasmtime is pinned (`engine.WASMTIME_VERSION`).
"""

from __future__ import annotations

import ctypes
import logging
import threading

import wasmtime

from .engine import address_of

DEFAULT_BYTES = 128 << 20
COPIED_BYTES = 8 << 20
"""Most bytes of one call; a number in a list counts as about 50. Enough for 131,072 numbers or a text of 4 MiB."""
MESSAGE = "fuel allocated for hostcalls has been exhausted"
"""In the error of a call that is beyond the bound."""
SEARCHED_BYTES = 2048
STACK_BYTES = 512 << 10
"""So small that no stack of a thread that has ended is used again: glibc keeps those of 8 MiB."""

logger = logging.getLogger(__name__)

_offset: int | None = None  # of the field, once it is known


def find(engine: wasmtime.Engine) -> int | None:
    """Offset of the bound in a store's context; None if it cannot be told from other fields.

    Between fields there is what was on the stack where the store was made, by chance the same number. So one is made on
    the stack of a new thread, which is empty."""
    found: list[int] = []
    before = threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: found.extend(_places(engine)))
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return found[0] if len(found) == 1 else None


def _places(engine: wasmtime.Engine) -> list[int]:
    """Offsets of all that may be the bound."""
    store = wasmtime.Store(engine)
    words = (ctypes.c_uint64 * (SEARCHED_BYTES // 8)).from_address(address_of(store._context()))
    return [index * 8 for index, word in enumerate(words) if word == DEFAULT_BYTES]


def use(offset: int | None) -> None:
    """From now on stores are bounded, by the field at this offset; None: they are not."""
    global _offset
    _offset = offset
    if offset is None:
        logger.warning(
            "the bound of wasmtime for copies between guests and host was not found on this machine, so a guest may "
            "stop all others for a quarter of a second by a call with millions of numbers: please report this"
        )


def bound_copies(context: int, size: int = COPIED_BYTES, offset: int | None = None) -> None:
    """Bounds the copies of a store, given by the address of its context."""
    offset = _offset if offset is None else offset
    if offset is not None:
        ctypes.c_uint64.from_address(context + offset).value = size
