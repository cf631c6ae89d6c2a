"""How batches are checked and cut, where results alone would not show a mistake."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.attention import layout, ragged
from pie_inference.errors import BatchError
from pie_inference.protocol import Forward
from testing.attention_oracle import Case, Problem, Request

PAGE = 16


def problem_of(*requests: Request) -> Problem:
    return Problem(Case(requests), torch.float32)


def cut(problem: Problem, size: int | None) -> list[layout.Segment]:
    checked = ragged.check(problem.batch, PAGE, problem.num_pages)
    window = None if size is None else layout.Window(size, problem.positions.reshape(-1, PAGE))
    return layout.cut(problem.batch, checked, PAGE, window)


@pytest.mark.parametrize(("size", "pages"), [(None, 63), (1000, 63), (100, 7), (17, 2), (1, 1)])
def test_pages_outside_the_window_are_not_gathered(size: int | None, pages: int) -> None:
    [segment] = cut(problem_of(Request(1, 1000)), size)
    assert segment.pages.shape[1] == pages


def test_a_tile_of_a_prefill_looks_at_its_own_window() -> None:
    [segment] = cut(problem_of(Request(512, 512)), 64)
    assert [tile.first_page for tile in segment.tiles] == [0, 0, 4, 8, 12, 16, 20, 24]
    assert {tile.visible.shape[-1] // PAGE for tile in segment.tiles} <= {4, 8}


def test_a_window_takes_sequences_apart_by_what_they_see() -> None:
    problem = problem_of(Request(1, 1000), Request(1, 40), Request(1, 500))
    assert sorted(segment.pages.shape[1] for segment in cut(problem, None)) == [3, 63]
    assert [segment.pages.shape for segment in cut(problem, 32)] == [(3, 3)]


def test_every_row_is_in_one_tile() -> None:
    problem = problem_of(Request(1, 1000), Request(70, 140), Request(0, 3), Request(9, 9), Request(1, 2))
    rows = np.concatenate([np.unique(tile.rows) for segment in cut(problem, None) for tile in segment.tiles])
    assert sorted(rows) == list(range(81))


def changed(batch: Forward, **changes: Any) -> Forward:
    return msgspec.structs.replace(batch, **changes)


def with_element(array: np.ndarray, index: int, value: int) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("q_slots", 1, -1, "KV slot -1 does not exist; they are 0 to 159"),
        ("q_slots", 5, 160, "KV slot 160 does not exist"),
        ("q_positions", 0, -5, "position -5 is negative"),
        ("kv_pages", 0, 10, "page 10 does not exist; they are 0 to 9"),
        ("kv_pages", -1, -1, "page -1 does not exist"),
        ("kv_begins", -1, -1, "keys -1 to 8 leave their page of 16 slots"),
        ("kv_ends", -1, 17, "keys 0 to 17 leave their page of 16 slots"),
        ("kv_ends", 1, 0, "keys"),
        ("q_indptr", 0, 1, "q_indptr must run"),
        ("q_indptr", -1, 100, "q_indptr must run"),
        ("kv_indptr", 1, 100, "kv_indptr must run"),
        ("mask_indptr", 1, 1, "the mask has 1 bytes, not one bit for each of 20 pairs"),
        ("mask_indptr", 2, 10, "the mask has 10 bytes, not one bit for each of 200 pairs"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(field: str, index: int, value: int, message: str) -> None:
    problem = problem_of(Request(1, 20, "holes"), Request(5, 40, mask="random"), Request(3, 8))
    assert problem.num_pages == 10
    wrong = changed(problem.batch, **{field: with_element(getattr(problem.batch, field), index, value)})
    with pytest.raises(BatchError, match=message):
        ragged.check(wrong, PAGE, problem.num_pages)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_positions": np.zeros(1, np.int32)}, "2 KV slots for new keys, 1 positions"),
        ({"kv_ends": np.zeros(9, np.int32)}, "the arrays of runs differ in length"),
        ({"q_indptr": np.array([0, 2], np.int32)}, "1 sequences of queries, 2 of keys"),
        ({"q_indptr": np.zeros(0, np.int32)}, "q_indptr must run"),
        ({"mask_indptr": np.zeros(2, np.int64), "mask_bits": np.zeros(0, np.uint8)}, "2 sequences, 1 masks"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(changes: dict[str, Any], message: str) -> None:
    problem = problem_of(Request(1, 20), Request(1, 20))
    with pytest.raises(BatchError, match=message):
        ragged.check(changed(problem.batch, **changes), PAGE, problem.num_pages)


def test_more_queries_than_keys_are_refused() -> None:
    problem = problem_of(Request(2, 20), Request(5, 5))
    wrong = changed(problem.batch, kv_ends=with_element(problem.batch.kv_ends, -1, 4))
    with pytest.raises(BatchError, match="more queries than keys: 5 queries, 4 keys"):
        ragged.check(wrong, PAGE, problem.num_pages)
