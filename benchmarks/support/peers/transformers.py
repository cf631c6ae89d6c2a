"""transformers: `generate` on one batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..generation import Prompts
from ..limited import faster_dtype, torch_features
from .interface import PeerRun

WARM_UP_TOKENS = 3
"""The second token compiles the model."""


@dataclass(frozen=True)
class Setting:
    """Arguments of transformers. `compiled`: steps of one token for each sequence run compiled."""

    attention: str
    cache: str
    compiled: bool = False


SETTINGS = {
    "sdpa, dynamic cache": Setting("sdpa", "dynamic"),
    "sdpa, static cache": Setting("sdpa", "static"),
    "eager, dynamic cache": Setting("eager", "dynamic"),
    "sdpa, static cache, torch.compile": Setting("sdpa", "static", compiled=True),
}


class TransformersPeer:
    """Implements `Peer`."""

    def __init__(self, checkpoint: Path, compiles: bool) -> None:
        self.settings: Sequence[str] = [name for name, one in SETTINGS.items() if compiles or not one.compiled]
        self._transformers: Any = import_module("transformers")
        self._dtype = faster_dtype()
        self._model = self._transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=self._dtype).eval()
        self._model.generation_config.eos_token_id = None  # a run's own configuration takes missing values from here
        self._compiled: tuple[int, int] | None = None

    def features(self) -> str:
        return f"{torch_features()}, {str(self._dtype).removeprefix('torch.')}"

    def generate(self, setting: str, prompts: Prompts, count: int, room: int) -> PeerRun:
        inputs = torch.tensor(prompts)
        if SETTINGS[setting].compiled and count > 1:
            self._compile(setting, inputs, room)
        return self._run(setting, inputs, count, room)

    def _compile(self, setting: str, inputs: torch.Tensor, room: int) -> None:
        """Compiles steps of exactly this shape, unless these were the last ones."""
        shape = len(inputs), room
        if self._compiled != shape:
            torch.compiler.reset()
            self._run(setting, inputs[:, :1], WARM_UP_TOKENS, room)
            self._compiled = shape

    def _run(self, setting: str, inputs: torch.Tensor, count: int, room: int) -> PeerRun:
        self._model.set_attn_implementation(SETTINGS[setting].attention)
        configuration, clock = self._configuration(SETTINGS[setting], count, room), _Clock()
        start = time.perf_counter()
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=configuration,
                stopping_criteria=self._transformers.StoppingCriteriaList([clock]),
            )
        per_token = (clock.times[-1] - clock.times[0]) / max(1, count - 1)
        return PeerRun(setting, outputs[:, inputs.shape[1] :].tolist(), clock.times[0] - start, per_token)

    def _configuration(self, setting: Setting, count: int, room: int) -> Any:
        configuration = self._transformers.GenerationConfig(
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=setting.cache,
            disable_compile=not setting.compiled,
        )
        if setting.cache == "static":
            configuration.max_cache_len = room
        if setting.compiled:
            configuration.compile_config = self._transformers.CompileConfig(mode="default", dynamic=False)
            configuration.compile_config._compile_all_devices = True  # else it compiles only for GPUs
        return configuration


class _Clock:
    """A stopping criterion that never stops: transformers calls it after each token, so it can note the time."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, tokens: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(tokens), dtype=torch.bool)


def load(checkpoint: Path, form: str, threads: int, compiles: bool) -> TransformersPeer:
    """A `PeerFactory`, for bfloat16 alone; it computes in `faster_dtype`."""
    if form != "bf16":
        raise ValueError(f"transformers is compared in bf16 only, not in {form}")
    torch.set_num_threads(threads)
    return TransformersPeer(checkpoint, compiles)
