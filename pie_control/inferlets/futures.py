"""The futures of one inferlet: numbers that stand for results that may not be known yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..errors import CallError, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from ..ids import LAST_FUTURE
from .runs import RunBuffer, Taken

PENDING: Final = object()
UNKNOWN: Final = object()


class FutureTable:
    """Futures by number. Each is pending, then done with a value or a CallError, then taken or cancelled.

    That of a decode run is done whenever there are tokens to take, and pending again when they are taken.
    """

    __slots__ = ("_limit", "_next", "_runs", "_sizes", "_values", "bytes")

    def __init__(self, limit: int) -> None:
        self._values: dict[int, Any] = {}
        self._runs: dict[int, RunBuffer] = {}
        self._next = 1
        self._limit = limit
        self._sizes: dict[int, int] = {}  # of values that are large
        self.bytes = 0  # their sum

    def __len__(self) -> int:
        return len(self._values)

    def new(self, size: int = 0) -> int:
        """Number of a new pending future, whose value will have `size` bytes, if that is worth counting; raises
        QuotaExceeded."""
        if len(self._values) >= self._limit:
            raise QuotaExceeded(f"{self._limit} futures are open: take or cancel some before you issue more")
        number = self._next
        while number in self._values:  # after the numbers have wrapped around
            number = self._after(number)
        self._next = self._after(number)
        self._values[number] = PENDING
        if size:
            self._sizes[number] = size
            self.bytes += size
        return number

    def count(self, number: int, size: int) -> None:
        """The value of a future has so many bytes, as is known only now."""
        if size and number in self._values:
            self._sizes[number] = size
            self.bytes += size

    @staticmethod
    def _after(number: int) -> int:
        return number + 1 if number < LAST_FUTURE else 1

    def forget(self, number: int) -> None:
        """Drops a future, because its command was refused."""
        self._values.pop(number, None)
        self._uncount(number)

    def end(self) -> None:
        """Nobody takes anything any more, and there are no further futures."""
        self._limit = self.bytes = 0
        for kept in (self._values, self._runs, self._sizes):
            kept.clear()

    def _uncount(self, number: int) -> None:
        if self._sizes:
            self.bytes -= self._sizes.pop(number, 0)

    def done(self, numbers: Iterable[int]) -> list[int]:
        """The numbers that are not pending, in the order given."""
        values = self._values
        return [number for number in numbers if values.get(number, UNKNOWN) is not PENDING]

    def resolve(self, number: int, value: Any) -> bool:
        """Gives a pending future its value (a CallError for failure); False if it was cancelled."""
        if self._runs and (run := self._runs.get(number)) is not None:
            run.fail(value)
            return self.settle_run(number)
        if self._values.get(number, UNKNOWN) is not PENDING:
            return False
        self._values[number] = value
        return True

    def replace(self, number: int, value: Any) -> None:
        """Gives a future another value. Nothing happens if it was taken."""
        if number in self._values:
            self._values[number] = value

    def take(self, number: int, *kinds: type) -> Any:
        """Consumes a done future and returns its value, which is of one of these types; raises the error of a failed
        one."""
        value = self._values.get(number, UNKNOWN)
        if value is UNKNOWN:
            raise NotFound(f"there is no future {number}: it was taken or cancelled, or never existed")
        if value is PENDING:
            raise InvalidState(f"future {number} is not done: wait for it first")
        failed = isinstance(value, CallError)
        if not failed and not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise InvalidArgument(f"future {number} holds a {type(value).__name__}, not a {wanted}")
        del self._values[number]
        self._uncount(number)
        if failed:
            raise value
        return value

    def cancel(self, number: int) -> Any:
        """Forgets a future; returns its value if it was done, else PENDING. Raises NotFound."""
        value = self._values.pop(number, UNKNOWN)
        if value is UNKNOWN:
            raise NotFound(f"there is no future {number}: it was taken or cancelled, or never existed")
        self._uncount(number)
        if self._runs and (run := self._runs.pop(number, None)) is not None:
            run.close()
        return value

    # ---- decode runs ----

    def begin_run(self, number: int, run: RunBuffer) -> None:
        """A pending future stands for a run."""
        self._runs[number] = run

    def find_run(self, number: int) -> RunBuffer | None:
        """The run for which a future stands; None if it was cancelled, or all of it taken."""
        return self._runs.get(number)

    def run(self, number: int) -> RunBuffer:
        """The run for which a future stands. Raises NotFound, InvalidArgument."""
        run = self._runs.get(number)
        if run is None and number in self._values:
            raise InvalidArgument(f"future {number} is not a decode run: `decode` gives these")
        if run is None:
            raise NotFound(f"there is no decode run {number}: all of it was taken, or it was cancelled, or never was")
        return run

    def settle_run(self, number: int) -> bool:
        """Whether the future of a run is done; called whenever that may have changed."""
        run = self._runs.get(number)
        if run is None:
            return False
        self._values[number] = run if run.is_done else PENDING
        return run.is_done

    def take_run(self, number: int, most: int) -> Taken:
        """At most `most` tokens of a run that is done, after which the future is pending again, or gone with the last
        one. Raises as `run`, and the error of a run that failed."""
        run = self.run(number)
        try:
            taken = run.take(most)
        except CallError:
            self._drop_run(number)
            raise
        if taken.over:
            self._drop_run(number)
        else:
            self.settle_run(number)
        return taken

    def _drop_run(self, number: int) -> None:
        del self._runs[number], self._values[number]
        self._uncount(number)
