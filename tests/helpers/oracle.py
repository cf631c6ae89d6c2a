"""transformers' own models, which ours are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from testing.worker_batches import Driver, Extend, Keys

VOCAB = 272


class Oracle:
    """A checkpoint in float32 with the worker and transformers' model that serve it."""

    def __init__(self, folder: Path, reference: Any, **options: Any) -> None:
        self.folder = folder
        self.reference = reference.eval()
        self.worker = Worker(
            WorkerConfig(folder, "model", **{"dtype": "float32", "pages": 256, "embeds": 2048, **options})
        )

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
        with torch.inference_mode():
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
