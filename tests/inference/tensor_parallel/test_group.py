"""The processes of a group of ranks: they start, say what is wrong, and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.local import LocalWorker
from pie_inference.config import WorkerConfig
from pie_inference.errors import CheckpointError, RankLost
from pie_inference.protocol import LoadAdapter, RunWave, WaveDone
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.families import FAMILIES, save_reference
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.oracle import Oracle, assert_close
from tests.helpers.processes import running, runs, until_gone
from tests.helpers.servers import launch, run, started, worker_pids
from tests.helpers.states import StateOracle
from tests.helpers.tiers import WHOLE, corpus
from tests.inference.models.test_borrowed_calls import put_adapter
from tests.inference.models.test_borrowed_ranks import SHARED, assert_keeps_states, logprobs
from tests.inference.models.test_borrowed_state import MODELS as STATEFUL

PROMPT = range(5, 45)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def config(folder: Path, ranks: int = 2) -> WorkerConfig:
    return WorkerConfig(folder, "model", dtype="float32", pages=64, embeds=2048, tensor_parallel=ranks)


def test_what_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, vocab_size=273)
    with pytest.raises(CheckpointError, match=r"273 features of .*lm_head.* cannot be split over 2 ranks"):
        WorkerGroup(config(tmp_path), Worker)


@pytest.mark.parametrize("family", corpus(["qwen3 moe", "olmo2"], lambda _: "in processes"))
def test_other_families_run_on_ranks(family: str, tmp_path: Path) -> None:
    """Every family runs on ranks that are threads (test_model_ranks): these are those that sum up most."""
    save_reference(tmp_path, FAMILIES[family][0], **FAMILIES[family][1])
    expected = Driver(Worker(config(tmp_path, 1)).run, "model").generate(Keys(), PROMPT, 10)
    with WorkerGroup(config(tmp_path), Worker) as group:
        assert Driver(group.run, "model").generate(Keys(), PROMPT, 10) == expected


@WHOLE
@pytest.mark.parametrize("name", ["gemma3n", "olmo3", "qwen2 moe"])
def test_models_by_transformers_code_run_on_ranks(name: str, tmp_path: Path) -> None:
    """Embeddings of layers, windows and experts, each with an adapter on some of the texts. As threads all are tried in
    each run (test_borrowed_ranks)."""
    architecture, settings = SHARED[name]
    oracle = Oracle(tmp_path, save_reference(tmp_path, architecture, **settings))
    assert put_adapter(oracle, tmp_path / "adapter")
    with WorkerGroup(config(tmp_path), Worker) as group:
        assert not group.load_adapter(LoadAdapter(1, str(tmp_path / "adapter"))).error
        [pid] = group.pids
        assert pid in followers_of(os.getpid())
        found = logprobs(group, [1, -1, 1])
    assert_close(found, logprobs(oracle.worker, [1, -1, 1]))


def test_a_model_with_a_state_by_transformers_code_runs_on_ranks(tmp_path: Path) -> None:
    architecture, settings = STATEFUL["lfm2"]
    oracle = StateOracle(tmp_path, save_reference(tmp_path, architecture, **settings), host_pages=8)
    alone = oracle.worker.describe()[0].state_bytes
    with WorkerGroup(replace(oracle.config, tensor_parallel=2), Worker) as group:
        assert group.describe()[0].state_bytes == alone  # of both ranks together
        oracle.worker = cast(Worker, group)
        assert_keeps_states(oracle)


def test_a_group_that_loses_a_rank_tells_how(tmp_path: Path) -> None:
    losses: list[str] = []
    lost = threading.Event()

    def note(message: str) -> None:
        losses.append(message)
        lost.set()

    with WorkerGroup(config(make_checkpoint(tmp_path)), Worker, note) as group:
        [pid] = group.pids
        os.kill(pid, signal.SIGKILL)
        assert lost.wait(HANG_SECONDS)
        assert losses == [f"rank 1 (process {pid}) was killed by signal 9; its group ends too"]
        with pytest.raises(RankLost):
            Driver(group.run, "model").generate(Keys(), [1, 2], 1)
    assert not runs(pid)


def client_of(checkpoint: Path, ranks: int = 2) -> WorkerClient:
    options = ["--model", str(checkpoint), "--name", "model", "--pages", "64", "--embeds", "2048"]
    return WorkerClient(LocalWorker([*options, "--tensor-parallel", str(ranks)], start_seconds=HANG_SECONDS))


def followers_of(leader: int) -> list[int]:
    return [process.pid for process in running("follower", leader)]


def test_a_group_dies_with_any_rank_and_is_restarted(checkpoint: Path) -> None:
    """First a follower of an idle group, then the leader in the middle of a wave. Of a follower that is lost while
    inferlets run, the test below tells."""

    async def test() -> None:
        client = client_of(checkpoint)
        ready = await client.start()
        for victim in ("idle follower", "leader"):
            answers: asyncio.Queue[WaveDone] = asyncio.Queue()
            lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            client.on_wave_done, client.on_lost = answers.put_nowait, lost.set_result
            followers = followers_of(ready.pid)
            assert len(followers) == 1
            await busy(client, answers, 1 if victim == "idle follower" else 2000)
            os.kill(ready.pid if victim == "leader" else followers[0], signal.SIGKILL)
            assert await asyncio.wait_for(lost, HANG_SECONDS)
            until_gone(*followers)  # without a watch over the ranks it would take half an hour
            ready = await client.restart()
        await client.close()
        until_gone(ready.pid)

    asyncio.run(asyncio.wait_for(test(), 2 * HANG_SECONDS))


async def busy(client: WorkerClient, answers: asyncio.Queue[WaveDone], waves: int) -> None:
    """Sends so many forwards and waits for the first to be answered."""
    embed, forward = Driver(lambda wave: WaveDone(0, (), 0.0), "model").forward_batch([Extend(Keys(), PROMPT)])
    for number in range(waves):
        client.send(RunWave(number, "model", (embed, forward)))
    assert (await asyncio.wait_for(answers.get(), HANG_SECONDS)).results == (None, None)


def test_the_control_process_hears_why_a_group_cannot_load(checkpoint: Path) -> None:
    async def test() -> None:
        with pytest.raises(WorkerUnavailable, match=r"^4 attention heads cannot be split|^2 key-value heads cannot be"):
            await client_of(checkpoint, 3).start()

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


GENERATE = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args, rounds=1):
    context, text = Context(args.model), ""
    for _ in range(rounds):
        context.fill("Once upon a time ")
        async for piece in context.generate(40, stop=IgnoreStopTokens()):
            text += piece
        context.truncate(0)
        await args.send("a round is over")
    return text
"""


def test_inferlets_run_on_ranks_and_are_told_when_one_is_killed(guest_cache: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "pages": 256}

    async def alone() -> str:
        async with started(guest_cache, **options) as server:
            return str(await run(server, GENERATE))

    async def check(expected: str) -> None:
        async with started(guest_cache, tensor_parallel=2, **options) as server, asyncio.timeout(HANG_SECONDS):
            assert await run(server, GENERATE) == expected
            _, listener = await launch(server, GENERATE, {"rounds": 1000})
            await listener.until_messages(1)
            [rank] = followers_of(worker_pids(server, "demo")[0])
            os.kill(rank, signal.SIGKILL)
            ended = await listener.ended
            assert ended.status == "lost"
            assert "launch again" in (ended.error or "")
            assert await run(server, GENERATE) == expected
            (replica,) = server.statistics().models["demo"]
            assert replica.restarts == 1

    asyncio.run(check(asyncio.run(alone())))
