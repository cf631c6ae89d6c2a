"""The wasmtime engine that all instances share: its version, its epochs, its errors."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import wasmtime
from wasmtime import _ffi as ffi

from .version import WASMTIME_VERSION

TICK_SECONDS = 0.002
"""Time between two ticks. A guest that does not wait is interrupted after one to two ticks."""
TICKS_AT_ONCE = 25
"""Ticks that the compiled way makes at once, without Python."""

WASM_STACK_BYTES = 2 << 20
"""The stack of a guest's own calls; one that needs more traps. CPython counts calls, or another stack, of 1 MiB, and so
raises RecursionError before in most cases, but not where calls of C hold little there, as those that drop objects."""
FIBER_STACK_BYTES = WASM_STACK_BYTES + (8 << 20)
"""The stack of a guest and of the host functions that it calls: these have as much as on a thread, however deep the
guest is. Only what is touched costs memory."""

BROKEN_PYTHONS = ((3, 14, 0),)
"""They take a fiber's stack for an overflow of the thread's, and end the process (CPython issue 139653)."""

LIBRARY = ctypes.PyDLL(ffi.dll._name)
"""Calls that keep the GIL: they are so short that releasing it would cost more."""


def c_function(name: str, restype: Any, *argtypes: Any, library: Any = LIBRARY) -> Callable[..., Any]:
    """A function of wasmtime's C API, with pointers as plain integers."""
    function = getattr(library, name)
    prototype = ctypes.CFUNCTYPE if library is not LIBRARY else ctypes.PYFUNCTYPE
    typed: Callable[..., Any] = prototype(restype, *argtypes)(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return typed


_P = ctypes.c_void_p
_set_fiber_stack = c_function("wasmtime_config_async_stack_size_set", None, _P, ctypes.c_uint64)
_support_concurrency = c_function("wasmtime_config_concurrency_support_set", None, _P, ctypes.c_bool)
_error_message = c_function("wasmtime_error_message", None, _P, _P)
_error_delete = c_function("wasmtime_error_delete", None, _P)
_bytes_delete = c_function("wasm_byte_vec_delete", None, _P)


class LinkError(Exception):
    """A component cannot be linked: it imports what inferlets may not, or lacks an export."""


def check_version() -> None:
    """Raises LinkError unless wasmtime has the version for which this module was written, and Python can run fibers."""
    if sys.version_info[:3] in BROKEN_PYTHONS:
        raise LinkError(
            f"Python {sys.version.split()[0]} cannot run WebAssembly on fibers: use another version of Python"
        )
    installed = installed_version()
    if installed != WASMTIME_VERSION:
        raise LinkError(
            f"wasmtime {installed} is installed, this version of pie needs exactly {WASMTIME_VERSION}: "
            f"pip install wasmtime=={WASMTIME_VERSION}"
        )


@functools.cache
def installed_version() -> str:
    return metadata.version("wasmtime")


def new_engine() -> wasmtime.Engine:
    """An engine for components, with preemption by epochs."""
    check_version()
    config = wasmtime.Config()
    config.wasm_component_model = True
    config.epoch_interruption = True
    config.wasm_threads = False  # shared memories would not count against the limits of a store
    config.wasm_gc = False
    # Tasks of the component model: we offer none, and with them a call that borrows two resources always traps.
    _support_concurrency(address_of(config), False)
    config.max_wasm_stack = WASM_STACK_BYTES
    _set_fiber_stack(address_of(config), FIBER_STACK_BYTES)
    return wasmtime.Engine(config)


class Ticker:
    """Increments the epoch of an engine every TICK_SECONDS, from a thread. It sleeps if no guest has run lately."""

    REST_AFTER_TICKS = 50

    def __init__(self, engine: wasmtime.Engine) -> None:
        self.engine = engine
        self.tick: Callable[[], int] = self._tick
        """Waits and increments, once or several times; gives how many."""
        self._event = threading.Event()
        self._wakes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epoch-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        idle = seen = 0
        while not self._closed:
            if idle >= self.REST_AFTER_TICKS:
                self._event.wait()
            self._event.clear()
            ticks = self.tick()
            wakes = self._wakes  # only `wake` writes this counter, so no wake is missed
            idle, seen = (0 if wakes != seen else idle + ticks), wakes

    def _tick(self) -> int:
        time.sleep(TICK_SECONDS)
        self.engine.increment_epoch()
        return 1

    def wake(self) -> None:
        """Call this before a guest runs."""
        self._wakes += 1
        if not self._event.is_set():
            self._event.set()

    def close(self) -> None:
        """Stops the thread. Idempotent."""
        self._closed = True
        self._event.set()
        self._thread.join()


def address_of(managed: Any) -> int:
    """Address of a wasmtime-py object or ctypes pointer."""
    pointer = managed.ptr() if hasattr(managed, "ptr") else managed
    return ctypes.cast(pointer, _P).value or 0


def take_message(error: int) -> str:
    """Frees an error of the C API and returns its text."""
    text = ffi.wasm_byte_vec_t()
    _error_message(error, ctypes.addressof(text))
    message = ctypes.string_at(text.data, text.size).decode("utf-8", "replace")
    _bytes_delete(ctypes.addressof(text))
    _error_delete(error)
    return message
