"""What batches and results have in common: arrays by command.

A batch holds the commands of one call, column by column. Most arrays have one element for each command; others have a
range of elements for each, divided by an indptr: command n has elements indptr[n] to indptr[n + 1]. Each class says
which (`ragged`), so a batch can be taken apart, command by command, and the results be put together again. A worker
does that after a failure, to find the command at fault; commands that run one by one, in order, must therefore do the
same as all of them together.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A numpy array; it travels as raw bytes behind the header."""

Layout = Mapping[str, tuple[str, ...]]
"""Arrays with a range of elements for each command, by the name of the indptr, int32 [N + 1], that divides them; where
that is left out, they have one element for each."""


class Message(msgspec.Struct, frozen=True, tag=True, eq=False, omit_defaults=True):
    """Base of everything on the wire."""


class Batch(Message, frozen=True):
    """Commands of one call."""

    ragged: ClassVar[Layout] = {}
    shared: ClassVar[tuple[str, ...]] = ()
    """Arrays that belong to no command more than to another."""

    def count(self) -> int:
        """The number of commands."""
        for indptr in self.ragged:
            if (bounds := getattr(self, indptr)) is not None:
                return len(bounds) - 1
        return len(getattr(self, self.__struct_fields__[0]))

    def only(self, command: int) -> Self:
        """A batch of one of the commands. Raises ValueError where the arrays do not fit together."""
        columns = self._columns()
        for name, column in columns.items():
            if len(column) != self.count():
                raise ValueError(f"{name} has {len(column)} elements for {self.count()} commands")
        parts: dict[str, Array] = {name: column[command : command + 1] for name, column in columns.items()}
        for indptr, names in self.ragged.items():
            parts |= self._range(indptr, names, command)
        return msgspec.structs.replace(self, **parts)

    def zeros(self) -> Result | None:
        """A result without content; None: the call has no results."""
        return None

    def _columns(self) -> dict[str, Array]:
        """The arrays with one element for each command, but for those that are left out."""
        divided = [names for indptr, names in self.ragged.items() if getattr(self, indptr) is not None]
        others = {*self.shared, *self.ragged, *itertools.chain.from_iterable(divided)}
        columns = {name: getattr(self, name) for name in self.__struct_fields__ if name not in others}
        return {name: column for name, column in columns.items() if column is not None}

    def _range(self, indptr: str, names: tuple[str, ...], command: int) -> dict[str, Array]:
        bounds: Array | None = getattr(self, indptr)
        if bounds is None:
            return {}
        given: dict[str, Array | None] = {name: getattr(self, name) for name in names}
        arrays = {name: array for name, array in given.items() if array is not None}
        for name, array in arrays.items():
            check_indptr(bounds, self.count(), len(array), f"{indptr} of {name}")
        first, last = bounds[command : command + 2]
        parts = {name: array[first:last] for name, array in arrays.items()}
        return {**parts, indptr: np.array([0, last - first], bounds.dtype)}


class Result(Message, frozen=True):
    """What a batch has to tell."""

    ragged: ClassVar[Layout] = {}

    @classmethod
    def joined(cls, results: Sequence[Self]) -> Self:
        """The result of all commands, from those of one after the other. What is None is so in all of them."""
        given = [name for name in cls.__struct_fields__ if getattr(results[0], name) is not None]
        joined = {
            name: np.concatenate([getattr(result, name) for result in results])
            for name in given
            if name not in cls.ragged
        }
        for indptr in cls.ragged.keys() & given:
            lengths = np.concatenate([np.diff(getattr(result, indptr)) for result in results])
            joined[indptr] = np.concatenate(([0], lengths.cumsum())).astype(np.int32)
        return cls(**joined)


def filled(column: Array | None, count: int, value: float) -> Array:
    """A column that may be left out: it has `value` in each row then."""
    return np.full(count, value) if column is None else column


def check_integers(indptr: Array, name: str) -> None:
    """Raises ValueError for numbers that each reader would round in its own way."""
    if indptr.dtype.kind != "i":
        raise ValueError(f"{name} has {indptr.dtype} numbers, not integers")


def check_indptr(indptr: Array, count: int, length: int, name: str) -> None:
    """Raises ValueError unless it divides `length` elements into `count` ranges."""
    check_integers(indptr, name)
    if len(indptr) != count + 1 or indptr[0] != 0 or indptr[-1] != length or (np.diff(indptr) < 0).any():
        raise ValueError(f"{name} does not divide {length} elements among {count} commands")


def join_results(batch: Batch, results: Sequence[Result | None]) -> Result | None:
    """The result of a batch from those of its commands, one by one; None where all have none or failed. Commands that
    failed while others did not have zeros, and empty ranges."""
    kind = next((type(result) for result in results if result is not None), None)
    if kind is None:
        return None
    filled = (result or batch.only(command).zeros() for command, result in enumerate(results))
    return kind.joined([result for result in filled if result is not None])


def call_name(kind: type[Batch]) -> str:
    """The call that a class of batches belongs to: copy_kvpage for CopyKvpage."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
