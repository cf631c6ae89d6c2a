"""The compiled kernels, loaded and ready to call."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import KernelsUnavailable
from .build import build

ADDRESS = ctypes.c_void_p
INTEGER = ctypes.c_int64
FLOAT = ctypes.c_float

Kernel = Callable[..., Any]
OPENMP_RUNTIMES = ("libgomp", "libiomp", "libomp")
SUFFIX = {torch.float32: "float", torch.bfloat16: "bfloat16"}

log = logging.getLogger("pie.kernels")


class Library:
    """Functions of one compiled library. Calls release the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        self._functions.use_openmp(ctypes.byref(_OpenMp.of(_loaded_openmp())))

    def kernel(self, name: str, *arguments: Any) -> Kernel:
        """A function of the library that takes `arguments` (ADDRESS, INTEGER, FLOAT) and returns nothing."""
        function = self._functions[name]
        function.argtypes = arguments
        function.restype = None
        return function


class _OpenMp(ctypes.Structure):
    """The struct `OpenMp` of parallel.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("parallel", "barrier", "thread_num", "num_threads")]

    @classmethod
    def of(cls, runtime: ctypes.CDLL) -> _OpenMp:
        names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
        return cls(*(ctypes.cast(runtime[name], ctypes.c_void_p) for name in names))


def find_library(kernels: str, cache_dir: Path, device: torch.device) -> Library | None:
    """The kernels for `device`, compiled first if necessary; None, with the reason in the log, if there are none.

    `kernels` is one of `WorkerOptions.kernels`.
    """
    if kernels == "torch" or device.type != "cpu":
        return None
    try:
        return Library(build(cache_dir))
    except (KernelsUnavailable, OSError, AttributeError) as error:
        log.warning("slower operations of torch serve instead of the CPU kernels: %s", error)
        return None


def _loaded_openmp() -> ctypes.CDLL:
    """The OpenMP runtime that torch loaded into this process. Every such runtime has the entry points of GNU's."""
    for path in loaded_libraries():
        if Path(path).name.startswith(OPENMP_RUNTIMES):
            return ctypes.CDLL(path)
    raise KernelsUnavailable("torch has loaded no OpenMP runtime")


def loaded_libraries() -> list[str]:
    """Paths of the shared libraries in this process, each once."""
    fields = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return list(dict.fromkeys(each[5] for each in fields if len(each) == 6 and ".so" in each[5]))
