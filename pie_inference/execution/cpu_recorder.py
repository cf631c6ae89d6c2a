"""Records batches of few rows on a CPU: decode steps, short prompts, and both together. A step of the demo model is 56
calls, most of them of a few microseconds, and a sixth of its time is what Python and torch do between these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..cpu_kernels.library import Call, Library

SIZES = range(1, 33)
"""Numbers of rows that have a recording. There is one for each, as a CPU would compute rows that fill up. The gain
becomes less with more rows: 0.8 to 0.91 of the time of `demo` with up to 16, 0.93 with 32."""
MOST_BYTES = 64 << 20
"""Memory for the results inside of a step. A step that needs more is not recorded."""
ALIGNMENT = 64

_MEMORY = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
"""Operations that compute nothing."""
_UNKNOWN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations by which the host would look at numbers."""


class CpuRecorder:
    """Implements `Recorder`: lists the calls of kernels and operations of torch, and makes them again on the same
    memory. All recordings share memory for results inside of them, because they never run side by side."""

    sizes = SIZES

    def __init__(self, library: Library) -> None:
        self._library = library
        self._memory = _Memory()

    def warm_up(self, work: Callable[[], None]) -> None:
        """Does nothing: a recording runs what it records."""

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        calls = list[Call]()
        self._memory.begin()
        try:
            with self._library.listing(calls), _Operations(calls, self._memory):
                work()
        except _NoRoom:
            return None

        def replay() -> None:
            for function, arguments in calls:
                function(*arguments)

        return replay


class _NoRoom(Exception):
    """The memory is used up."""


class _Memory:
    """Memory for the results of the recording that is made now. The system gives what is written to, not the whole."""

    def __init__(self) -> None:
        self._bytes = torch.empty(MOST_BYTES, dtype=torch.uint8)
        self._end = 0

    def begin(self) -> None:
        self._end = 0

    def place(self, result: Tensor) -> Tensor:
        """Memory for numbers like those of `result`; itself, if they are not in order. Raises _NoRoom."""
        if not result.is_contiguous():
            return result
        begin, size = self._end, math.prod(result.shape) * result.itemsize
        self._end = -(-(begin + size) // ALIGNMENT) * ALIGNMENT
        if self._end > MOST_BYTES:
            raise _NoRoom
        return self._bytes[begin : begin + size].view(result.dtype).view(result.shape)


class _Operations(TorchDispatchMode):
    """Runs each operation of torch, as the next ones need its result, and lists it unless it makes only a view. Results
    are kept in `memory`. Raises RuntimeError for an operation whose result is a number or a shape that the next step
    may have otherwise."""

    def __init__(self, calls: list[Call], memory: _Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._memory = calls, memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The wrapper that torch would put around `__torch_dispatch__` otherwise imports its compiler, for seconds."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _UNKNOWN & {*operation.tags}:
            raise RuntimeError(f"{operation} lets the host look at numbers")
        run = partial(operation, *args, **(kwargs or {}))
        result = run()
        if operation._schema.is_mutable:
            self._calls.append((run, ()))
            return result
        if _is_view(result, args):
            return result
        if operation.overloadpacket in _MEMORY:
            return self._memory.place(result)
        results = _all(result)
        if not results or not isinstance(results[0], Tensor):
            return result  # a type, or a number that follows from shapes
        kept = tuple(map(self._memory.place, results))
        _keep(kept, lambda: result)
        self._calls.append((_keep, (kept, run)))
        return kept[0] if results[0] is result else kept


def _all(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def _keep(kept: Sequence[Tensor], run: Callable[[], Any]) -> None:
    for own, one in zip(kept, _all(run()), strict=True):
        own.copy_(one)


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Whether the result, or each of several, is in the memory of the first argument. (Operations such as `to` tell by
    their schema that they may be views, whether they are or not.)"""
    one = next(iter(_all(result)), None)
    if not args or not isinstance(args[0], Tensor) or not isinstance(one, Tensor):
        return False
    return one.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
