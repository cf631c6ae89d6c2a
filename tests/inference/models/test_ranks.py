"""Ranks that share a model of any family compute what one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.device.ranks import Ranks, SingleRank, run_ranks, share
from pie_inference.errors import CheckpointError
from pie_inference.json_files import read_json
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.loading.checkpoint import Checkpoint
from pie_inference.loading.weights import WeightLoader
from pie_inference.models.registry import build_model, read_architecture
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.protocol import Forward
from pie_inference.recurrence.interface import NONE, Runs
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.families import FAMILIES, save_reference

CPU = torch.device("cpu")


def run_rank(folder: Path, ranks: Ranks, tokens: Tensor, batch: Forward) -> Tensor:
    """Logits of all tokens of a text, as one rank computes them."""
    config = read_architecture(read_json(folder / "config.json"))
    with torch.inference_mode():
        weights = WeightLoader(Checkpoint(folder), TorchOps(CPU, torch.float32), torch.float32, CPU, ranks)
        model = build_model(config, weights)
        shape = KvShape(
            len(config.attention), share(ranks, config.num_kv_heads, "heads"), config.head_dim, 16, weights.dtype
        )
        attention = TorchAttention(KvCache(shape, 8, CPU), share(ranks, config.num_heads, "heads"), config.attention)
        if (state := config.state_of(ranks)) is not None:
            weights.states.allocate(1, state)
        every = torch.arange(len(tokens))
        with weights.states.running(Runs.make([len(tokens)], [NONE], [NONE] * len(tokens), CPU)):
            return model.logits(model.forward(model.embed(tokens), every, attention.plan(batch), every))


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_compute_what_one_does(name: str, tmp_path: Path) -> None:
    architecture, config = FAMILIES[name]
    save_reference(tmp_path, architecture, **config)
    tokens = torch.arange(60) * 7 % 272
    _, batch = Driver(lambda wave: pytest.fail("not run"), "model").forward_batch([Extend(Keys(), tokens.tolist())])
    alone = run_rank(tmp_path, SingleRank(), tokens, batch)
    for together in run_ranks(2, lambda ranks: run_rank(tmp_path, ranks, tokens, batch)):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


class Three(SingleRank):
    size = 3


def test_heads_that_cannot_be_shared_are_named(tmp_path: Path) -> None:
    save_reference(tmp_path, "LlamaForCausalLM")
    weights = WeightLoader(Checkpoint(tmp_path), TorchOps(CPU, torch.float32), torch.float32, CPU, Three())
    with pytest.raises(CheckpointError, match=r"cannot be split over 3 ranks; choose a divisor"):
        build_model(read_architecture(read_json(tmp_path / "config.json")), weights)
