"""The slots of states that a batch names are checked before anything runs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.errors import BatchError
from pie_inference.protocol import Forward
from pie_inference.recurrence.batches import runs_of
from pie_inference.recurrence.states import States
from pie_inference.recurrence.torch_recurrences import TorchRecurrences
from testing.worker_batches import Driver, Extend, Keys

CPU = torch.device("cpu")
N = -1


def batch(counts: list[int], reads: list[int] | None, writes: list[int] | None) -> Forward:
    steps = [Extend(Keys(), [1] * count) for count in counts]
    _, found = Driver(lambda wave: pytest.fail("not run"), "model").forward_batch(steps)
    slots = (None if each is None else np.array(each, np.int32) for each in (reads, writes))
    return msgspec.structs.replace(found, **dict(zip(("state_reads", "state_writes"), slots, strict=True)))


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ([N, N], [N, 1, 2]),
        ([1, 2], [N, 1, 2]),  # in place
        ([3, 3], [N, 1, 2]),  # a fork
        ([3, N], [0, 1, N]),  # states behind both rows
        ([3, 3], [N, N, N]),
    ],
)
def test_what_may_run(reads: list[int], writes: list[int]) -> None:
    runs = runs_of(batch([2, 1], reads, writes), 4, CPU)
    assert (runs.starts.tolist(), runs.longest) == ([0, 2, 3], 2)
    assert (runs.reads.tolist(), runs.writes.tolist()) == (reads, writes)


@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        (None, [N, 1, 2], "must name the slots"),
        ([N, N], None, "must name the slots"),
        ([N, 4], [N, 1, 2], "state slots are 0 to 3"),
        ([N, -2], [N, 1, 2], "state slots are 0 to 3"),
        ([N, N], [N, 4, 2], "state slots are 0 to 3"),
        ([N, N], [N, 1, 1], "two rows write one state slot"),
        ([N, 1], [N, 1, 2], "state slot 1 is read by another sequence"),
        ([1, 1], [N, 1, 2], "state slot 1 is read by another sequence"),
        ([1, N], [1, N, 2], "state slot 1 is .* needed again"),
        ([1, N], [3, 1, 2], "state slot 1 is .* needed again"),
    ],
)
def test_what_is_refused(reads: list[int] | None, writes: list[int] | None, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        runs_of(batch([2, 1], reads, writes), 4, CPU)


def test_arrays_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="q_indptr of state_writes"):
        runs_of(batch([2, 1], [N, N], [N, 1]), 4, CPU)


def test_a_model_without_states_takes_no_slots() -> None:
    states = States(TorchRecurrences(), torch.float32, CPU)
    with pytest.raises(BatchError, match="keeps no states"), states.beside(batch([2, 1], [N, N], [N, 1, 2])):
        pytest.fail("it runs")
    with states.beside(batch([2, 1], None, None)):
        pass


def test_one_command_of_a_batch_has_its_own_slots() -> None:
    alone = batch([2, 1], [3, 0], [N, 1, 2]).only(0)
    assert alone.state_reads is not None
    assert alone.state_writes is not None
    assert (alone.state_reads.tolist(), alone.state_writes.tolist()) == ([3], [N, 1])
