"""One command of several is wrong: it fails alone, on a worker, on a group of ranks, and in the fake model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from pie_control.testing.fake_model import FakeModel
from pie_inference.config import WorkerConfig
from pie_inference.handlers.table import HANDLERS
from pie_inference.protocol import (
    Batch,
    CopyEmb,
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    GetNextDistResult,
    Result,
    RunWave,
    SampleResult,
    ShiftKvpage,
    SwapIn,
    SwapOut,
    Verify,
    VerifyResult,
    WaveDone,
)
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    embed_batch,
    indptr,
    ints,
    sample_batch,
)

PROMPTS = (range(1, 21), range(30, 50), range(60, 80))
NOWHERE = 10**6  # outside of every pool and vocabulary
BAD = 1  # the place of the command that is wrong

Numbers = NDArray[Any]
Build = Callable[["Prepared", Sequence[int]], Batch]
"""A batch with these commands of the three, of which `BAD` is wrong."""


@dataclass(frozen=True)
class Model:
    """What runs waves."""

    name: str
    run: Callable[[RunWave], WaveDone]
    vocab_size: int
    page_size: int = 16


class Prepared:
    """A model that has read three prompts; command n of a batch belongs to the n-th."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.driver = Driver(model.run, model.name, model.page_size)
        self.keys = [Keys() for _ in PROMPTS]
        parts = [Extend(keys, prompt) for keys, prompt in zip(self.keys, PROMPTS, strict=True)]
        self.driver.run(*self.driver.forward_batch(parts))
        self.outputs = self.driver.outputs + np.cumsum([len(prompt) for prompt in PROMPTS]) - 1

    def read(self, embed: int) -> Numbers:
        """What is in an embed: the logprobs of all tokens."""
        tokens = ints(range(self.model.vocab_size))
        [result] = self.driver.run(GetLogprobs(ints([embed]), indptr([len(tokens)]), tokens))
        assert isinstance(result, GetLogprobsResult)
        return result.logprobs

    def read_slots(self, slots: Sequence[int]) -> Numbers:
        """What a token sees that follows on the keys in slots."""
        [found] = self.driver.logprobs(Extend(Keys(list(slots), len(slots)), [9]), vocab_size=self.model.vocab_size)
        return found


def embed_txt(**wrong: int) -> Build:
    def build(_: Prepared, which: Sequence[int]) -> Batch:
        embeds = [wrong.get("embed", 100) if n == BAD else 100 + 2 * n for n in which]
        tokens = [wrong.get("token", 7) if n == BAD else 7 + n for n in which]
        every = [[embed, 101 + 2 * n] for n, embed in zip(which, embeds, strict=True)]
        return embed_batch(ints(np.ravel(every)), ints(np.ravel([[5, token] for token in tokens])), [2] * len(which))

    return build


def copy_kvpage(prepared: Prepared, which: Sequence[int]) -> Batch:
    source = [prepared.keys[n].slots for n in which]
    target = [[NOWHERE if n == BAD else 16 * (40 + 2 * n) + slot for slot in range(20)] for n in which]
    return copy_batch(ints(np.ravel(source)), ints(np.ravel(target)), [20] * len(which))


def shift_kvpage(prepared: Prepared, which: Sequence[int]) -> Batch:
    slots = [[NOWHERE, *prepared.keys[n].slots[1:]] if n == BAD else prepared.keys[n].slots for n in which]
    positions = [range(5 + n, 25 + n) for n in which]
    return ShiftKvpage(ints(np.ravel(slots)), ints(np.ravel(positions)), indptr([20] * len(which)))


def copy_emb(prepared: Prepared, which: Sequence[int]) -> Batch:
    targets = [[100 + 2 * n, NOWHERE if n == BAD else 101 + 2 * n] for n in which]
    sources = [[prepared.outputs[n] - 1, prepared.outputs[n]] for n in which]
    return CopyEmb(ints(np.ravel(sources)), ints(np.ravel(targets)), indptr([2] * len(which)))


def swap_out(*, page: int = 0, host_page: int = 0) -> Build:
    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        pages = [page if n == BAD else prepared.keys[n].slots[0] // 16 for n in which]
        return SwapOut(ints(pages), ints([host_page if n == BAD else n for n in which]))

    return build


def swap_in(prepared: Prepared, which: Sequence[int]) -> Batch:
    pages = [prepared.keys[n].slots[0] // 16 for n in range(3)]
    prepared.driver.run(SwapOut(ints(pages), ints([0, 1, 2])))
    return SwapIn(ints(list(which)), ints([NOWHERE if n == BAD else 40 + 2 * n for n in which]))


def forward(name: str, value: int) -> Build:
    """Two tokens for each sequence; with `value` at the first place that belongs to the bad one in an array."""

    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        parts = [Extend(prepared.keys[n], [3, 4 + n], np.ones((2, 22), bool)) for n in which]
        embed, batch = prepared.driver.forward_batch(parts)
        prepared.driver.run(embed)
        batch = replace(batch, out_embeds=ints([150 + 2 * n + k for n in which for k in range(2)]))
        if BAD not in which:
            return batch
        divides = {"out_embeds": "q_indptr", "q_": "q_indptr", "kv_": "kv_indptr", "mask_indptr": "mask_indptr"}
        bounds = getattr(batch, next(indptr for prefix, indptr in divides.items() if name.startswith(prefix)))
        if name == "mask_indptr":  # one byte of the mask goes to the neighbour behind
            return cut_mask(batch)
        array = getattr(batch, name).copy()
        array[bounds[BAD]] = value
        return replace(batch, **{name: array})

    return build


def masked(name: str, value: int) -> Build:
    """Two tokens for each sequence, with ranges that they see."""

    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        parts = [Extend(prepared.keys[n], [3, 4 + n]) for n in which]
        embed, batch = prepared.driver.forward_batch(parts)
        prepared.driver.run(embed)
        ranges = {
            "range_rows": [0, 1, 1] * len(which),
            "range_begins": [4, 0, 21] * len(which),
            "range_ends": [9, 12, 22] * len(which),
        }
        if BAD in which:
            ranges[name][3 * BAD + 1] = value
        return replace(
            batch,
            out_embeds=ints([150 + 2 * n + k for n in which for k in range(2)]),
            masked=np.ones(len(which), np.bool_),
            range_indptr=indptr([3] * len(which)),
            **{key: ints(numbers) for key, numbers in ranges.items()},
        )

    return build


def cut_mask(batch: Forward) -> Batch:
    """The bad command's mask lacks its last byte."""
    assert batch.mask_indptr is not None
    assert batch.mask_bits is not None
    end = batch.mask_indptr[BAD + 1]
    ends = batch.mask_indptr - (np.arange(4) > BAD)
    return replace(batch, mask_bits=np.delete(batch.mask_bits, end - 1), mask_indptr=ends)


def sample(**wrong: Any) -> Build:
    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        batch = sample_batch(
            embeds_of(prepared, which, wrong.get("embed")),
            token_slots=ints([wrong.get("token_slot", n) if n == BAD else n for n in which]),
            temperature=np.full(len(which), 1.5, np.float32),
            uniform=np.array([0.1, 0.5, 0.9])[list(which)],
        )
        if "recent" in wrong and BAD in which:
            batch = replace(batch, recent_indptr=ints([0, 0, 1, 1]), recent=ints([wrong["recent"]]))
        if "allowed" in wrong and BAD in which:
            width = -(-prepared.model.vocab_size // 8)
            rows = np.array([[255] * width, [0] * width], np.uint8)
            batch = replace(batch, allowed_rows=ints([0, 1, -1]), allowed=rows)
        return batch

    return build


def verify(**wrong: Any) -> Build:
    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        drafts = [wrong.get("draft", [8, -1]) if n == BAD else [8, -1] for n in which]
        ones = np.ones(len(which), np.float32)
        return Verify(
            embeds=np.repeat(embeds_of(prepared, which, wrong.get("embed")), [len(draft) for draft in drafts]),
            indptr=indptr([len(draft) for draft in drafts]),
            draft=ints([token for draft in drafts for token in draft]),
            temperature=ones,
            top_k=ints([0] * len(which)),
            top_p=ones,
            min_p=0 * ones,
            uniform=np.array([0.2 * (n + 1) for n, draft in zip(which, drafts, strict=True) for _ in draft]),
        )

    return build


def get_next_dist(*, k: int = 3, embed: int | None = None) -> Build:
    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        widths = ints([k if n == BAD else 2 + n for n in which])
        return GetNextDist(embeds_of(prepared, which, embed), widths, np.ones(len(which), np.float32))

    return build


def get_logprobs(*, token: int = 0, embed: int | None = None) -> Build:
    def build(prepared: Prepared, which: Sequence[int]) -> Batch:
        tokens = ints([token if n == BAD else 10 + n for n in which for _ in range(2)])
        return GetLogprobs(embeds_of(prepared, which, embed), indptr([2] * len(which)), tokens)

    return build


def embeds_of(prepared: Prepared, which: Sequence[int], wrong: int | None) -> Numbers:
    return ints([wrong if n == BAD and wrong is not None else prepared.outputs[n] for n in which])


CASES: dict[str, Build] = {
    "embed_txt: token": embed_txt(token=NOWHERE),
    "embed_txt: embed": embed_txt(embed=NOWHERE),
    "embed_txt: token slot": embed_txt(token=-NOWHERE),
    "copy_kvpage: slot": copy_kvpage,
    "shift_kvpage: slot": shift_kvpage,
    "copy_emb: embed": copy_emb,
    "swap_out: page": swap_out(page=NOWHERE, host_page=1),
    "swap_out: host page": swap_out(page=3, host_page=NOWHERE),
    "swap_in: page": swap_in,
    "forward: position": forward("q_positions", -5),
    "forward: slot": forward("q_slots", NOWHERE),
    "forward: input": forward("q_embeds", NOWHERE),
    "forward: page": forward("kv_pages", NOWHERE),
    "forward: run": forward("kv_ends", 17),
    "forward: output": forward("out_embeds", NOWHERE),
    "forward: mask": forward("mask_indptr", 0),
    "forward: range": masked("range_ends", 23),
    "forward: first of a range": masked("range_begins", -1),
    "sample: embed": sample(embed=NOWHERE),
    "sample: token slot": sample(token_slot=NOWHERE),
    "sample: recent token": sample(recent=NOWHERE),
    "sample: nothing allowed": sample(allowed=False),
    "verify: embed": verify(embed=NOWHERE),
    "verify: token": verify(draft=[NOWHERE, -1]),
    "verify: no row behind the draft": verify(draft=[8, 8]),
    "verify: no row": verify(draft=[]),
    "get_next_dist: k": get_next_dist(k=NOWHERE),
    "get_next_dist: no k": get_next_dist(k=0),
    "get_next_dist: embed": get_next_dist(embed=NOWHERE),
    "get_logprobs: token": get_logprobs(token=NOWHERE),
    "get_logprobs: negative token": get_logprobs(token=-1),
    "get_logprobs: embed": get_logprobs(embed=NOWHERE),
}


def observe(call: str, prepared: Prepared) -> list[Numbers]:
    """What commands 0 and 2 have left behind."""
    match call:
        case "embed_txt" | "copy_emb":
            return [prepared.read(embed) for embed in (100, 101, 104, 105)]
        case "copy_kvpage":
            return [prepared.read_slots(range(16 * page, 16 * page + 20)) for page in (40, 44)]
        case "shift_kvpage":
            return [prepared.read_slots(prepared.keys[n].slots) for n in (0, 2)]
        case "swap_out":
            prepared.driver.run(SwapIn(ints([0, 2]), ints([40, 44])))
            return observe("swap_in", prepared)
        case "swap_in":
            return [prepared.read_slots(range(16 * page, 16 * page + 16)) for page in (40, 44)]
        case "forward":
            return [prepared.read(embed) for embed in (150, 151, 154, 155)]
    return []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["worker", "group", "fake"])
def model(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Model]:
    if request.param == "fake":
        yield Model("fake", FakeModel().run, FakeModel().describe()[0].vocab_size)
        return
    ranks = 2 if request.param == "group" else 1
    config = WorkerConfig(
        checkpoint, "model", dtype="float32", pages=96, host_pages=8, embeds=1024, tensor_parallel=ranks
    )
    if ranks == 1:
        yield Model("model", Worker(config).run, 272)
    else:
        with WorkerGroup(config, Worker) as group:
            yield Model("model", group.run, 272)


@pytest.mark.parametrize("case", CASES)
def test_only_the_command_at_fault_fails(case: str, model: Model) -> None:
    call, build = case.partition(":")[0], CASES[case]
    prepared = Prepared(model)
    done = model.run(RunWave(7, model.name, (build(prepared, [0, 1, 2]), sample_batch(ints([prepared.outputs[0]])))))
    left = observe(call, prepared)
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, BAD)]
    assert done.failures[0].message.startswith(f"{call}: ")
    assert isinstance(done.results[1], SampleResult)

    alone = Prepared(model)
    expected = model.run(RunWave(8, model.name, (build(alone, [0, 2]),)))
    assert expected.failures == ()
    for found, reference in zip(left, observe(call, alone), strict=True):
        np.testing.assert_allclose(found, reference, atol=1e-4)
    for found, reference in zip(rows(done.results[0]), without_bad(rows(expected.results[0])), strict=True):
        np.testing.assert_allclose(found, reference, atol=1e-5)


@pytest.mark.parametrize(
    "call", ["embed_txt", "copy_kvpage", "shift_kvpage", "copy_emb", "forward", "sample", "verify", "get_next_dist"]
)
def test_commands_run_one_by_one_where_memory_is_too_short_for_all(
    call: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And do the same, though the batch as a whole was under way."""
    worker = Worker(WorkerConfig(checkpoint, "model", dtype="float32", pages=96, embeds=1024))
    model = Model("model", worker.run, 272)
    build = next(build for case, build in CASES.items() if case.partition(":")[0] == call)
    left, told = [], []
    for short in (False, True):
        prepared = Prepared(model)
        batch = build(prepared, [0, 2])
        kind, sizes = type(batch), list[int]()
        handler = HANDLERS[kind]

        def out_of_memory(served: Any, batch: Batch, handler: Any = handler, sizes: list[int] = sizes) -> Any:
            sizes.append(batch.count())
            outcome = handler(served, batch)
            if batch.count() > 1:
                raise torch.OutOfMemoryError("tried to allocate 20 GiB")
            return outcome

        with monkeypatch.context() as patch:
            if short:
                patch.setitem(HANDLERS, kind, out_of_memory)
            done = model.run(RunWave(7, "model", (batch,)))
        assert done.failures == ()
        assert sizes == ([2, 1, 1] if short else [])
        left.append(observe(call, prepared))
        told.append(rows(done.results[0]))
    for alone, together in zip([*left[1], *told[1]], [*left[0], *told[0]], strict=True):
        np.testing.assert_allclose(alone, together, atol=1e-4)


def test_an_error_that_nobody_has_foreseen_fails_its_command_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As errors of a compiler of kernels, which may know no common class; the log has its traceback."""
    model = Model("model", Worker(WorkerConfig(checkpoint, "model", dtype="float32", pages=96, embeds=1024)).run, 272)
    prepared = Prepared(model)
    batch = get_next_dist()(prepared, [0, 1, 2])
    kind: type[Batch] = GetNextDist
    handler = HANDLERS[kind]

    def fails(served: Any, batch: Any) -> Any:
        if 3 in batch.k:
            raise KeyError("out of resource: shared memory")
        return handler(served, batch)

    monkeypatch.setitem(HANDLERS, kind, fails)
    done = model.run(RunWave(1, "model", (batch,)))
    assert [(failure.command, failure.message) for failure in done.failures] == [
        (BAD, "get_next_dist: 'out of resource: shared memory'")
    ]
    assert "in fails" in capsys.readouterr().err


def rows(result: Result | None) -> list[Numbers]:
    """What each command is told, all columns in one."""
    match result:
        case SampleResult():
            return list(result.tokens[:, None])
        case VerifyResult():
            return list(np.stack([result.accepted, result.tokens], 1))
        case GetLogprobsResult():
            return list(result.logprobs.reshape(-1, 2))
        case GetNextDistResult():
            columns = [np.split(column, result.indptr[1:-1]) for column in (result.tokens, result.probabilities)]
            return [np.concatenate(row) for row in zip(*columns, result.rest[:, None], strict=True)]
    return []


def without_bad(neighbours: list[Numbers]) -> list[Numbers]:
    """Of three commands, if these are told to the neighbours of one that failed."""
    if not neighbours:
        return []
    size = 1 if len(neighbours[0]) > 2 else len(neighbours[0])  # of a distribution only the rest is left
    return [neighbours[0], np.zeros(size), neighbours[1]]


def test_a_batch_whose_commands_all_fail_has_no_result(model: Model) -> None:
    batch = GetNextDist(ints([1, 2]), ints([0, NOWHERE]), np.ones(2, np.float32))
    done = model.run(RunWave(1, model.name, (batch,)))
    assert done.results == (None,)
    assert [failure.command for failure in done.failures] == [0, 1]


def test_arrays_that_do_not_fit_together_are_nobodys_alone(model: Model) -> None:
    prepared = Prepared(model)
    batch = sample_batch(ints(prepared.outputs), temperature=np.ones(2, np.float32))
    done = model.run(RunWave(1, model.name, (batch,)))
    assert [failure.message for failure in done.failures] == ["sample: temperature has 2 elements for 3 commands"] * 3


def test_commands_of_two_batches_fail_each_for_itself(model: Model) -> None:
    prepared = Prepared(model)
    batches = get_next_dist(k=0)(prepared, [0, 1, 2]), get_logprobs(token=NOWHERE)(prepared, [0, 1, 2])
    done = model.run(RunWave(1, model.name, batches))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, BAD), (1, BAD)]
    assert all(result is not None for result in done.results)


def test_the_fake_model_fails_commands_that_only_together_break_the_protocol() -> None:
    batch = embed_batch(ints([1, 2, 1]), ints([5, 6, 7]), [1, 1, 1])
    done = FakeModel().run(RunWave(1, "fake", (batch,)))
    assert [failure.message for failure in done.failures] == ["embed_txt: one embed is written twice in one batch"] * 3
