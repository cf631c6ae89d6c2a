"""A worker for tests of what handlers answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver


@pytest.fixture(scope="module", params=[1, 2])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Drives one process, and two ranks."""
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    ranks: int = request.param
    config = WorkerConfig(folder, "model", dtype="float32", pages=64, embeds=1024, tensor_parallel=ranks)
    if ranks == 1:
        yield Driver(Worker(config).run, "model")
        return
    group = WorkerGroup(config, Worker)
    try:
        yield Driver(group.run, "model")
    finally:
        group.close()
