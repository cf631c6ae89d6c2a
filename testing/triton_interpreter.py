"""A process in which Triton kernels run on the CPU, by Triton's interpreter.

Triton reads TRITON_INTERPRET when it is first imported, and kernels that it makes for the interpreter cannot be
compiled. So the interpreter gets its own process. An exception in a call, also a failed assertion, is raised at the
caller.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Interpreter:
    """Calls functions of modules in the process; arguments and results are pickled."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._pool.submit(function, *args, **kwargs).result()


@contextmanager
def running_interpreter() -> Iterator[Interpreter]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_start) as pool:
        yield Interpreter(pool)


def prepare() -> None:
    """Makes this process the interpreter. Call it before anything imports triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    _multiply_bfloat16()
    _do_nothing_in_vain()


def _start() -> None:
    prepare()
    warnings.simplefilter("error")


def _multiply_bfloat16() -> None:
    """Mends the interpreter, which stores bfloat16 as 16-bit integers of its bits and multiplies these integers."""
    tl: Any = import_module("triton.language")
    interpreter: Any = import_module("triton.runtime.interpreter")

    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype("uint32") << 16).view("float32"), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        return multiply(self, widened(a), widened(b), d, *options)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _do_nothing_in_vain() -> None:
    """Takes from the interpreter two thirds of its time: it looks for overflows in sums and products of integers, which
    it tells nobody outside of debugging, puts itself into Triton's language anew at each call of a function in a
    kernel, and makes the same types and shapes for each tensor."""
    tl: Any = import_module("triton.language")
    interpreter: Any = import_module("triton.runtime.interpreter")

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()  # with nothing to restore

    of_pointer, of_scalar = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda kind: of_pointer(kind) if kind.scalar.is_ptr() else of_scalar(kind.scalar)

    @functools.cache
    def size(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return tl.core.tuple(map(tl.constexpr, shape)), tl.constexpr(math.prod(shape))

    def init(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = size(tuple(kind.shape) if kind.is_block() else ())

    tl.core.tensor.__init__ = init
