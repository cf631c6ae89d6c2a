"""Runs the batches of a wave, also when one fails.

A batch that fails is taken apart: its commands run one by one, in order, so that only those at fault fail; and those
whose states it may have changed already, which would go on from wrong ones. Later batches run as well. The control
layer, not the worker, knows which inferlets depend on a failed command.

All ranks of a group do the same. At each failure of a batch or a command they meet (`agree`) before they go on: a rank
that failed alone would take a batch apart, while the others wait in an operation on the whole batch.
"""

from __future__ import annotations

import traceback

import numpy as np

from ..errors import InferenceError
from ..execution.interface import Agree
from ..execution.launched import Outcome, PendingResult, await_outcome
from ..execution.served_model import ServedModel
from ..handlers.table import HANDLERS
from ..protocol import Batch, Failure, Forward, RunWave, call_name, join_results
from ..recurrence.batches import in_place

REFUSALS = (InferenceError, ValueError, TypeError, AttributeError, IndexError)
"""The exceptions of a handler that is given wrong arrays, or lacks some. It looks at them before it changes anything.
"""
FAULTS = (*REFUSALS, RuntimeError, MemoryError)
"""Those that nobody has to look into. Whatever a handler raises, commands fail, and not the worker with all others."""

WHOLE_BATCH = -1
"""The number in place of a command's in the failure of a batch that will be taken apart."""


class WaveRun:
    """Runs the batches of one wave; `failures` has those of commands that could not be launched."""

    def __init__(self, served: ServedModel, wave: RunWave, agree: Agree) -> None:
        self.failures: list[Failure] = []
        self._pending: list[tuple[int, int, str, PendingResult]] = []
        self._served = served
        self._wave = wave
        self._agree = agree

    def run(self) -> tuple[Outcome, ...]:
        """Runs the batches in order, without waiting for a GPU. Raises RankLost."""
        if self._wave.model == self._served.description.name:
            return tuple(self._run_batch(number, batch) for number, batch in enumerate(self._wave.batches))
        message = f"this worker serves {self._served.description.name!r}, not {self._wave.model!r}"
        for number, batch in enumerate(self._wave.batches):
            self.failures += [Failure(number, command, message) for command in range(batch.count())]
        return (None,) * len(self._wave.batches)

    def all_failures(self) -> tuple[Failure, ...]:
        """Those of commands that were launched as well, in order, once the wave is done. Only the leader of a group
        knows them."""
        found = [
            Failure(number, first + place, f"{name}: {fault.message}", fault.busy)
            for number, first, name, pending in self._pending
            for place, fault in pending.faults()
        ]
        return tuple(sorted([*self.failures, *found], key=lambda failure: (failure.batch, failure.command)))

    def _run_batch(self, number: int, batch: Batch) -> Outcome:
        try:
            outcome = HANDLERS[type(batch)](self._served, batch)
        except Exception as error:
            self._agree(_failure(number, WHOLE_BATCH, batch, error))
            lost = self._lost_states(number, batch, error)
        else:
            self._note(number, 0, batch, outcome)
            return outcome
        commands = range(max(1, batch.count()))
        outcomes = [None if one in lost else self._run_alone(number, one, batch) for one in commands]
        if not any(outcomes):
            return None
        return PendingResult(lambda: join_results(batch, [await_outcome(each) for each in outcomes]))

    def _lost_states(self, number: int, batch: Batch, error: Exception) -> set[int]:
        """The commands that cannot run once more, which fail."""
        if isinstance(error, REFUSALS) or not isinstance(batch, Forward):
            return set()
        lost = np.flatnonzero(in_place(batch)).tolist()
        for command in lost:
            failure = _failure(number, command, batch, error)
            told = f"{failure.message}; the text's state was changed meanwhile, and is lost: run the text again"
            self.failures.append(Failure(number, command, told))
        return set(lost)

    def _run_alone(self, number: int, command: int, batch: Batch) -> Outcome:
        try:
            outcome = HANDLERS[type(batch)](self._served, batch.only(command))
        except Exception as error:
            if not isinstance(error, FAULTS):
                traceback.print_exc()
            self.failures.append(_failure(number, command, batch, error))
            self._agree(self.failures[-1])
            return None
        self._note(number, command, batch, outcome)
        return outcome

    def _note(self, number: int, first: int, batch: Batch, outcome: Outcome) -> None:
        if isinstance(outcome, PendingResult):
            self._pending.append((number, first, call_name(type(batch)), outcome))


def _failure(number: int, command: int, batch: Batch, error: Exception) -> Failure:
    return Failure(number, command, f"{call_name(type(batch))}: {error}")
