"""Ranks record the graphs of decode steps together: all or none. On CPUs, through gloo."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import Ranks
from pie_inference.errors import RankLost
from pie_inference.execution.graphs import GraphExecutor
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel import agreement
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver
from tests.helpers.tiers import WHOLE
from tests.inference.execution.test_graphs import PROMPTS, generate

from . import recording_ranks
from .recording_ranks import make_worker

pytestmark = pytest.mark.usefixtures("recording_followers")
STEPS = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def recording_followers(started_as_usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a leader starts record as well."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([*command[:2], recording_ranks.__name__, *command[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)


def config(folder: Path, ranks: int = 2) -> WorkerConfig:
    return WorkerConfig(
        folder, "model", dtype="float32", attention="torch", pages=96, embeds=1024, tensor_parallel=ranks
    )


@pytest.mark.parametrize(("failing", "recorded"), [("", 2), ("record", 0), pytest.param("allocate", 0, marks=WHOLE)])
def test_where_one_rank_cannot_record_a_step_all_run_it_directly(
    failing: str, recorded: int, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = generate(Driver(Worker(config(checkpoint, 1)).run, "model"), PROMPTS, STEPS)
    leaders = list[Worker]()

    def lead(config: WorkerConfig, ranks: Ranks) -> Worker:
        leaders.append(make_worker(config, ranks, failing))
        return leaders[0]

    with WorkerGroup(config(checkpoint), lead) as group:
        assert generate(Driver(group.run, "model"), PROMPTS, STEPS) == expected
    executor = leaders[0]._served.executor
    assert isinstance(executor, GraphExecutor)
    assert len([one for one in executor._recordings.values() if one is not None]) == recorded
    assert capsys.readouterr().err.count("decode runs kernel by kernel") == (not recorded)


def test_a_rank_that_fails_where_others_wait_for_it_ends_its_group(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where it fails in a step that runs directly."""
    monkeypatch.setattr(agreement, "AGREE_SECONDS", 0.05)
    with (
        WorkerGroup(config(checkpoint), partial(make_worker, failing="warm up")) as group,
        pytest.raises(RankLost, match=r"did not answer within 0\.05 s"),
    ):
        generate(Driver(group.run, "model"), PROMPTS, STEPS)
