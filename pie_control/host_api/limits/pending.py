"""Bytes that one inferlet makes the server keep: lists of commands that wait, and results that it has not taken.

Commands and futures are counted elsewhere; their sizes differ by a factor of 100,000. What is small is not counted
here, so a call with short lists costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, get_origin, get_type_hints

from ...calls.kind import Call
from ...errors import QuotaExceeded
from ...inferlets.futures import FutureTable
from ...resources.address_space import AddressSpace

NUMBER_BYTES = 40
"""Memory of a number in a list of Python."""
COUNTED = "positions"
"""A parameter that forwards alone keep, and count (`calls.forward.command.held_bytes`)."""
KEPT_HANDLES = ("sampler", "matcher")
"""Parameters whose values commands keep a part of: `bytes`."""
SMALL_NUMBERS = 16
SMALL_BYTES = SMALL_NUMBERS * NUMBER_BYTES
"""Lists of one call that are not counted."""


def weigher(call: Call) -> Callable[[Sequence[Any]], int]:
    """A function that gives the bytes that the arguments of a call keep, 0 if they are small."""
    assert call.issue is not None
    hints, beside = get_type_hints(call.issue), call.argument_bytes
    kinds = [hints[name] for name in call.parameters]
    named = enumerate(zip(call.parameters, kinds, strict=True))
    lists = [place for place, (name, kind) in named if get_origin(kind) is Sequence and name != COUNTED]
    texts = [place for place, kind in enumerate(kinds) if kind is str]
    handles = [call.parameters.index(name) for name in call.handles if name in KEPT_HANDLES]

    if not (lists or texts or beside or handles):
        return lambda _arguments: 0
    pick = itemgetter(*lists) if len(lists) > 1 else lambda arguments: [arguments[place] for place in lists]

    def weigh_lists(arguments: Sequence[Any]) -> int:
        numbers = sum(map(len, pick(arguments)))
        return numbers * NUMBER_BYTES if numbers > SMALL_NUMBERS else 0

    def weigh(arguments: Sequence[Any]) -> int:
        size = 0
        for place in lists:
            size += len(arguments[place])
        size *= NUMBER_BYTES
        for place in texts:
            size += len(arguments[place])
        for place in handles:
            if (one := arguments[place]) is not None:
                size += one.bytes
        if beside is not None:
            size += beside(*arguments)
        return size if size > SMALL_BYTES else 0

    return weigh if texts or beside or handles else weigh_lists


class PendingBytes:
    """What one inferlet has pending, over all models."""

    __slots__ = ("_futures", "_limit", "spaces")

    def __init__(self, limit: int, futures: FutureTable) -> None:
        self._limit = limit
        self._futures = futures
        self.spaces: list[AddressSpace] = []

    @property
    def bytes(self) -> int:
        """The bytes of commands that are not known to have left their queues, and of results, known or to come."""
        return sum(space.large_bytes for space in self.spaces) + self._futures.bytes

    def check(self, size: int) -> None:
        """Raises QuotaExceeded if `size` more bytes are more than may be pending."""
        if self.bytes + size > self._limit:
            raise QuotaExceeded(
                f"{self.bytes} bytes of commands that wait and of results not taken are held and {size} more asked "
                f"for, the limit is {self._limit}; wait for results and take them first"
            )
