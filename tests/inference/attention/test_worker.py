"""`Forward` over slots with holes and with explicit masks, through a whole worker, against dense float64 attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import find_library
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, copy_batch, ints

VOCAB, OLD, NEW = 272, 60, 9
NUM_PAGES = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["torch", "cpu"])
def worker(request: pytest.FixtureRequest, folder: Path, kernel_cache: Path) -> Worker:
    if request.param == "cpu" and find_library("auto", kernel_cache, torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    options = {"attention": request.param, "pages": NUM_PAGES, "cache_dir": kernel_cache}
    return Worker(WorkerConfig(folder, "model", dtype="float32", device="cpu", embeds=2048, **options))


def expected(folder: Path, tokens: list[int], visible: np.ndarray) -> np.ndarray:
    """Log-probabilities of the new tokens, in float64."""
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    hidden = torch.from_numpy(~visible)
    mask = torch.zeros(1, 1, *visible.shape, dtype=torch.float64).masked_fill_(hidden, torch.finfo(torch.float64).min)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), attention_mask=mask).logits
    result: np.ndarray = logits[0, OLD:].log_softmax(-1).numpy()
    return result


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_keys_anywhere_in_the_pool(worker: Worker, folder: Path, seed: int, masked: bool) -> None:
    """Keys are computed in order, copied to random slots, and a random half of them is seen from there."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, OLD + NEW).tolist()
    driver, keys = Driver(worker.run, "model"), Keys()
    driver.logprobs(Extend(keys, tokens[:OLD]), vocab_size=VOCAB)
    scattered = 16 * 16 + rng.permutation((NUM_PAGES - 16) * 16)[:OLD]  # the driver's own pages are the first
    driver.run(copy_batch(ints(keys.slots), ints(scattered)))
    kept = np.sort(rng.permutation(OLD)[: OLD // 2])
    keys.slots = scattered[kept].tolist()
    own = np.tril(np.ones((NEW, NEW), bool))
    seen = np.ones((NEW, len(kept)), bool)
    if masked:
        own, seen = rng.random(own.shape) < 0.5, rng.random(seen.shape) < 0.5
        own |= np.eye(NEW, dtype=bool)
    visible = np.tril(np.ones((OLD + NEW, OLD + NEW), bool))
    visible[OLD:] = False
    visible[OLD:, OLD:] = own
    visible[np.ix_(np.arange(OLD, OLD + NEW), kept)] = seen
    mask = np.concatenate([seen, own], 1) if masked else None
    [actual] = driver.logprobs(Extend(keys, tokens[OLD:], mask), vocab_size=VOCAB)
    np.testing.assert_allclose(actual, expected(folder, tokens, visible), rtol=1e-4, atol=1e-4)
