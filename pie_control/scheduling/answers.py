"""Waves that were sent, and the answers of the worker, back to the futures that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pie_control.calls.kind import Batch, WorkerCommand
from pie_control.calls.scores import Scores
from pie_control.calls.values import Value
from pie_control.errors import Busy, CallError, WorkerError
from pie_control.ids import Owner
from pie_inference import protocol
from pie_inference.protocol import WaveDone

from .account import Account
from .decoding.runs import TakenSteps
from .turn import Progress, StepAnswers

Answers = list[tuple[Batch[Any], Sequence[Value], Mapping[int, CallError]]]


@dataclass(slots=True)
class Wave:
    """A wave in flight: what the answers of the worker belong to."""

    number: int
    batches: list[Batch[Any]]  # in the order of the message
    accounts: dict[Account, int]  # with the number of their queues in it, but for steps of runs
    steps: TakenSteps | None = None  # of decode runs
    syncs: list[tuple[Owner, int]] = field(default_factory=list)  # futures that are done with this wave
    sent: float = 0.0  # seconds
    tokens: int = 0  # input tokens
    long: int = 0  # of these, tokens of long commands

    def goes(self, now: float) -> None:
        """It is sent now."""
        self.sent = now

    def ends(self, owner: Owner, future: int) -> None:
        """The future is done with this wave."""
        self.syncs.append((owner, future))

    def build(self) -> tuple[protocol.Batch, ...]:
        return tuple(batch.build() for batch in self.batches)


def read_answers(wave: Wave, done: WaveDone) -> Answers:
    """The batches of a wave with their values, and with errors by place. Changes nothing. Raises WorkerError if the
    answer does not fit the wave."""
    if wave.number != done.wave or len(wave.batches) != len(done.results):
        raise WorkerError(f"the worker answered wave {done.wave}, which is not the oldest in flight, or in part")
    errors = _errors_by_batch(wave, done)
    return [
        (batch, _values(batch, result, errors[place]), errors[place])
        for place, (batch, result) in enumerate(zip(wave.batches, done.results, strict=True))
    ]


def _values(batch: Batch[Any], result: Any, errors: Mapping[int, CallError]) -> Sequence[Value]:
    if result is None and len(errors) == batch.count:
        return ()  # all failed
    return batch.values(result)


def _errors_by_batch(wave: Wave, done: WaveDone) -> list[dict[int, CallError]]:
    errors: list[dict[int, CallError]] = [{} for _ in wave.batches]
    for failure in done.failures:
        if not (0 <= failure.batch < len(errors) and 0 <= failure.command < wave.batches[failure.batch].count):
            raise WorkerError(f"the worker tells of a failed command {failure.command} that is not in the wave")
        kind = Busy if failure.busy else WorkerError
        errors[failure.batch][failure.command] = kind(f"the worker could not run the command: {failure.message}")
    return errors


def in_place(
    batch: Batch[Any], values: Sequence[Value], errors: Mapping[int, CallError]
) -> Iterator[tuple[WorkerCommand, Value | CallError]]:
    """Each command that has a value or failed, with what it gets."""
    if not errors:
        return zip(batch.commands, values, strict=False)  # there may be no values at all
    number = len(batch.commands)
    places = range(number) if values else sorted(place for place in errors if place < number)
    return ((batch.commands[place], errors.get(place) or values[place]) for place in places)


def read_steps(wave: Wave, done: WaveDone, answers: Answers) -> StepAnswers:
    """The tokens of a wave's steps of decode runs, and errors and scores by step. One fails with any of its rows.
    Changes nothing."""
    assert wave.steps is not None
    number = len(wave.steps.rows)
    tokens, over = np.full(number, -1, np.int32), np.zeros(number, np.bool_)
    errors: dict[int, CallError] = {}
    scores: dict[int, Scores] = {}
    for (batch, _, failed), result in zip(answers, done.results, strict=True):
        if not batch.rows:
            continue
        first = number - batch.rows  # a first step has no rows but in the last batch
        commands = len(batch.commands)
        errors.update({first + place - commands: error for place, error in failed.items() if place >= commands})
        if (told := batch.rows_told(result)) is not None:
            tokens, scores = told.tokens, told.scores
            over = over if told.over is None else told.over
    return StepAnswers(tokens, over, errors, scores)


def take_progress(moved: dict[Account, None], present: Mapping[Owner, Account], *, at_once: bool) -> list[Progress]:
    """What address spaces should hear now; the others stay in `moved`. That commands have left their queues is worth
    no frame of its own, which would wake a host: if not `at_once`, it is told with the answer of a wave in flight.
    Memory that has come back is told in any case: others may ask for it."""
    told = [one for one in moved if at_once or one.returned]
    for one in told:
        del moved[one]
    return [one.progress() for one in told if one.owner in present]
