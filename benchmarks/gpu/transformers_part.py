"""transformers' continuous batching, as it ships.

It computes a dense mask over all sequences, unless it finds flash-attn or its kernels, which we cannot assume. The time
of a token is that between its own timestamps while all sequences run, so that prompts and start do not count.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..support.samples import together
from .plan import Plan, prompts
from .results import Measured, log, row, tell
from .shapes import SHAPES

WAY = "transformers"
PAGE = 256
"""Tokens in a page of its cache."""
BATCH_TOKENS = 2048
"""Most of them in a step: prompts are done soon after each other."""


def run(model: str, folder: Path, plan: Plan) -> None:
    """Sends a row for each number of sequences."""
    transformers = import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    loaded = loaded.to(plan.device).eval()
    log(f"{model}: loaded by transformers {transformers.__version__}")
    for concurrent in plan.concurrent:
        try:
            tell([row(model, WAY, concurrent, _measure(model, loaded, concurrent, plan))])
        except Exception as error:  # the other numbers go on in any case
            tell([Measured(model, WAY, concurrent, None, None, " ".join(str(error).split()))])


def _measure(model: str, loaded: Any, concurrent: int, plan: Plan) -> float:
    """Seconds for a token of each sequence, behind a trial. Raises RuntimeError if sequences do not run together."""
    transformers = import_module("transformers")
    texts = prompts(concurrent, plan.prompt, SHAPES[model].vocab_size)
    config = transformers.GenerationConfig(max_new_tokens=plan.tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    cache = transformers.ContinuousBatchingConfig(
        num_blocks=concurrent * (2 + (plan.prompt + plan.tokens) // PAGE),
        max_batch_tokens=max(BATCH_TOKENS, concurrent),
    )
    try:
        found = [
            loaded.generate_batch(texts, config, cache, record_timestamps=True, persistent_manager=True)
            for _ in range(plan.rounds + 1)
        ]
    finally:
        loaded.destroy_cached_continuous_batching_manager()
    lengths = [len(one.generated_tokens) for done in found for one in done.values()]
    if lengths != [plan.tokens] * len(found) * concurrent:
        raise RuntimeError(f"{len(lengths)} of {len(found) * concurrent} sequences, of {set(lengths)} tokens")
    return min(together([one.timestamps for one in done.values()]) for done in found[1:])
