"""The steps of decode runs that a wave under formation takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.kind import Call
from pie_control.calls.tokens import MOST_LISTED
from pie_control.resources.holdings import Holdings
from pie_control.resources.memory import Memory

from .run import DecodeRun
from .runs import NO_ROWS, Rows, Runs, TakenSteps

Q = TypeVar("Q")


class Steps(Generic[Q]):
    """Chooses steps one by one, or all at once, and adds them to the batches in the end. `batch` gives the wave's batch
    of a call."""

    def __init__(self, runs: Runs[Q], memory: Memory, batch: Callable[[Call], Any]) -> None:
        self._runs = runs
        self._memory = memory
        self._batch = batch
        self._fresh: list[int] = []  # rows of runs that begin
        self._chosen: list[int] = []  # rows of others
        self._all = NO_ROWS  # instead of these
        self._listed = 0  # tokens that penalties count

    def __bool__(self) -> bool:
        return bool(self._fresh or self._chosen or len(self._all))

    def fit(self, rows: Rows) -> bool:
        """Whether there is room for a step of each of these rows."""
        if not len(rows):
            return True
        return len(rows) <= self._batch(RunCommand.call).room and self._runs.listed(rows) <= MOST_LISTED

    def take_all(self, rows: Rows) -> None:
        """A step of each of these rows, which fit."""
        if len(rows):
            self._all = rows
            self._batch(RunCommand.call).promise(len(rows))

    def try_take(self, run: DecodeRun[Q]) -> bool:
        """A step of a run that is ready; False if it does not fit."""
        if not self._have_room(run.listed):
            return False
        self._take_room(run.listed)
        self._chosen.append(run.row)
        return True

    def try_begin(self, queue: Q, command: RunCommand, holdings: Holdings, meter: int) -> DecodeRun[Q] | None:
        """A run begins with this wave; None if its first step, a sample, does not fit. Nothing has happened if it
        raises an error."""
        if not self._have_room(len(command.recent)):
            return None
        run = self._runs.begin(queue, command, holdings, meter)
        self._take_room(len(command.recent))
        self._fresh.append(run.row)
        return run

    def _have_room(self, listed: int) -> bool:
        room = self._batch(RunCommand.call).room
        return room > 0 and not (self._listed and self._listed + listed > MOST_LISTED)

    def _take_room(self, listed: int) -> None:
        self._listed += listed
        self._batch(RunCommand.call).promise(1)

    def join_batches(self) -> tuple[TakenSteps, list[DecodeRun[Q]]]:
        """Adds them to the batches. Some runs have to go on to another page then."""
        others = self._all if len(self._all) else np.array(self._chosen, np.int64)
        slots = self._memory.tokens.take(len(self._fresh) + len(others))
        taken, columns = self._runs.take(self._fresh, others, slots, self._memory.wave)
        self._batch(RunCommand.call).extend(columns.samples)
        if len(others):
            self._batch(RunCommand.embeds).extend(columns.embeds)
            self._batch(RunCommand.forwards).extend(columns.forwards)
        return taken, self._runs.at_page_end(taken)
