"""One decode run that is under way: what concerns it alone."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import numpy as np

from pie_control.calls.columns import Numbers
from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.scores import NO_SCORES
from pie_control.resources.holdings import Holdings

from .keys import RunKeys, segments_of

Q = TypeVar("Q")


class DecodeRun(Generic[Q]):
    """One run: what concerns it alone."""

    __slots__ = ("_recent", "command", "holdings", "keys", "line", "queue", "row", "segments", "uniform")

    def __init__(self, queue: Q, command: RunCommand, holdings: Holdings, page_size: int, row: int) -> None:
        self.queue = queue
        self.command = command
        self.holdings = holdings
        self.row = row  # of the table
        self.line = deque((command,))  # as of a queue: what was given back is taken back when it is empty
        context = command.context.intervals
        self.segments = deque(segments_of(context, command.own, page_size))
        self.keys = RunKeys(context, len(self.segments), holdings.pages.physical, page_size)
        self.uniform = np.frombuffer(command.uniform, "<f8")
        self._recent = np.zeros(0, np.int32)
        if command.params.has_penalties:
            self._recent = np.concatenate([command.recent, np.zeros(command.steps)]).astype(np.int32)

    def go_on(self, page: int) -> None:
        """Its next keys go to this physical page."""
        self.keys.go_on(page, self.segments.popleft())

    def end(self) -> None:
        """It uses nothing any more."""
        self.line.clear()

    @property
    def is_special(self) -> bool:
        """Whether it has a bias, or asks for log-probabilities."""
        return self.command.bias is not None or self.command.alternatives != NO_SCORES

    @property
    def listed(self) -> int:
        """Tokens that penalties count, at most."""
        return min(self.command.window or len(self._recent), len(self._recent))

    def note(self, number: int, token: int) -> None:
        """What is known of a token of its own, for penalties."""
        self._recent[len(self.command.recent) + number] = token

    def recent(self, known: int) -> Numbers:
        """What penalties count once it has so many tokens of its own."""
        end = len(self.command.recent) + known
        return self._recent[max(0, end - self.command.window) if self.command.window else 0 : end]
