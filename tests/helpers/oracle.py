"""transformers' own models, which ours are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from pie_inference.config import WorkerConfig
from pie_inference.protocol import ShiftKvpage
from pie_inference.serving.worker import Worker
from testing.worker_batches import Driver, Extend, Keys, copy_batch, indptr, ints

VOCAB = 272


class Oracle:
    """A checkpoint in float32 with the worker and transformers' model that serve it."""

    def __init__(self, folder: Path, reference: Any, **options: Any) -> None:
        self.folder = folder
        self.reference = reference.eval()
        self._one_at_a_time = Lock()  # a forward of transformers may change its module for a while
        defaults: dict[str, Any] = {"dtype": "float32", "pages": 256, "embeds": 2048}
        self.config = WorkerConfig(folder, "model", **defaults | options)
        self.worker = Worker(self.config)

    @classmethod
    def of(cls, folder: Path) -> Oracle:
        """With the model that transformers loads from the folder."""
        return cls(folder, load_reference(folder, torch.float32))

    def driver(self) -> Driver:
        return Driver(self.worker.run, "model")

    def expected(
        self, tokens: Sequence[int], visible: np.ndarray | None = None, positions: Sequence[int] | None = None
    ) -> np.ndarray:
        """Log-probabilities [len(tokens), vocab] of the reference; `visible` replaces the causal rule."""
        mask = None
        if visible is not None:
            hidden = torch.from_numpy(~visible)
            mask = torch.zeros(1, 1, *visible.shape).masked_fill_(hidden, torch.finfo(torch.float32).min)
        with self._one_at_a_time, torch.inference_mode():
            output = self.reference(
                torch.tensor([list(tokens)]),
                attention_mask=mask,
                position_ids=torch.tensor([list(positions)]) if positions is not None else None,
            )
        logprobs: np.ndarray = output.logits[0].log_softmax(-1).numpy()
        return logprobs


def load_reference(folder: Path, dtype: torch.dtype) -> Any:
    """The folder as transformers serves it, with its plainest attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def log_probabilities(model: Any, tokens: Sequence[int], **more: Any) -> np.ndarray:
    """Of the next token after each one, float32 [len(tokens), vocab]."""
    with torch.inference_mode():
        logprobs: np.ndarray = model(torch.tensor([list(tokens)]), **more).logits[0].float().log_softmax(-1).numpy()
    return logprobs


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def assert_decodes(oracle: Oracle, prompt: int = 95, more: int = 5) -> None:
    """A prompt of so many tokens, and `more` one by one behind it."""
    tokens, keys, driver = random_tokens(prompt + more), Keys(), oracle.driver()
    expected = oracle.expected(tokens)
    [prefill] = driver.logprobs(Extend(keys, tokens[:prompt]), vocab_size=VOCAB)
    assert_close(prefill, expected[:prompt])
    for n in range(prompt, prompt + more):
        [decode] = driver.logprobs(Extend(keys, tokens[n : n + 1]), vocab_size=VOCAB)
        assert_close(decode, expected[n : n + 1])


def assert_forks_share_pages(oracle: Oracle) -> None:
    """A fork within a page: one branch goes on in the page, the other in a copy of its slots."""
    driver, trunk, prompt = oracle.driver(), Keys(), random_tokens(40, 3)
    driver.logprobs(Extend(trunk, prompt), vocab_size=VOCAB)
    branches = [trunk, trunk.fork()]
    source, branches[1].slots = branches[1].slots[32:], branches[1].slots[:32]
    driver.run(copy_batch(ints(source), ints(driver.add_slots(branches[1], 8))))
    texts = [random_tokens(9, 20 + n) for n in range(2)]
    for part in (slice(0, 8), slice(8, 9)):
        steps = [Extend(branch, text[part]) for branch, text in zip(branches, texts, strict=True)]
        results = driver.logprobs(*steps, vocab_size=VOCAB)
    for result, text in zip(results, texts, strict=True):
        assert_close(result, oracle.expected(prompt + text)[-1:])


def assert_keys_move(oracle: Oracle) -> None:
    """50 tokens that were run at positions from 23 on, and are moved to the beginning."""
    assert not oracle.worker.describe()[0].fixed_positions
    tokens, keys, driver = random_tokens(60, 5), Keys(), oracle.driver()
    keys.position = 23
    driver.logprobs(Extend(keys, tokens[:50]), vocab_size=VOCAB)
    driver.run(ShiftKvpage(ints(keys.slots), ints(range(50)), indptr([50])))
    keys.position = 50
    [result] = driver.logprobs(Extend(keys, tokens[50:]), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens)[50:])


def assert_ragged_batch_equals(oracle: Oracle, before: Sequence[int], new: Sequence[int]) -> None:
    """Sequences that have `before` tokens in the cache and get `new` ones, all in one Forward."""
    driver = oracle.driver()
    texts = [random_tokens(a + b, 10 + n) for n, (a, b) in enumerate(zip(before, new, strict=True))]
    sequences = [Keys() for _ in before]
    started = [Extend(keys, text[:a]) for keys, text, a in zip(sequences, texts, before, strict=True) if a]
    driver.logprobs(*started, vocab_size=VOCAB)
    parts = [Extend(keys, text[a:]) for keys, text, a in zip(sequences, texts, before, strict=True)]
    for result, text, start in zip(driver.logprobs(*parts, vocab_size=VOCAB), texts, before, strict=True):
        assert_close(result, oracle.expected(text)[start:])
