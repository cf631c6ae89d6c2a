"""Pages and states in the host's memory and copies of slots: contents survive, wrong numbers are refused, copies keep
order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_inference.config import WorkerConfig
from pie_inference.errors import BatchError
from pie_inference.kv_cache import host_pages
from pie_inference.kv_cache.copy_lane import CopyLane, Mark
from pie_inference.kv_cache.host_pages import HostPages, HostStates
from pie_inference.kv_cache.page_copies import split_copies
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.protocol import Batch, RunWave, SwapIn, SwapOut
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, copy_batch, indptr, ints

PAGE_SIZE, PAGES, HOST_PAGES, MOST = 4, 6, 5, 4
STATES, HOST_STATES = 7, 6
SHAPE = KvShape(num_layers=2, num_kv_heads=1, head_dim=2, page_size=PAGE_SIZE, dtype=torch.float32)


class LateLane(CopyLane):
    """Runs copies as late as it may: when compute waits for one, with all that were queued before it."""

    def __init__(self) -> None:
        self._queued: list[Callable[[], None]] = []
        self._marks: list[object] = []

    def run(self, copy: Callable[[], None], after: Mark) -> Mark:
        self._queued.append(copy)
        mark: Any = object()
        self._marks.append(mark)
        return cast(Mark, mark)

    def wait(self, mark: Mark) -> None:
        if mark in self._marks:
            count = self._marks.index(mark) + 1
            due, self._queued, self._marks = self._queued[:count], self._queued[count:], self._marks[count:]
            for copy in due:
                copy()


class Model:
    """What the pools must hold: one number for each slot, which is its key, value and position in every layer."""

    def __init__(self, lane: CopyLane) -> None:
        self.cache = KvCache(SHAPE, PAGES, torch.device("cpu"))
        self.host = HostPages(self.cache, HOST_PAGES, MOST, lane)
        self.slots = np.zeros(PAGES * PAGE_SIZE, np.int64)
        self.host_slots = np.zeros((HOST_PAGES, PAGE_SIZE), np.int64)
        self.next = 1

    def write(self, slots: list[int]) -> None:
        numbers = np.arange(self.next, self.next + len(slots))
        self.next += len(slots)
        located = self.cache.place(ints(slots), ints(numbers))
        for layer in range(SHAPE.num_layers):
            self.cache.write(layer, located, self.rows(numbers, layer))
        self.slots[slots] = numbers

    def rows(self, numbers: np.ndarray, layer: int) -> torch.Tensor:
        """[M, 2, head_dim], different in every place."""
        places = np.arange(4).reshape(2, 2) / 8 + layer / 2
        return torch.from_numpy(numbers[:, None, None] + places).float()

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        source, target = (ints([pair[side] for pair in pairs]) for side in (0, 1))
        self.cache.copy(source, target)
        self.slots[target] = self.slots[source]

    def swap_out(self, pages: list[int], host_pages: list[int]) -> None:
        self.host.swap_out(ints(pages), ints(host_pages))
        self.host_slots[host_pages] = self.slots.reshape(PAGES, -1)[pages]

    def swap_in(self, host_pages: list[int], pages: list[int]) -> None:
        self.host.swap_in(ints(host_pages), ints(pages))
        self.slots.reshape(PAGES, -1)[pages] = self.host_slots[host_pages]

    def check(self) -> None:
        everywhere = self.cache.locate(ints(range(PAGES * PAGE_SIZE)))
        written = self.slots > 0
        for layer in range(SHAPE.num_layers):
            assert torch.equal(
                self.cache.read(layer, everywhere)[torch.from_numpy(written)], self.rows(self.slots, layer)[written]
            )
        assert self.cache.positions.tolist() == self.slots.tolist()


class StateModel:
    """What a pool of states must hold: one number for each slot."""

    def __init__(self, lane: CopyLane) -> None:
        self.pool = torch.arange(STATES * 6).view(STATES, 2, 3).float()
        with patch.object(host_pages, "fitting_swap_states", lambda *_: 2):
            self.host = HostStates(self.pool, HOST_STATES, lane)
        self.expected, self.expected_there = self.pool.clone(), torch.zeros(HOST_STATES, 2, 3)

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        states, host = ([pair[side] for pair in pairs] for side in (0, 1))
        self.host.swap_out(SwapOut(ints([4, 5]), ints([0, 1]), indptr([1, len(pairs) - 1]), ints(states), ints(host)))
        self.expected_there[host] = self.expected[states]
        self.pool[states[0]] = self.expected[states[0]] = self.expected[states[0]] + 100

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        host, states = ([pair[side] for pair in pairs] for side in (0, 1))
        self.host.swap_in(SwapIn(ints([0, 1]), ints([4, 5]), indptr([1, len(pairs) - 1]), ints(host), ints(states)))
        self.expected[states] = self.expected_there[host]


def distinct(most: int, bound: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, bound - 1), max_size=most, unique=True)


def pairs_of(targets: st.SearchStrategy[list[int]], bound: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Sources, perhaps repeated, and distinct targets."""
    return targets.flatmap(
        lambda chosen: st.lists(st.integers(0, bound - 1), min_size=len(chosen), max_size=len(chosen)).map(
            lambda sources: list(zip(sources, chosen, strict=True))
        )
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), distinct(8, PAGES * PAGE_SIZE)),
        st.tuples(st.just("copy"), pairs_of(distinct(12, PAGES * PAGE_SIZE), PAGES * PAGE_SIZE)),
        st.tuples(st.just("copy pages"), pairs_of(distinct(PAGES, PAGES), PAGES)),
        st.tuples(st.just("out"), pairs_of(distinct(MOST, HOST_PAGES), PAGES)),
        st.tuples(st.just("in"), pairs_of(distinct(MOST, PAGES), HOST_PAGES)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("lane", [CopyLane, LateLane])
@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_contents_survive_writing_copying_and_swapping(lane: Callable[[], CopyLane], steps: list[Any]) -> None:
    model = Model(lane())
    for kind, what in steps:
        sources, targets = ([pair[side] for pair in what] if kind != "write" else [] for side in (0, 1))
        match kind:
            case "write":
                model.write(what)
            case "copy":
                model.copy(what)
            case "copy pages":
                inside = range(PAGE_SIZE)
                model.copy([(a * PAGE_SIZE + k, b * PAGE_SIZE + k) for a, b in what for k in inside])
            case "out":
                model.swap_out(sources, targets)
            case "in":
                model.swap_in(sources, targets)
        model.check()


@pytest.mark.parametrize("lane", [CopyLane, LateLane])
@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("out"), pairs_of(distinct(HOST_STATES, HOST_STATES), STATES)),
            st.tuples(st.just("in"), pairs_of(distinct(STATES, STATES), HOST_STATES)),
        ).filter(lambda step: bool(step[1])),
        max_size=20,
    )
)
def test_states_survive_swapping_in_parts(lane: Callable[[], CopyLane], steps: list[Any]) -> None:
    model = StateModel(lane())
    for kind, pairs in steps:
        (model.swap_out if kind == "out" else model.swap_in)(pairs)
        assert torch.equal(model.pool, model.expected)


@pytest.mark.parametrize(
    ("states", "host_states", "message"),
    [
        ([0, STATES], [0, 1], "state slot 7 does not exist; they are 0 to 6"),
        ([0, 1], [0, HOST_STATES], "host state 6 does not exist; they are 0 to 5"),
        ([3, 3], [4, 4], "Swap(Out|In) writes to a state slot twice"),
        ([3, 3, 2], [4, 4], "state_indptr of (states|host_states) does not divide"),
        ([0], None, "the model keeps a state of each text: a swap must name those that hang on its pages"),
    ],
)
def test_wrong_swaps_of_states_are_refused(states: list[int], host_states: list[int] | None, message: str) -> None:
    model, pages = StateModel(CopyLane()), (ints([1]), ints([2]))
    there = None if host_states is None else ints(host_states)
    with pytest.raises((BatchError, ValueError), match=message):
        model.host.swap_out(SwapOut(*pages, indptr([2]), ints(states), there))
    with pytest.raises((BatchError, ValueError), match=message):
        model.host.swap_in(SwapIn(*pages, indptr([2]), there, ints(states)))
    assert torch.equal(model.pool, model.expected)


def test_a_model_without_states_swaps_none() -> None:
    host = HostStates(None, 0, CopyLane())
    host.swap_out(SwapOut(ints([1]), ints([2])))
    with pytest.raises(BatchError, match="the model keeps no states"):
        host.swap_out(SwapOut(ints([1]), ints([2]), indptr([0]), ints([]), ints([])))


def test_whole_pages_are_found_among_copies() -> None:
    source = ints([*range(8, 12), 1, *range(4, 8), *range(4)])
    target = ints([*range(4), 9, *range(12, 16), *range(17, 21)])
    whole, rest = split_copies(source, target, PAGE_SIZE)
    assert (whole.source.tolist(), whole.target.tolist()) == ([2, 1], [0, 3])
    assert (rest.source.tolist(), rest.target.tolist()) == ([1, 0, 1, 2, 3], [9, 17, 18, 19, 20])


class Diary(CopyLane):
    """Notes what it was asked for."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._count = 0

    def _next(self) -> Mark:
        self._count += 1
        return cast(Mark, f"mark {self._count}")

    def mark(self) -> Mark:
        return self._next()

    def run(self, copy: Callable[[], None], after: Mark) -> Mark:
        copy()
        self.notes.append(f"copy after {after}")
        return self._next()

    def wait(self, mark: Mark) -> None:
        self.notes.append(f"wait for {mark}")


def test_copies_and_compute_wait_for_each_other_where_they_must() -> None:
    lane = Diary()
    model = Model(lane)
    model.swap_out([1, 2], [0, 1])
    model.swap_out([3], [2])
    model.swap_in([0], [5])
    model.swap_in([1], [4])
    assert lane.notes == [
        *("wait for None", "copy after mark 1"),  # the staging area is free; what was gathered is copied
        *("wait for mark 2", "copy after mark 3"),  # the area is gathered into once its copy has left
        *("copy after None", "wait for mark 5"),  # pages are scattered once they have come
        *("copy after mark 6", "wait for mark 7"),  # the area is copied into once it was scattered
    ]


@pytest.mark.parametrize(
    ("pages", "host_pages", "message"),
    [
        ([0, 1], [2], "2 pages and 1 host pages"),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], "5 pages; at most 4 move at a time"),
        ([0, PAGES], [0, 1], "page 6 does not exist; they are 0 to 5"),
        ([0, -1], [0, 1], "page -1 does not exist"),
        ([0], [HOST_PAGES], "host page 5 does not exist; they are 0 to 4"),
    ],
)
def test_wrong_swaps_are_refused(pages: list[int], host_pages: list[int], message: str) -> None:
    model = Model(CopyLane())
    model.write(list(range(PAGES * PAGE_SIZE)))
    with pytest.raises(BatchError, match=f"SwapOut.*{message}|{message}"):
        model.host.swap_out(ints(pages), ints(host_pages))
    with pytest.raises(BatchError, match=message):
        model.host.swap_in(ints(host_pages), ints(pages))
    model.check()


def test_a_target_that_is_named_twice_is_refused() -> None:
    host = Model(CopyLane()).host
    host.swap_out(ints([1, 1]), ints([0, 1]))
    host.swap_in(ints([0, 0]), ints([2, 3]))
    with pytest.raises(BatchError, match="SwapOut writes to a page twice"):
        host.swap_out(ints([1, 2]), ints([0, 0]))
    with pytest.raises(BatchError, match="SwapIn writes to a page twice"):
        host.swap_in(ints([0, 1]), ints([2, 2]))


def test_copies_of_unequal_length_are_refused() -> None:
    with pytest.raises(BatchError, match="2 slots cannot be copied to 1"):
        Model(CopyLane()).cache.copy(ints([1, 2]), ints([3]))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    return Worker(WorkerConfig(folder, "model", pages=64, embeds=2048, host_pages=300, dtype="float32"))


def test_a_context_that_was_away_gives_the_same_logits(worker: Worker) -> None:
    driver, keys = Driver(worker.run, "model"), Keys()
    driver.logprobs(Extend(keys, range(5, 55)), vocab_size=272)
    stayed, away = driver.logprobs(Extend(keys.fork(), [9, 8, 7]), vocab_size=272)[0], keys.fork()
    pages = sorted({slot // 16 for slot in keys.slots})
    back = range(40, 40 + len(pages))
    driver.run(SwapOut(ints(pages), ints(range(7, 7 + len(pages)))))
    driver.run(copy_batch(ints([0] * 16 * len(pages)), ints([p * 16 + k for p in pages for k in range(16)])))
    driver.run(SwapIn(ints(range(7, 7 + len(pages))), ints(back)))
    away.slots = [back[pages.index(slot // 16)] * 16 + slot % 16 for slot in keys.slots]
    np.testing.assert_array_equal(driver.logprobs(Extend(away, [9, 8, 7]), vocab_size=272)[0], stayed)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (SwapOut(ints([64]), ints([0])), "swap_out: page 64 does not exist"),
        (SwapIn(ints([300]), ints([0])), "swap_in: host page 300 does not exist"),
    ],
)
def test_a_worker_refuses_a_swap_and_goes_on(worker: Worker, batch: Batch, message: str) -> None:
    [failure] = worker.run(RunWave(1, "model", (batch,))).failures
    assert message in failure.message
    assert worker.run(RunWave(2, "model", (SwapOut(ints([1]), ints([2])),))).results == (None,)


def test_a_worker_takes_no_host_memory_unless_told(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    [plain] = Worker(WorkerConfig(folder, "model", pages=8, embeds=64, threads=1)).describe()
    assert (plain.num_host_pages, plain.max_swap_pages) == (0, 0)
    [told] = Worker(WorkerConfig(folder, "model", pages=8, host_pages=3, embeds=64, threads=1)).describe()
    assert (told.num_host_pages, told.max_swap_pages) == (3, 3)
