"""What goes into a turn of the scheduler, and what comes out. The other events are what address spaces hand on
(pie_control.calls.kind) and the `WaveDone` of the worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.calls.kind import Adopt, CloseQueue, Command, Discard, EndRun, OpenQueue, Prioritize, Release
from pie_control.calls.scores import Scores
from pie_control.calls.values import Completion
from pie_control.errors import CallError, InvalidState
from pie_control.ids import Owner
from pie_control.record import Record
from pie_control.resources.holdings import Forgotten
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_inference.protocol import DropAdapter, RunWave, WaveDone

log = logging.getLogger(__name__)


class Opened(Record, frozen=True):
    """An inferlet of a host uses the model. Its host says no more than whose number it has: control knows the rest.
    `created` is a time in seconds: when memory runs out, it says which inferlet is older."""

    owner: Owner
    created: float = 0.0
    standing: Standing = DEFAULT_STANDING
    host: int = 0


class Closed(Record, frozen=True):
    """An inferlet has ended: all that it held is free, and its futures are forgotten."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class HostQuiet:
    """Every inferlet of a host waits, with all that it was told up to the turn of number `heard` (None: with all there
    is to tell): nobody has to wait for one of them before something else happens."""

    host: int = 0
    heard: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker is gone, with what inferlets held on it."""

    message: str


Note = OpenQueue | CloseQueue | Prioritize | Release | Forgotten | EndRun | Adopt | Discard
Event = Opened | Closed | Command | Note | WaveDone | WorkerLost | HostQuiet | DropAdapter


class Reason(StrEnum):
    """Why the scheduler ends an inferlet."""

    EXCEEDED = "exceeded"  # its tenant or key has spent its budget of the day
    EVICTED = "evicted"  # others need what it holds
    FAILED = "failed"  # a command failed on the worker, so its state is not what it thinks
    LOST = "lost"  # the worker is gone, and with it its state


class Ending(Record, frozen=True, gc=True):
    """An inferlet has to end. The scheduler has closed its account already."""

    owner: Owner
    reason: Reason
    error: CallError


def fault_of(error: Exception) -> CallError:
    """What an inferlet is told whose event could not be: it was nonsense, or the server has a defect."""
    if isinstance(error, CallError):
        return error
    log.error("what an inferlet did could not be scheduled", exc_info=error)
    return InvalidState(f"what it did could not be scheduled ({error!r}): this is a defect of the server")


class Progress(NamedTuple):
    """For an inferlet's address space: no command below `oldest` waits, and `taken` have left their queues in all.
    `returned`: numbers under which memory was given back that is not bound any more. `bound`: numbers of commands that
    could have less memory than they asked for, and how much they have."""

    owner: Owner
    oldest: int
    taken: int
    returned: tuple[int, ...] = ()
    bound: tuple[tuple[int, int], ...] = ()


class StepAnswers(NamedTuple):
    """What a wave's steps of decode runs gave. `over`: which of them say that their runs are over; `errors`: by step;
    such a run ends. `scores`: of the steps that asked for them."""

    tokens: NDArray[np.int32]
    over: NDArray[np.bool_]
    errors: Mapping[int, CallError]
    scores: Mapping[int, Scores]


class RunTokens(Record, frozen=True, tag=None):
    """Tokens of decode runs, column by column: a row for each token, those of a run in their order."""

    owners: Sequence[Owner] = ()
    futures: Sequence[int] = ()
    tokens: Sequence[int] = ()
    over: Sequence[bool] = ()  # whether the run has ended with this row
    errors: Mapping[int, CallError] = {}  # by row: why the run failed; it has no token in this row, and is over
    scores: Mapping[int, Scores] = {}  # by row, of runs that asked for them

    def __bool__(self) -> bool:
        return bool(self.owners)

    def part(self, rows: Sequence[int]) -> RunTokens:
        """Some of the rows."""
        errors = {place: self.errors[row] for place, row in enumerate(rows) if row in self.errors}
        scores = {place: self.scores[row] for place, row in enumerate(rows) if row in self.scores}
        return RunTokens(
            [self.owners[row] for row in rows],
            [self.futures[row] for row in rows],
            [self.tokens[row] for row in rows],
            [self.over[row] for row in rows],
            errors,
            scores,
        )


def join_tokens(some: Sequence[RunTokens]) -> RunTokens:
    """One behind the other."""
    if len(some) < 2:
        return some[0] if some else RunTokens()
    owners: list[Owner] = []
    futures: list[int] = []
    tokens: list[int] = []
    over: list[bool] = []
    errors: dict[int, CallError] = {}
    scores: dict[int, Scores] = {}
    for one in some:
        scores.update({len(owners) + row: score for row, score in one.scores.items()})
        errors.update({len(owners) + row: error for row, error in one.errors.items()})
        owners += one.owners
        futures += one.futures
        tokens += one.tokens
        over += one.over
    return RunTokens(owners, futures, tokens, over, errors, scores)


class Turn(NamedTuple):
    """What has to be done now."""

    waves: tuple[RunWave, ...]  # to send, in order
    completions: tuple[Completion, ...]
    endings: tuple[Ending, ...]
    progress: tuple[Progress, ...]
    deadline: float | None  # when to take a turn though nothing happened; a later turn puts another in its place
    number: int = 0  # for `HostQuiet.heard`
    runs: RunTokens = RunTokens()
