"""What a CUDA graph can record of models by transformers' code is found without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pie_inference.assembly.plan import read_model
from pie_inference.config import WorkerConfig
from pie_inference.models.borrowed.proving.host_reads import HostReads
from pie_inference.serving.worker import Worker
from testing.worker_batches import Driver
from tests.helpers.families import save_reference
from tests.inference.execution.test_graphs import PROMPTS, FakeRecorder, generate, make_worker, served_by_graphs
from tests.inference.models.test_borrowed import LLAMA, MODELS


def set_where_positive(values: Tensor) -> None:
    values[values > 0] = values.sum()  # by a number it is a fill of a mask, as of torch 2.15


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda values: values.sum().item(), "it reads numbers back (item)"),
        (lambda values: 1 if values.any() else 0, "it reads numbers back (__bool__)"),
        (lambda values: values.tolist(), "it reads numbers back (tolist)"),
        (lambda values: values.cpu(), "it reads numbers back (cpu)"),
        (lambda values: values[values > 0], "shapes depend on numbers of the device (index.Tensor)"),
        (lambda values: values.nonzero(), "shapes depend on numbers of the device (nonzero.default)"),
        (lambda values: values[:, [2, 1]], "it copies numbers from the host (__getitem__)"),
        (lambda values: torch.tensor(1.5, device=values.device), "it copies numbers from the host (tensor)"),
        (lambda values: values.new_tensor([1.0]), "it copies numbers from the host (new_tensor)"),
        (set_where_positive, "shapes depend on numbers of the device (index_put_.default)"),
        (lambda values: torch.where(values > 0, values, torch.tensor(0.5)), ""),
        (lambda values: values.masked_fill(values > 0, 1.0).repeat_interleave(2, 1)[:, None, 1:], ""),
        (lambda values: values.index_select(0, torch.arange(2, device=values.device)).topk(2), ""),
    ],
)
def test_what_a_graph_cannot_record_is_seen(function: Callable[[Tensor], Any], reason: str) -> None:
    reads = HostReads()
    with reads.watched():
        function(torch.arange(12.0).view(4, 3) - 5)
    assert reads.found[:1] == ([reason] if reason else [])


@pytest.mark.parametrize("name", ["olmo3", "glm4", "gemma4"])
def test_replayed_steps_equal_direct_ones(name: str, tmp_path: Path) -> None:
    save_reference(tmp_path, MODELS[name][0], **MODELS[name][1])
    served = served_by_graphs(tmp_path, FakeRecorder())
    expected = generate(Driver(make_worker(tmp_path).run, "model"), PROMPTS, 8)
    assert generate(served.driver(), PROMPTS, 8) == expected
    assert served.recorder.recorded == 2  # sizes 8 and 4
    assert served.recorder.replayed == 8 - 1 - 2


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MODELS["gemma3n"], "it copies numbers from the host (tensor)"),
        (MODELS["gpt oss"], "no kernel of attention with sinks can be recorded"),
        (("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}), "texts with a state run in turns"),
        (LLAMA, ""),
    ],
)
def test_the_model_says_why_no_graph_records_it(model: tuple[str, dict[str, Any]], reason: str, tmp_path: Path) -> None:
    save_reference(tmp_path, model[0], **model[1])
    worker = Worker(WorkerConfig(tmp_path, "model", pages=64, embeds=512))
    config = worker._served.model.config
    assert worker._served.model.capturable == (not reason)
    assert (f"no CUDA graphs: {reason}" in config.code) == bool(reason)


def test_experts_that_read_on_the_host_are_not_recorded(tmp_path: Path) -> None:
    """Plain torch has no kernel for all experts on a CPU."""
    save_reference(tmp_path, MODELS["qwen2 moe"][0], **MODELS["qwen2 moe"][1])
    config = WorkerConfig(tmp_path, "model", pages=64, embeds=512, kernels="torch")
    assert "no CUDA graphs" not in read_model(config).config.code
    assert not Worker(config)._served.model.capturable


def test_rotations_that_follow_the_length_are_traced_as_they_are_served(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    save_reference(tmp_path, "ArceeForCausalLM", rope_parameters=rope)
    config = read_model(WorkerConfig(tmp_path, "model")).config
    assert "no CUDA graphs" not in config.code
    assert "depend on the length" in config.fixed_positions
