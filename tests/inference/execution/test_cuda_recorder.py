"""What records CUDA graphs, without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from pie_inference.execution.graphs import CudaRecorder


class TorchCuda:
    """What a recorder uses of torch, without a GPU. Like torch it stays on its own stream if a recording fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.streams = ["the worker's"]
        self.recording = False
        for name, function in {
            "graph_pool_handle": object,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
            "graph": self._graph,
            "current_stream": lambda: self.streams[-1],
            "set_stream": self.streams.append,
        }.items():
            patch.setattr(torch.cuda, name, function)

    @contextlib.contextmanager
    def _graph(self, graph: object, **options: object) -> Iterator[None]:
        self.streams.append("of recordings")
        self.recording = True
        yield
        self.recording = False
        self.streams.pop()


def test_kernels_are_loaded_before_they_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, ran = TorchCuda(monkeypatch), list[bool]()
    recorder = CudaRecorder()
    for step in (recorder.warm_up, recorder.record):
        step(lambda: ran.append(cuda.recording))
    assert ran == [False, True]


def test_a_recording_that_fails_leaves_the_worker_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = TorchCuda(monkeypatch)

    def work() -> None:
        if cuda.recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaRecorder().record(work)
    assert cuda.streams[-1] == "the worker's"
