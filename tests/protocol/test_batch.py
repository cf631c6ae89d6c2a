"""Batches are taken apart, command by command, and their results put together."""

from __future__ import annotations

import numpy as np
import pytest

from pie_inference.protocol import (
    BATCHES,
    Batch,
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    GetNextDistResult,
    Result,
    SampleResult,
    SwapOut,
    VerifyResult,
    join_results,
)
from testing.worker_batches import Driver, Extend, Keys, dist_batch, embed_batch, ints, sample_batch


def fields(message: Batch | Result) -> dict[str, object]:
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def test_columns_and_ranges_are_cut() -> None:
    batch = embed_batch(ints([1, 2, 3]), ints([4, 5, 6]), [2, 0, 1])
    assert batch.count() == 3
    assert [fields(batch.only(n)) for n in range(3)] == [
        {"embeds": [1, 2], "tokens": [4, 5], "indptr": [0, 2]},
        {"embeds": [], "tokens": [], "indptr": [0, 0]},
        {"embeds": [3], "tokens": [6], "indptr": [0, 1]},
    ]
    none = dict.fromkeys(("state_indptr", "states", "host_states"))
    assert fields(SwapOut(ints([1, 2]), ints([3, 4])).only(1)) == {"pages": [2], "host_pages": [4], **none}
    states = {"state_indptr": ints([0, 2, 3]), "states": ints([5, 6, 7]), "host_states": ints([2, 1, 0])}
    assert fields(SwapOut(ints([1, 2]), ints([3, 4]), **states).only(1)) == (
        {"pages": [2], "host_pages": [4], "state_indptr": [0, 1], "states": [7], "host_states": [0]}
    )


def test_shared_arrays_stay_whole() -> None:
    allowed = np.arange(6, dtype=np.uint8).reshape(2, 3)
    batch = sample_batch(ints([7, 8]), allowed_rows=ints([-1, 1]), allowed=allowed)
    alone = batch.only(1)
    assert alone.allowed_rows is not None
    assert (alone.embeds.tolist(), alone.allowed_rows.tolist()) == ([8], [1])
    assert alone.allowed is allowed


def forward_of_three() -> Forward:
    driver = Driver(lambda wave: pytest.fail("not run"), "model")
    mask = np.eye(2, dtype=bool)
    return driver.forward_batch([Extend(Keys(), [1, 2, 3]), Extend(Keys(), [4, 5], mask), Extend(Keys(), [6])])[1]


def test_a_sequence_alone_has_its_own_rows_and_mask() -> None:
    batch = forward_of_three()
    alone = batch.only(1)
    assert alone.q_indptr.tolist() == [0, 2]
    assert alone.q_slots.tolist() == batch.q_slots[3:5].tolist()
    assert alone.kv_pages.tolist() == batch.kv_pages[1:2].tolist()
    assert alone.out_rows.tolist() == [0, 1]
    assert alone.out_embeds.tolist() == batch.out_embeds[3:5].tolist()
    assert alone.mask_indptr is not None
    assert alone.mask_indptr.tolist() == [0, 1]
    without = batch.only(0).mask_indptr
    assert without is not None
    assert without.tolist() == [0, 0]


def test_a_row_of_no_sequence_goes_to_the_last() -> None:
    batch = forward_of_three()
    batch.out_rows[0] = 99
    assert [len(batch.only(n).out_rows) for n in range(3)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (SwapOut(ints([1, 2]), ints([3])), "host_pages has 1 elements for 2 commands"),
        (GetLogprobs(ints([1]), ints([0, 2]), ints([1])), "indptr of tokens does not divide 1 elements"),
        (GetLogprobs(ints([1, 2]), ints([0, 3, 2]), ints([1, 2])), "indptr of tokens does not divide"),
        (GetLogprobs(ints([1]), ints([1, 2]), ints([1, 2])), "indptr of tokens does not divide"),
        (GetLogprobs(ints([1]), np.array([0.0, 1.0]), ints([1])), "indptr of tokens has float64 numbers, not integers"),
        (GetLogprobs(ints([1, 2]), ints([0, 1]), ints([1])), "embeds has 2 elements for 1 commands"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(batch: Batch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch.only(0)


def test_every_batch_can_be_taken_apart() -> None:
    empty = np.zeros(1, np.int32)
    for kind in BATCHES.values():
        arrays = {name: empty if name.endswith("indptr") else empty[:0] for name in kind.__struct_fields__}
        assert kind(**arrays).count() == 0


def test_results_are_joined_with_zeros_for_what_failed() -> None:
    batch = sample_batch(ints([1, 2, 3]))
    one = [SampleResult(ints([token])) for token in (5, 6)]
    joined = join_results(batch, [one[0], None, one[1]])
    assert joined is not None
    assert isinstance(joined, SampleResult)
    assert (joined.tokens.tolist(), joined.score_indptr, joined.over) == ([5, 0, 6], None, None)
    with_matchers = sample_batch(ints([1, 2, 3]), matchers=np.array([0, 7, 8]), matched=ints([0, 1, 1]))
    over = [SampleResult(ints([token]), over=np.array([True])) for token in (5, 6)]
    joined = join_results(with_matchers, [over[0], None, over[1]])
    assert isinstance(joined, SampleResult)
    assert joined.over is not None
    assert (joined.tokens.tolist(), joined.over.tolist()) == ([5, 0, 6], [True, False, True])
    assert join_results(batch, [None, None, None]) is None


def test_log_probabilities_of_what_failed_are_empty_ranges() -> None:
    batch = sample_batch(ints([1, 2, 3]), alternatives=ints([1, 0, -1]))
    scored = SampleResult(ints([5]), ints([0, 2]), ints([5, 6]), np.array([-1, -2], np.float32))
    plain = SampleResult(ints([7]), ints([0, 0]), ints([]), np.zeros(0, np.float32))
    joined = join_results(batch, [scored, None, plain])
    assert joined is not None
    assert fields(joined) == {
        "tokens": [5, 0, 7], "score_indptr": [0, 2, 2, 2], "scored": [5, 6], "logprobs": [-1, -2], "over": None,
    }  # fmt: skip


def test_ragged_results_are_joined_with_empty_ranges() -> None:
    dist = GetNextDistResult(
        ints([0, 2]), ints([8, 9]), np.array([0.5, 0.25], np.float32), np.array([0.25], np.float32)
    )
    joined = join_results(dist_batch(ints([1, 2, 3]), 2), [None, dist, dist])
    assert isinstance(joined, GetNextDistResult)
    assert fields(joined) == {
        "indptr": [0, 0, 2, 4],
        "tokens": [8, 9, 8, 9],
        "probabilities": [0.5, 0.25, 0.5, 0.25],
        "rest": [0, 0.25, 0.25],
        "rest_indptr": None,
    }
    columns = (joined.indptr, joined.probabilities, joined.rest)
    assert [column.dtype.name for column in columns] == ["int32", "float32", "float32"]
    batch = GetLogprobs(ints([1, 2]), ints([0, 2, 3]), ints([4, 5, 6]))
    logprobs = join_results(batch, [None, GetLogprobsResult(np.array([-1], np.float32))])
    assert logprobs is not None
    assert fields(logprobs) == {"logprobs": [0, 0, -1]}


def test_every_kind_of_zeros_is_joined_with_itself() -> None:
    empty = np.zeros(1, np.int32)
    for kind in BATCHES.values():
        batch = kind(**{name: empty if name.endswith("indptr") else empty[:0] for name in kind.__struct_fields__})
        zeros = batch.zeros()
        if zeros is not None:
            assert fields(type(zeros).joined([zeros, zeros])) == fields(zeros)
    assert isinstance(GetNextDist(ints([1]), ints([1]), np.ones(1)).zeros(), GetNextDistResult)
    assert VerifyResult(ints([1]), ints([2])).tokens.tolist() == [2]
