"""The decode runs of one inferlet at one model that are not over, as its address space knows them.

Theory of operation. A run is one command that samples many tokens. Where it stands is told late, token by token; so its
slots are reserved when it is issued, and become visible as its tokens are delivered: with token n, slot n - 1, for the
run was over the tokens before it. What a run writes goes to the worker before anything that is issued after its tokens
were delivered, so nobody waits for a run. Instead, what a run that goes on reads or writes must not be written by
others: that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pie_control.errors import InvalidState
from pie_control.resources.ranges import Range, overlap

from .pages import PageTable
from .reservations import Reservation, fill_reserved, unreserve


@dataclass(slots=True, eq=False)
class HeldRun:
    """What one run holds. `reservation`: None for a run of one step, which fills no slot."""

    queue: int
    embeds: Sequence[Range]  # that it writes, ascending
    reads: Sequence[Range]  # pages, which the inferlet owns
    reservation: Reservation | None
    position: int  # of the first token that it runs
    settle: Callable[[int, bool], None]  # told at the end how many tokens were delivered, and whether these were all
    delivered: int = 0  # tokens


class HeldRuns:
    """By future."""

    def __init__(self, pages: PageTable) -> None:
        self._pages = pages
        self._runs: dict[int, HeldRun] = {}
        self._readers = np.zeros(0, np.int32)  # runs that see a page, by its address

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, future: int, run: HeldRun) -> None:
        """A run was issued."""
        self._runs[future] = run
        if (more := len(self._pages.fill) - len(self._readers)) > 0:
            self._readers = np.concatenate([self._readers, np.zeros(more, np.int32)])
        self._count(run, 1)

    def _count(self, run: HeldRun, sign: int) -> None:
        for first, end in run.reads:
            self._readers[first:end] += sign

    def find(self, future: int) -> HeldRun | None:
        """A run that is not over."""
        return self._runs.get(future)

    def advanced(self, future: int, tokens: Sequence[int], over: bool) -> bool:
        """Tokens of a run were delivered; `over`: and it has ended. False if it was cancelled: these tokens are not
        its inferlet's."""
        run = self._runs.get(future)
        if run is None:
            return False
        before = run.delivered
        run.delivered = delivered = before + len(tokens)
        if run.reservation is not None:
            slots, pages, position = run.reservation.slots, self._pages, run.position
            for number in range(before - 1 if before else 0, delivered - 1):
                fill_reserved(pages, slots[number], position + number)
        if over:
            self.end(future, by_itself=True)
        return True

    def end(self, future: int, *, by_itself: bool = False) -> bool:
        """A run is over; False if it was before. What it did not fill is free again. `by_itself`: all tokens that it
        sampled were delivered."""
        run = self._runs.pop(future, None)
        if run is None:
            return False
        self._count(run, -1)
        if run.reservation is not None:
            unreserve(self._pages, run.reservation, max(run.delivered - 1, 0))
        run.settle(run.delivered, by_itself)
        return True

    def clear(self) -> None:
        """The inferlet has ended."""
        self._runs.clear()
        self._readers[:] = 0

    # ---- what others must not do meanwhile ----

    def check_embeds(self, queue: int, embeds: Sequence[Range]) -> None:
        """Whether a command of a queue may write these embeds. Raises InvalidState if a run of another queue uses one
        of them; those of its own queue are over when its turn comes."""
        for future, run in self._runs.items():
            if run.queue != queue and overlap(run.embeds, embeds):
                raise InvalidState(
                    f"decode run {future} of queue {run.queue} goes on and uses one of the embeds: wait for its end, "
                    "or cancel it first"
                )

    def check_emptied(self, pages: Iterable[int]) -> None:
        """Whether tokens in these pages may be emptied or overwritten. Raises InvalidState if a run sees them."""
        if not self._runs:
            return
        emptied = np.fromiter(pages, np.int64)
        if self._readers[emptied[emptied < len(self._readers)]].any():
            raise InvalidState(
                "a decode run goes on and sees tokens of these pages: wait for its end, or cancel it first"
            )
