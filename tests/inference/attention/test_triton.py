"""Triton's attention, in its interpreter, against dense float64 attention; and as a CUDA graph would use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pytest
import torch

from pie_inference.attention.interface import AttentionBackend, AttentionSpec, GraphBackend
from pie_inference.kv_cache.pages import KvCache
from testing.attention_oracle import (
    CASES,
    Case,
    Problem,
    Request,
    assert_near,
    assert_same,
    assert_solves,
    filled_cache,
    run,
)
from testing.triton_interpreter import Interpreter
from tests.helpers.tiers import corpus

CPU = torch.device("cpu")
SLOW = ("masks and windows", "windows", "windows over forks", "windows in prefill", "soft caps")
"""Their first and third layer must do."""
LEFT_OUT = (
    *("decode many", "decode full pages", "continued prefill", "scattered", "windows in prefill"),
    *("no groups, dimension 16", "groups of 4, dimension 64, pages of 8"),
)
"""They show nothing here that others do not; `gpu_check` runs them all."""
OTHER_FORMATS = [("decode many", "bfloat16"), ("continued prefill", "bfloat16"), ("masks", "float16")]


class RecordableBackend(AttentionBackend, GraphBackend, Protocol):
    """One that CUDA graphs can record."""

    def compile(self) -> None:
        """Runs the kernels that most batches need."""


def make_backend(cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> RecordableBackend:
    """So few processors that some groups of tiles are split and others are not."""
    from pie_inference.attention.triton.pages import TritonAttention

    return TritonAttention(cache, num_heads, specs, processors=6)


def solve(case: Case, dtype: str) -> None:
    assert_solves(Problem(case, getattr(torch, dtype)), make_backend, CPU)


ALIKE = {
    "shared pages": ("forks", "forks, no groups", "forks, one head, pages of 13"),
    "windows over shared pages": ("windows over forks",),
    "masks and windows": ("masks", "windows"),
    "groups of 3, dimension 80, pages of 13": tuple(name for name in CASES if re.match("groups of [^34]", name)),
}
"""Cases that show what those of the values do: nothing here computes what texts share but once, and sizes are padded in
one way."""
KINDS = {other: first for first, others in ALIKE.items() for other in others}


@pytest.mark.parametrize(
    "name",
    corpus([*ALIKE, *(name for name in CASES if name not in {*ALIKE, *LEFT_OUT})], lambda name: KINDS.get(name, name)),
)
def test_it_equals_dense_attention(interpreter: Interpreter, name: str) -> None:
    case = CASES[name]
    interpreter.call(solve, replace(case, specs=case.specs[:3:2]) if name in SLOW else case, "float32")


@pytest.mark.parametrize(("name", "dtype"), OTHER_FORMATS)
def test_number_formats(interpreter: Interpreter, name: str, dtype: str) -> None:
    interpreter.call(solve, CASES[name], dtype)


WINDOWS = tuple(AttentionSpec(32**-0.5, window) for window in (None, 20))
DECODES = [Case(tuple(Request(1, n) for n in keys), specs=WINDOWS) for keys in ((40,), (1, 700, 33), (5, 16, 17, 90))]


def replay(sizes_of_pool: int) -> None:
    """One plan of 4 rows, loaded with batches of 1, 3 and 4 sequences of one pool."""
    problems = [Problem(case, torch.float32) for case in DECODES]
    cache = KvCache(problems[0].shape, sizes_of_pool, CPU)
    backend = make_backend(cache, problems[0].case.num_heads, WINDOWS)
    plan = backend.graph_plan(4)
    for problem in problems:
        own = filled_cache(problem, CPU)
        slots = np.arange(problem.num_pages * problem.case.page_size, dtype=np.int32)
        cache.note_positions(slots, own.positions)
        assert backend.can_replay(problem.batch)
        plan.update(problem.batch)
        for layer, rows in enumerate(problem.rows):
            cache.write(layer, cache.locate(slots), own.read(layer, own.locate(slots)))
            filled = torch.cat([rows, rows.new_zeros(4 - len(rows), *rows.shape[1:])])
            output = plan.attend(layer, filled[:, :4], filled[:, 4:])
            assert_near(output[: len(rows)], problem.expected(layer))
        np.testing.assert_array_equal(cache.device_positions().numpy(), cache.positions)


def test_a_plan_of_a_graph_serves_one_batch_after_another(interpreter: Interpreter) -> None:
    interpreter.call(replay, 64)


def make_plan() -> None:
    problem = Problem(DECODES[1], torch.float32)
    cache = filled_cache(problem, CPU)
    before = [cache.layer(layer)[: problem.num_pages].clone() for layer in range(2)]
    make_backend(cache, 4, WINDOWS).graph_plan(8)
    for layer in range(2):
        assert_same(cache.layer(layer)[: problem.num_pages], before[layer])


def test_compiling_for_a_graph_leaves_the_cache_alone(interpreter: Interpreter) -> None:
    interpreter.call(make_plan)


def attend_to_nan() -> None:
    """The first key of a text whose keys are split is no number."""
    problem = Problem(DECODES[1], torch.float32)
    problem.cached[:, problem.sequences[1].slots[0], : problem.case.num_kv_heads] = torch.nan
    outputs = run(problem, make_backend, CPU).outputs
    assert outputs[0].isnan().all(1).tolist() == [False, True, False]
    assert not outputs[1].isnan().any(), "it is outside of the window"


def test_what_is_no_number_is_not_lost_where_keys_are_split(interpreter: Interpreter) -> None:
    interpreter.call(attend_to_nan)


def compile_all() -> None:
    """The kernels for one query and for many, with windows and without, whose keys are split; nothing else changes."""
    cache = KvCache(Problem(DECODES[0], torch.float32).shape, 2, CPU)
    backend = make_backend(cache, 4, WINDOWS)
    ran = noted_launches()
    backend.compile()
    splits = {(options["TILE_ROWS"], options["WINDOWED"], options["SPLIT"]) for options in ran["attend_tiles"]}
    assert splits == {(rows, windowed, True) for rows in (16, 64) for windowed in (False, True)}
    assert ran["merge_splits"]
    assert ran["write_rows"]
    assert not cache.positions.any()
    assert not cache.device_positions().any()
    assert not any(cache.layer(layer).any() for layer in range(2))


def noted_launches() -> dict[str, list[dict[str, int]]]:
    """The options of each launch from now on, by kernel. It is for a process of its own."""
    from pie_inference.attention.triton import kernels

    class Noted:
        def __init__(self, name: str) -> None:
            self._name, self._kernel = name, getattr(kernels, name)

        def __getitem__(self, grid: object) -> Any:
            def launch(*args: object, **options: int) -> None:
                ran[self._name].append(options)
                self._kernel[grid](*args, **options)

            return launch

    ran: dict[str, list[dict[str, int]]] = {name: [] for name in ("attend_tiles", "merge_splits", "write_rows")}
    for name in ran:
        setattr(kernels, name, Noted(name))
    return ran


def test_at_the_start_it_tries_what_most_batches_need(interpreter: Interpreter) -> None:
    interpreter.call(compile_all)


def refuse() -> None:
    prefill, masked = Problem(CASES["prefill"], torch.float32), Problem(CASES["masks"], torch.float32)
    holes = Problem(Case((Request(1, 40, "holes"),)), torch.float32)
    large = Problem(Case((Request(1, 400),)), torch.float32)
    backend = make_backend(KvCache(large.shape, 12, CPU), 4, WINDOWS)
    assert not any(backend.can_replay(each.batch) for each in (prefill, masked, holes, large))


def test_graphs_are_for_plain_decode_batches(interpreter: Interpreter) -> None:
    interpreter.call(refuse)
