"""Ranks that share a model compute what one would, fail alike, and part where they do not. On CPUs, through gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.device.machine import begin_with_gpu, choose_device
from pie_inference.device.threads import threads_of_rank
from pie_inference.errors import CheckpointError, ConfigError, RankLost
from pie_inference.protocol import (
    Batch,
    DropAdapter,
    Failure,
    ForwardWithScores,
    ForwardWithScoresResult,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDistResult,
    LoadAdapter,
    ProtocolError,
    Ready,
    RunWave,
    SampleResult,
    Shutdown,
    SwapIn,
    SwapOut,
    WaveDone,
    WorkerFailed,
    encode,
)
from pie_inference.serving import follower
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel import agreement
from pie_inference.tensor_parallel.agreement import agree
from pie_inference.tensor_parallel.channel import RankChannel
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    indptr,
    ints,
    sample_batch,
)
from tests.helpers.adapters import LLAMA, make_adapter

OPTIONS: dict[str, Any] = {"pages": 64, "host_pages": 8, "embeds": 2048, "dtype": "float32"}
PROMPT = range(5, 45)


def config(folder: Path, **changes: Any) -> WorkerConfig:
    return WorkerConfig(folder, "model", **{**OPTIONS, "tensor_parallel": 2, **changes})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(checkpoint: Path) -> Iterator[WorkerGroup]:
    with WorkerGroup(config(checkpoint), Worker) as opened:
        yield opened


@pytest.fixture(scope="module")
def single(checkpoint: Path) -> Worker:
    return Worker(config(checkpoint, tensor_parallel=1))


def drivers(group: WorkerGroup, single: Worker) -> tuple[Driver, Driver]:
    return Driver(group.run, "model"), Driver(single.run, "model")


def test_two_ranks_give_the_logprobs_of_one(group: WorkerGroup, single: Worker) -> None:
    prompts = [PROMPT, [7], [100, 101, 102]]
    ours, expected = (
        driver.logprobs(*(Extend(Keys(), prompt) for prompt in prompts), vocab_size=272)
        for driver in drivers(group, single)
    )
    for own, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-4)


def test_two_ranks_give_the_tokens_of_one(group: WorkerGroup, single: Worker) -> None:
    texts = [driver.generate(Keys(), PROMPT, 30) for driver in drivers(group, single)]
    assert texts[0] == texts[1]


def test_sampled_tokens_serve_as_inputs_on_all_ranks(group: WorkerGroup, single: Worker) -> None:
    """A token slot that differs between ranks would change what follows from it."""

    def generate(driver: Driver) -> list[list[int]]:
        keys = Keys()
        embed, forward = driver.forward_batch([Extend(keys, PROMPT)])
        choice = {"temperature": np.full(1, 2, np.float32), "top_p": np.full(1, 0.9, np.float32)}
        tokens = [driver.ask(SampleResult, embed, forward, sample_batch(ints([driver.outputs + 39]), **choice))]
        for _ in range(10):
            embed, forward = driver.forward_batch([Extend(keys, [0])])
            embed = embed_batch(embed.embeds, ints([-1]))
            tokens.append(driver.ask(SampleResult, embed, forward, sample_batch(ints([driver.outputs]), **choice)))
        return [result.tokens.tolist() for result in tokens]

    first, second = map(generate, drivers(group, single))
    assert first == second


def test_every_rank_copies_and_swaps_its_share(group: WorkerGroup, single: Worker) -> None:
    def moved(driver: Driver) -> np.ndarray:
        keys = Keys()
        driver.logprobs(Extend(keys, range(5, 37)), vocab_size=272)
        pages = [slot // 16 for slot in keys.slots[::16]]
        driver.run(SwapOut(ints(pages), ints([3, 2])), SwapIn(ints([3, 2]), ints([50, 51])))
        slots = list(range(50 * 16, 52 * 16))
        keys.slots = list(range(60 * 16, 62 * 16))
        driver.run(copy_batch(ints(slots), ints(keys.slots)))
        return driver.logprobs(Extend(keys, [9]), vocab_size=272)[0]

    ours, expected = map(moved, drivers(group, single))
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize(
    "batch",
    [
        embed_batch(ints([9999]), ints([1])),
        copy_batch(ints([-1]), ints([0])),
        SwapOut(ints([0]), ints([8])),
        dist_batch(ints([1]), 5000),
        sample_batch(ints([1]), allowed_rows=ints([0]), allowed=np.zeros((1, 34), np.uint8)),
        sample_batch(ints([1, 2]), temperature=np.ones(1, np.float32)),
        GetLogprobs(ints([1]), ints([0, 2]), ints([1])),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_bad_batch_fails_on_all_ranks_alike(batch: Batch, group: WorkerGroup, single: Worker) -> None:
    wave = RunWave(7, "model", (embed_batch(ints([3]), ints([3])), batch, dist_batch(ints([3]), 2)))
    ours, expected = group.run(wave), single.run(wave)
    assert [type(result) for result in ours.results] == [type(None), type(None), GetNextDistResult]
    assert failures_of(ours) == failures_of(expected) != []
    texts = [driver.generate(Keys(), PROMPT, 3) for driver in drivers(group, single)]
    assert texts[0] == texts[1]


def failures_of(done: WaveDone) -> list[tuple[int, int, str]]:
    return [(failure.batch, failure.command, failure.message) for failure in done.failures]


def test_the_description_tells_of_the_whole_group(group: WorkerGroup, single: Worker) -> None:
    [ours], [alone] = group.describe(), single.describe()
    assert (ours.device, alone.device) == ("2 x cpu", "cpu")
    assert ours.page_bytes == alone.page_bytes
    embeddings = 4 * 64 * (272 + 5)  # and norms: whole on every rank
    assert ours.weight_bytes == alone.weight_bytes + embeddings


def test_ranks_listen_for_this_machine_only(group: WorkerGroup) -> None:
    found = [
        connection.laddr.ip
        for pid in (os.getpid(), *group.pids)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert found
    assert set(found) == {"127.0.0.1"}


def test_followers_leave_interrupts_to_the_control_process(group: WorkerGroup) -> None:
    for pid in group.pids:
        os.kill(pid, signal.SIGINT)
    assert Driver(group.run, "model").generate(Keys(), [1, 2], 1)


# ---- ranks that disagree ---------------------------------------------------------------------------------------------


FAILURE = Failure(1, 2, "out of memory")


def failed(batch: int, command: int, wave: int = 1) -> WaveDone:
    return WaveDone(wave, (), 0.0, (Failure(batch, command, "no memory is left"),))


def ends() -> tuple[RankChannel, RankChannel]:
    own, other = RankChannel.pair()
    return own, RankChannel(other.detach())


def test_ranks_that_fail_alike_go_on() -> None:
    own, other = ends()
    other.send(encode(failed(1, 2)))
    agree(1, FAILURE, own)
    assert other.receive()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failed(1, 1), "failed on only one rank of the group: out of memory"),
        (failed(1, 2, wave=2), "only one rank of the group"),
        (WorkerFailed("rank 1 says why"), "rank 1 says why"),
        (Ready(1, 2, ()), "only one rank of the group"),
        (Shutdown(), "only one rank of the group"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_ranks_that_fail_differently_part(answer: Any, message: str) -> None:
    own, other = ends()
    other.send(encode(answer))
    with pytest.raises(RankLost, match=message):
        agree(1, FAILURE, own)


def test_a_rank_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "AGREE_SECONDS", 0.05)
    own, other = ends()
    with pytest.raises(RankLost, match=r"did not answer within 0\.05 s"):
        agree(1, FAILURE, own)
    other.close()
    with pytest.raises(RankLost, match="has ended"):
        agree(1, FAILURE, own)


def test_a_follower_that_fails_alone_ends(single: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "AGREE_SECONDS", 0.05)
    own, other = ends()
    own.send(encode(RunWave(1, "model", (embed_batch(ints([9999]), ints([1])),))))
    with pytest.raises(RankLost, match="did not answer"):
        follower.serve(other, single)


def test_a_follower_whose_leader_fails_alone_ends(single: Worker) -> None:
    own, other = ends()
    own.send(encode(RunWave(1, "model", (embed_batch(ints([1]), ints([1])),))))
    own.send(encode(failed(0, 0)))
    with pytest.raises(ProtocolError):
        follower.serve(other, single)


def test_a_follower_tells_its_leader_why_it_ends(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> Worker:
        raise CheckpointError("nothing to load")

    monkeypatch.setattr(follower, "load", broken)
    own, other = ends()
    own.send(follower_membership(checkpoint))
    assert follower.run(other) == 1
    assert b"nothing to load" in own.receive()[0]
    assert capsys.readouterr().err == "rank 1: nothing to load\n"


def follower_membership(checkpoint: Path) -> list[bytes]:
    from pie_inference.tensor_parallel.membership import Membership, decode_membership, encode_membership

    membership = Membership(1, 2, 5, config(checkpoint))
    frames = encode_membership(membership)
    assert decode_membership(frames) == membership
    return frames


# ---- what the machine offers -----------------------------------------------------------------------------------------


def test_ranks_share_the_threads() -> None:
    assert [threads_of_rank(8, 2), threads_of_rank(3, 2), threads_of_rank(1, 2)] == [4, 1, 1]


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device("auto", rank, 2) for rank in range(2)] == [torch.device("cuda", rank) for rank in range(2)]
    assert choose_device("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match="--tensor-parallel 4 needs 4 CUDA devices, and this machine has 2"):
        choose_device("cuda", 0, 4)


@pytest.mark.parametrize(
    ("given", "count", "first", "seen"),
    [
        (None, 4, 0, None),
        (None, 4, 2, "2,3,0,1"),
        (None, 4, 5, "1,2,3,0"),
        (None, 1, 3, None),
        (None, 0, 1, None),
        ("5,GPU-1f,7", 3, 1, "GPU-1f,7,5"),
        ("4,5,9", 2, 1, "5,4"),  # there is no GPU 9
    ],
)
def test_a_worker_begins_with_the_gpu_behind_those_of_others(
    given: str | None, count: int, first: int, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what CUDA reads when it is first used, so ranks that a worker starts see them, too."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    begin_with_gpu(first)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (given if seen is None else seen)


def test_two_ranks_share_adapters(group: WorkerGroup, single: Worker, tmp_path: Path) -> None:
    """Of layers that are split by their outputs, and of others that are split by their inputs."""
    folder = make_adapter(tmp_path / "adapter", modules=list(LLAMA))
    numbers, prompts = [3, -1, 3], [PROMPT, PROMPT, [7]]
    found = []
    workers: tuple[WorkerGroup | Worker, ...] = (group, single)
    for worker, driver in zip(workers, drivers(group, single), strict=True):
        answer = worker.load_adapter(LoadAdapter(3, str(folder)))
        assert answer.error is None
        embed, forward = driver.forward_batch([Extend(Keys(), prompt) for prompt in prompts])
        forward = msgspec.structs.replace(forward, adapters=ints(numbers))
        rows = ints(range(81))
        score = GetLogprobs(rows + driver.outputs, indptr([272] * 81), ints(list(range(272)) * 81))
        found.append(driver.ask(GetLogprobsResult, embed, forward, score).logprobs)
        worker.drop_adapter(DropAdapter(3))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_an_adapter_that_a_rank_cannot_load_is_on_none(group: WorkerGroup, single: Worker, tmp_path: Path) -> None:
    broken = make_adapter(tmp_path, r=8)
    assert "expected [8," in str(group.load_adapter(LoadAdapter(4, str(broken))).error)
    good = make_adapter(tmp_path)
    assert group.load_adapter(LoadAdapter(5, str(good))).error is None
    group.drop_adapter(DropAdapter(5))
    texts = [driver.generate(Keys(), PROMPT, 3) for driver in drivers(group, single)]
    assert texts[0] == texts[1]


def test_two_ranks_tell_the_scores_of_one(group: WorkerGroup, single: Worker) -> None:
    found = []
    for driver in drivers(group, single):
        embed, forward = driver.forward_batch([Extend(Keys(), PROMPT), Extend(Keys(), [7, 8])])
        scored = ForwardWithScores(**msgspec.structs.asdict(forward))
        found.append(driver.ask(ForwardWithScoresResult, embed, scored).scores)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[0].sum(), 42, rtol=1e-5)
