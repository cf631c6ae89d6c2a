"""transformers' continuous batching, as it ships and with torch's varlen attention over its cache registered.

As shipped it computes a dense mask over all sequences, because we cannot assume flash-attn or its kernels. The other
way is what an expert user would do with torch alone. The time of a token is the difference between a long run and a
short one, divided by the tokens between, so that prompts and start do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .plan import Plan, prompts
from .results import log, row, tell, tell_problem
from .shapes import SHAPES

BLOCK = 32
NOTHING = 1e-6
"""Seconds; a shorter time is noise."""

WAYS = {"transformers": "sdpa", "transformers, varlen": "paged|varlen"}
"""The attention of each way. A name must not contain "flash", because transformers would then import flash-attn."""


def run(model: str, folder: Path, plan: Plan) -> None:
    """Sends rows of both ways for each number of sequences."""
    transformers = import_module("transformers")
    _register()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(plan.device).eval()
    log(f"{model}: loaded by transformers {transformers.__version__}")
    for way, attention in WAYS.items():
        try:
            loaded.set_attn_implementation(attention)
            _measure(model, way, loaded, plan)
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            tell_problem(f"{way}: {error}")


def _measure(model: str, way: str, loaded: Any, plan: Plan) -> None:
    short, long = max(2, plan.tokens // 4), plan.tokens
    for concurrent in plan.concurrent:
        texts = prompts(concurrent, plan.prompt, SHAPES[model].vocab_size)
        _generate(loaded, texts, short)
        times = [min(_generate(loaded, texts, count) for _ in range(plan.rounds)) for count in (short, long)]
        tell([row(model, way, concurrent, max(times[1] - times[0], NOTHING) / (long - short))])


def _generate(loaded: Any, texts: Sequence[Sequence[int]], count: int) -> float:
    """Seconds to generate `count` tokens behind each text."""
    generation = import_module("transformers").GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    start = time.perf_counter()
    found = loaded.generate_batch(
        inputs=[list(text) for text in texts],
        generation_config=generation,
        continuous_batching_config=_config(len(texts), len(texts[0]) + count, loaded.device.type),
        progress_bar=False,
    )
    elapsed = time.perf_counter() - start
    lengths = {len(one.generated_tokens) for one in found.values()}
    if lengths != {count} or len(found) != len(texts):
        raise RuntimeError(f"{len(found)} of {len(texts)} sequences, of {lengths} tokens")
    return elapsed


def _config(sequences: int, length: int, device: str) -> Any:
    """A configuration with a cache that fits, and with CUDA graphs, which transformers does not always use. Options
    that a version does not know are left out."""
    module = import_module("transformers.generation.configuration_utils")
    wanted = {
        "block_size": BLOCK,
        "num_blocks": sequences * -(-length // BLOCK) + 8,
        "max_batch_tokens": max(512, sequences),
        "use_cuda_graph": device == "cuda",
    }
    known = {field.name for field in fields(module.ContinuousBatchingConfig)}
    return module.ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})


def _register() -> None:
    """Registers torch's `varlen_attn` as an attention over the paged cache."""
    attentions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    varlen = import_module("torch.nn.attention.varlen").varlen_attn
    attentions.register("paged|varlen", lambda module, *args, **more: (_attend(varlen, module, *args, **more), None))


def _attend(
    varlen: Callable[..., Tensor], module: Any, query: Tensor, key: Tensor, value: Tensor, _: Any, **more: Any
) -> Tensor:
    """Attends. query, key, value: [1, heads, tokens, head_dim] of all sequences; returns [1, tokens, heads,
    head_dim]."""
    keys, values = more["cache"].update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=more["read_index"],
        write_index=more["write_index"],
    )
    own, theirs = (_of_full_attention(more[name]) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    longest = [int(_of_full_attention(more[name])) for name in ("max_seqlen_q", "max_seqlen_k")]
    group = module.num_key_value_groups
    keys, values = (side.repeat_interleave(group, 1) for side in (keys, values))  # not all versions group heads
    rows = query[0].transpose(0, 1).contiguous()
    return varlen(rows, keys, values, own, theirs, *longest, window_size=(-1, 0)).unsqueeze(0)


def _of_full_attention(given: Any) -> Any:
    """The argument for layers with full attention; transformers passes some arguments for each kind of layer."""
    return given["full_attention"] if isinstance(given, dict) else given
