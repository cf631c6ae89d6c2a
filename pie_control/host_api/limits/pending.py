"""Bytes that one inferlet makes the server keep: lists of commands that wait, and results that it has not taken.

Commands and futures are counted elsewhere; their sizes differ by a factor of 100,000. What is small is not counted
here, so a call with short lists costs next to nothing.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ...errors import QuotaExceeded
from ...inferlets.futures import FutureTable
from ...resources.address_space import AddressSpace
from ...resources.hazards import make_stamp

NUMBER_BYTES = 40
"""Memory of a number in a list of Python."""
SMALL_NUMBERS = 16
SMALL_BYTES = SMALL_NUMBERS * NUMBER_BYTES
"""Lists of one call that are not counted."""


def weigher(parameters: Sequence[inspect.Parameter]) -> Callable[[Sequence[Any]], int]:
    """A function that gives the bytes of the lists and texts of a call with these parameters, 0 if they are small."""
    lists = [place for place, one in enumerate(parameters) if str(one.annotation).startswith("Sequence")]
    texts = [place for place, one in enumerate(parameters) if one.annotation == "str"]
    matchers = [place for place, one in enumerate(parameters) if one.annotation == "Matcher | None"]
    images = [place for place, one in enumerate(parameters) if one.annotation == "Image"]

    if not (lists or texts or matchers or images):
        return _weigh_nothing
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
        for place in matchers:
            if arguments[place] is not None:
                size += arguments[place].bytes
        for place in images:  # the first vector and a position for each come behind it
            size += arguments[place].weight(arguments[place + 1], len(arguments[place + 2]))
        return size if size > SMALL_BYTES else 0

    return weigh if texts or matchers or images else weigh_lists


def _weigh_nothing(_arguments: Sequence[Any]) -> int:
    return 0


class PendingBytes:
    """What one inferlet has pending, over all models."""

    __slots__ = ("_futures", "_limit", "_waiting", "_waiting_bytes")

    def __init__(self, limit: int, futures: FutureTable) -> None:
        self._limit = limit
        self._futures = futures
        self._waiting: dict[AddressSpace, deque[tuple[int, int]]] = {}  # (seq, bytes) of commands, the oldest first
        self._waiting_bytes = 0

    @property
    def bytes(self) -> int:
        """The bytes of commands that are not known to have left their queues, and of results, known or to come."""
        for space, commands in self._waiting.items():
            while commands and make_stamp(commands[0][0] + 1, 0) <= space.hazards.floor:
                self._waiting_bytes -= commands.popleft()[1]
        return self._waiting_bytes + self._futures.bytes

    def check(self, size: int) -> None:
        """Raises QuotaExceeded if `size` more bytes are more than may be pending."""
        if self._waiting_bytes + self._futures.bytes + size > self._limit and self.bytes + size > self._limit:
            raise QuotaExceeded(
                f"{self.bytes} bytes of commands that wait and of results not taken are held and {size} more asked "
                f"for, the limit is {self._limit}; wait for results and take them first"
            )

    def issued(self, space: AddressSpace, size: int) -> None:
        """Counts the newest command of a space, until no command up to it waits."""
        if space.waiting:
            self._waiting.setdefault(space, deque()).append((space.seq, size))
            self._waiting_bytes += size
