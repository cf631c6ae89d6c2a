"""transformers: `generate` on one batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..generation import Prompts
from .interface import PeerRun

SETTINGS = {
    "sdpa, dynamic cache": ("sdpa", "dynamic"),
    "sdpa, static cache": ("sdpa", "static"),
    "eager, dynamic cache": ("eager", "dynamic"),
}


class TransformersPeer:
    """Implements `Peer`."""

    settings: Sequence[str] = tuple(SETTINGS)

    def __init__(self, checkpoint: Path) -> None:
        self._transformers: Any = import_module("transformers")
        self._model = self._transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
        self._model.generation_config.eos_token_id = None  # a run's own configuration takes missing values from here

    def generate(self, setting: str, prompts: Prompts, count: int) -> PeerRun:
        attention, cache = SETTINGS[setting]
        self._model.set_attn_implementation(attention)
        inputs, clock = torch.tensor(prompts), _Clock()
        start = time.perf_counter()
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=self._configuration(cache, count),
                stopping_criteria=self._transformers.StoppingCriteriaList([clock]),
            )
        per_token = (clock.times[-1] - clock.times[0]) / (count - 1)
        return PeerRun(setting, outputs[:, inputs.shape[1] :].tolist(), clock.times[0] - start, per_token)

    def _configuration(self, cache: str, count: int) -> Any:
        return self._transformers.GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, cache_implementation=cache
        )


class _Clock:
    """A stopping criterion that never stops: transformers calls it after each token, so it can note the time."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, tokens: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(tokens), dtype=torch.bool)


def load(checkpoint: Path, threads: int) -> TransformersPeer:
    """A `PeerFactory`."""
    torch.set_num_threads(threads)
    return TransformersPeer(checkpoint)
