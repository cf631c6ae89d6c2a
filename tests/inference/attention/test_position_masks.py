"""Masks that a worker makes from positions."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from pie_inference.attention import position_masks
from pie_inference.attention.position_masks import with_masks
from pie_inference.attention.ragged import check, mask_of
from pie_inference.errors import BatchError
from pie_inference.protocol import Forward
from testing.attention_oracle import CASES, Case, Problem, Request, filled_cache

CPU = torch.device("cpu")
REQUESTS = (Request(9, 40), Request(33, 90, "holes"), Request(20, 33, "scattered"), Request(1, 37), Request(5, 5))


def problem(seed: int, **changes: Any) -> tuple[Problem, Forward]:
    """A batch in which queries of all but the last sequence see some keys by position."""
    made = Problem(changed(Case(REQUESTS), seed=seed), torch.float32)
    random = np.random.default_rng(seed)
    older = [request.keys - request.queries for request in REQUESTS]
    counts = np.array([random.integers(0, most + 1) for most in older], np.int32)
    positions = random.integers(0, 60, len(made.new_slots)).astype(np.int32)
    return made, replace(made.batch, **{"position_keys": counts, "q_positions": positions, **changes})


@pytest.mark.parametrize("pairs", [1, 500, 1 << 24])
@pytest.mark.parametrize("seed", range(8))
def test_a_query_sees_the_keys_in_front_that_are_at_smaller_positions(
    seed: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_masks, "MOST_PAIRS", pairs)
    made, batch = problem(seed)
    cache = filled_cache(made, CPU)
    before = cache.positions.copy()
    masked = with_masks(batch, cache)
    assert masked.position_keys is None
    assert (cache.positions == before).all(), "planning records positions, not this"
    ragged = check(masked, made.case.page_size, made.num_pages)
    positions = before.copy()
    positions[made.new_slots] = batch.q_positions
    for n, sequence in enumerate(made.sequences):
        count = int(batch.position_keys[n])  # type: ignore[index]
        mask = mask_of(masked, ragged, n)
        if not count:
            assert mask is None
            continue
        queries = batch.q_positions[batch.q_indptr[n] : batch.q_indptr[n + 1]]
        expected = sequence.visible.copy()
        expected[:, :count] = positions[sequence.slots[:count]] < queries[:, None]
        np.testing.assert_array_equal(mask, expected)


def test_keys_of_the_same_batch_count_at_their_new_positions() -> None:
    """The second sequence reads a key that the first one writes: at position 99, where an older one was at -1000."""
    made = Problem(CASES["shared pages"], torch.float32)
    batch = made.batch
    page, place = divmod(int(batch.q_slots[0]), made.case.page_size)
    pages = batch.kv_pages.copy()
    pages[batch.kv_indptr[1]] = page
    counts = np.array([0, 16, 0], np.int32)
    masked = with_masks(replace(batch, kv_pages=pages, position_keys=counts), filled_cache(made, CPU))
    assert (int(batch.q_positions[0]), int(batch.q_positions[1])) == (99, 89)
    assert masked.mask_bits is not None
    assert not masked.mask_bits[place // 8] >> (place % 8) & 1


def test_a_batch_without_such_keys_is_left_as_it_is() -> None:
    made = Problem(CASES["mixed"], torch.float32)
    assert with_masks(made.batch, filled_cache(made, CPU)) is made.batch


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "element": ({"position_keys": np.zeros(2, np.int32)}, "position_keys has 2 elements for 5 sequences"),
    "negative": ({"position_keys": np.array([0, -1, 0, 0, 0], np.int32)}, "-1 keys are seen by position"),
    "own keys": (
        {"position_keys": np.array([32, 0, 0, 0, 0], np.int32)},
        "32 keys are seen by position, the sequence has 31 older ones",
    ),
    "both": (
        {"mask_indptr": np.zeros(6, np.int64), "mask_bits": np.zeros(0, np.uint8)},
        "both explicit masks and keys that are seen by position",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_contradicts_itself_is_refused(case: str) -> None:
    changes, message = WRONG[case]
    made, batch = problem(1, **changes)
    with pytest.raises(BatchError, match=message):
        with_masks(batch, filled_cache(made, CPU))
