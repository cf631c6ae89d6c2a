"""The compiled kernels, loaded and ready to call."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError, KernelsUnavailable
from .build import build

ADDRESS = ctypes.c_void_p
INTEGER = ctypes.c_int64
FLOAT = ctypes.c_float

Kernel = Callable[..., Any]
Call = tuple[Callable[..., Any], Sequence[Any]]
"""A function, and what it is called with."""
SUFFIX = {torch.float32: "float", torch.bfloat16: "bfloat16"}

log = logging.getLogger("pie.kernels")


class _Listing(threading.local):
    """Where the calls of kernels are listed, in this thread."""

    calls: list[Call] | None = None


class Library:
    """Functions of one compiled library. Calls release the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._functions = ctypes.CDLL(str(path))
        isa = self._functions.isa
        isa.restype = ctypes.c_char_p
        self.isa: str = isa().decode()
        """The instruction set that the kernels use."""
        self._listing = _Listing()

    def kernel(self, name: str, *arguments: Any) -> Kernel:
        """A function of the library that takes `arguments` (ADDRESS, INTEGER, FLOAT) and returns nothing."""
        function = self._functions[name]
        function.argtypes = arguments
        function.restype = None
        listing = self._listing

        def call(*given: Any) -> None:
            if listing.calls is None:
                function(*given)
            else:
                listing.calls.append((function, given))

        return call

    @contextmanager
    def listing(self, calls: list[Call]) -> Iterator[None]:
        """Calls of kernels in this thread go to `calls`, in place of being made."""
        self._listing.calls = calls
        try:
            yield
        finally:
            self._listing.calls = None


def find_library(kernels: str, cache_dir: Path, device: torch.device, max_isa: str = "auto") -> Library | None:
    """The kernels for `device`, compiled first if necessary; None, with the reason in the log, if there are none.

    `kernels` and `max_isa` are as in `WorkerOptions`. Raises ConfigError if `kernels` insists on what there is not.
    """
    if kernels == "own" and device.type != "cpu":
        raise ConfigError(f"--kernels own: these kernels are for CPUs, and the model runs on {device.type}")
    if kernels == "torch" or device.type != "cpu":
        return None
    try:
        return Library(build(cache_dir, max_isa=max_isa))
    except (KernelsUnavailable, OSError, AttributeError) as error:
        if kernels == "own":
            raise ConfigError(f"--kernels own: {error}") from error
        log.warning("slower operations of torch serve instead of the CPU kernels: %s", error)
        return None
