"""How batches are cut for Triton's kernels."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
import torch

from pie_inference.attention.packed_upload import ALIGNMENT, make_room, upload_arrays
from pie_inference.attention.ragged import Ragged, check
from pie_inference.attention.tiles import TileGroup, choose_splits, cut_pieces, cut_tiles, tile_rows
from testing.attention_oracle import CASES, Problem

CPU = torch.device("cpu")


def ragged_of(problem: Problem) -> Ragged:
    return check(problem.batch, problem.case.page_size, problem.num_pages)


def cut(problem: Problem, group: int = 2) -> list[TileGroup]:
    ragged = ragged_of(problem)
    return cut_tiles(problem.batch, ragged, cut_pieces(problem.batch, ragged), problem.case.page_size, group)


@pytest.mark.parametrize("name", ["mixed", "holes", "scattered", "masks", "decode many"])
def test_pieces_tell_the_keys_in_order(name: str) -> None:
    problem = Problem(CASES[name], torch.float32)
    size, pieces = problem.case.page_size, cut_pieces(problem.batch, ragged_of(problem))
    for sequence, (start, end) in zip(problem.sequences, pairwise(pieces.start), strict=True):
        told: list[int] = []
        for piece in range(start, end):
            if pieces.bits is None or pieces.rank is None:
                offsets: Iterable[int] = range(min(size, len(sequence.slots) - len(told)))
            else:
                assert pieces.rank[piece] == len(told)
                offsets = [offset for offset in range(size) if pieces.bits.view(np.uint32)[piece] >> offset & 1]
            told += [int(pieces.page[piece]) * size + offset for offset in offsets]
        assert told == sequence.slots.tolist()


def test_runs_in_one_page_become_one_piece() -> None:
    problem = Problem(CASES["holes"], torch.float32)
    pieces = cut_pieces(problem.batch, ragged_of(problem))
    assert len(pieces.page) < len(problem.batch.kv_pages) / 2
    for start, end in pairwise(pieces.start):
        assert len(set(pieces.page[start:end])) == end - start


@pytest.mark.parametrize("name", ["mixed", "masks", "no queries", "continued prefill", "scattered"])
def test_tiles_hold_each_query_once(name: str) -> None:
    problem = Problem(CASES[name], torch.float32)
    held = [
        (int(sequence), query)
        for group in cut(problem)
        for sequence, first in zip(group.sequence, group.first, strict=True)
        for query in range(first, min(first + group.queries, problem.sequences[sequence].num_queries))
    ]
    every = [(number, query) for number, one in enumerate(problem.sequences) for query in range(one.num_queries)]
    assert sorted(held) == every


def test_tiles_end_behind_the_last_visible_key_and_the_longest_come_first() -> None:
    problem = Problem(CASES["continued prefill"], torch.float32)
    for group in cut(problem):
        assert (np.diff(group.end) <= 0).all()
        for sequence, first, end in zip(group.sequence, group.first, group.end, strict=True):
            one = problem.sequences[sequence]
            last = min(first + group.queries, one.num_queries) - 1
            assert end == np.flatnonzero(one.visible[last])[-1] + 1


def test_decoding_and_prefill_have_tiles_of_their_own() -> None:
    small, large = cut(Problem(CASES["mixed"], torch.float32))
    assert (small.rows, small.queries) == (16, 8)
    assert (large.rows, large.queries) == (64, 32)
    assert len(small.sequence) == 6  # those with up to 8 queries


@pytest.mark.parametrize(("group", "rows"), [(1, 16), (7, 16), (16, 16), (17, 32), (48, 64)])
def test_a_tile_holds_a_whole_group_of_heads(group: int, rows: int) -> None:
    assert tile_rows(group, 16) == rows


@pytest.mark.parametrize(
    ("programs", "longest", "processors", "splits"),
    [(8, 100_000, 132, 33), (8, 1000, 132, 7), (8, 100, 132, 1), (300, 100_000, 132, 1), (1, 10**6, 132, 64)],
)
def test_splits_fill_the_processors(programs: int, longest: int, processors: int, splits: int) -> None:
    assert choose_splits(programs, longest, processors) == splits


def test_arrays_are_uploaded_aligned() -> None:
    arrays = {"a": np.arange(5, dtype=np.int32), "b": np.array([7, -1]), "c": np.arange(3, dtype=np.uint8)}
    tensors = upload_arrays(arrays, CPU)
    for name, array in arrays.items():
        assert tensors[name].numpy().dtype == array.dtype
        assert tensors[name].tolist() == array.tolist()
        assert (tensors[name].data_ptr() - tensors["a"].data_ptr()) % ALIGNMENT == 0


def test_room_is_filled_again_in_the_same_place() -> None:
    room = make_room({"a": ("int32", 4), "b": ("int32", 8)}, CPU)
    before = {name: values.data_ptr() for name, values in room.tensors.items()}
    for n in (2, 4):
        room.fill({"a": np.full(4, n, np.int32), "b": np.arange(n, dtype=np.int32)})
        assert room.tensors["a"].tolist() == [n] * 4
        assert room.tensors["b"][:n].tolist() == list(range(n))
    assert before == {name: values.data_ptr() for name, values in room.tensors.items()}
