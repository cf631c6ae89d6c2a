"""The checks of `gpu_check` that need more than one kernel: sampling, graphs, a whole model."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .kernels import compare
from .results import Checks, Errors, Setting, Unavailable

TOKENS = 24
VOCAB = 272  # vocabulary of the tests' checkpoints
LOGPROB_ERROR = {"float32": 1e-3, "bfloat16": 5e-2}
ATTENTIONS = ("flashinfer", "triton", "torch")


# ---- sampling --------------------------------------------------------------------------------------------------------


def sampling(setting: Setting) -> Checks:
    """Checks that the device samples the same tokens as the CPU."""
    bounds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": [0.0]},
        "temperature": {"temperature": [0.3, 1.0, 3.0]},
        "top-k": {"top_k": [1, 40, 1500, 100_000]},
        "top-p": {"top_p": [0.1, 0.9, 0.999999], "temperature": [1.0, 20.0]},
        "min-p": {"min_p": [0.05, 1e-9]},
        "typical": {"typical_p": [0.2, 0.9], "top_k": [0, 40]},
        "mixed": {"temperature": [0.0, 0.7, 1.5], "top_k": [0, 100], "top_p": [1.0, 0.8], "min_p": [0.0, 0.02]},
    }
    for name, values in bounds.items():
        yield name, functools.partial(_sample, values, setting.device)


def _sample(bounds: dict[str, Any], device: torch.device) -> Errors:
    from pie_inference.execution import sampling

    rng, rows = np.random.default_rng(0), 64
    logits = torch.from_numpy(rng.normal(0, 3, (rows, 32_000)).astype(np.float32))
    values = {"temperature": [1.0], "top_k": [0], "top_p": [1.0], "min_p": [0.0], "typical_p": [1.0], **bounds}
    drawn = {name: rng.choice(np.array(options), rows) for name, options in values.items()}
    top_k = drawn.pop("top_k").astype(np.int64)
    floats = {name: numbers.astype(np.float64) for name, numbers in drawn.items()}
    choice = sampling.Choice(top_k=top_k, uniform=rng.random(rows), **floats)
    expected = sampling.choose(logits, choice)
    differing = int((sampling.choose(logits.to(device), choice).cpu() != expected).sum())
    assert differing == 0, f"{differing} of {rows} tokens differ"
    return Errors(note=f"{rows} tokens equal")


# ---- graphs and models -----------------------------------------------------------------------------------------------


def graphs(setting: Setting) -> Checks:
    """Checks that decode by CUDA graphs equals decode kernel by kernel."""
    if not setting.is_gpu:
        raise Unavailable("CUDA graphs need a GPU")
    for attention in ATTENTIONS[:2]:
        yield attention, functools.partial(_graphs, setting, attention)


def _graphs(setting: Setting, attention: str) -> Errors:
    _need(setting, attention)
    eager = served(setting, "bfloat16", attention=attention, graphs="off")
    replayed = served(setting, "bfloat16", attention=attention, graphs="auto")
    return _compare_decoding(replayed, eager, "bfloat16")


def model(setting: Setting) -> Checks:
    """Checks that a random model gives the same results as on the CPU, with each attention."""
    for attention in ATTENTIONS if setting.is_gpu else ("auto", "torch"):
        for dtype in ("float32", "bfloat16"):
            if attention != "flashinfer" or dtype == "bfloat16":
                yield f"{attention}, {dtype}", functools.partial(_model, setting, attention, dtype)


def _model(setting: Setting, attention: str, dtype: str) -> Errors:
    _need(setting, attention)
    started = time.perf_counter()
    found = served(setting, dtype, attention=attention, pages=None)
    seconds, pages = time.perf_counter() - started, found.describe()[0].num_pages
    assert pages > 256, f"only {pages} pages fit the free memory"
    errors = _compare_decoding(found, served(setting, dtype, device="cpu", attention="torch", kernels="torch"), dtype)
    note = f"loaded in {seconds:.1f} s, {pages} pages; {errors.note}"
    return Errors(errors.max_abs, errors.relative, errors.allowed, note)


def _need(setting: Setting, attention: str) -> None:
    """Raises Unavailable if an optional attention is not installed; one that is installed must serve."""
    from pie_inference.device import flashinfer_library, triton_support

    known = {"flashinfer": flashinfer_library.why_unavailable, "triton": triton_support.why_unavailable}
    reason = known[attention](setting.device) if attention in known else None
    if reason is not None:
        raise Unavailable(reason)


def served(setting: Setting, dtype: str, **options: Any) -> Any:
    from pie_inference.config import WorkerConfig
    from pie_inference.serving.worker import Worker
    from testing.checkpoints import make_checkpoint

    folder: Path = setting.folder / "model"
    if not folder.exists():
        make_checkpoint(folder, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=64)
    defaults = {"device": setting.device.type, "pages": 256, "embeds": 2048}
    return Worker(WorkerConfig(folder, "model", dtype=dtype, **{**defaults, **options}))


def _compare_decoding(found: Any, expected: Any, dtype: str) -> Errors:
    """Compares log-probabilities of prompts and of decode steps on the same tokens; in float32 the greedy tokens must
    be the same too."""
    actual, reference = (torch.from_numpy(_logprobs(worker)) for worker in (found, expected))
    errors = compare(actual, reference.double(), LOGPROB_ERROR[dtype])
    tokens = [_greedy(worker) for worker in (found, expected)]
    same = "the same" if tokens[0] == tokens[1] else "other"
    assert dtype != "float32" or same == "the same", f"greedy tokens {tokens}"
    return Errors(errors.max_abs, errors.relative, errors.allowed, f"{same} {TOKENS} greedy tokens")


def _logprobs(worker: Any) -> np.ndarray:
    """Log-probabilities [rows, vocab] of prompts, and of twice `TOKENS` decode steps."""
    from testing.worker_batches import Driver, Extend, Keys

    driver, rng = Driver(worker.run, "model"), np.random.default_rng(0)
    sequences = [Keys() for _ in range(3)]
    prompts = [rng.integers(0, VOCAB, count).tolist() for count in (40, 100, 7)]
    parts = [Extend(keys, prompt) for keys, prompt in zip(sequences, prompts, strict=True)]
    found = driver.logprobs(*parts, vocab_size=VOCAB)
    for count in (1, 600):  # more than a graph can have, before they are replayed again
        found += driver.logprobs(Extend(Keys(), rng.integers(0, VOCAB, count).tolist()), vocab_size=VOCAB)
        for _ in range(TOKENS):
            steps = [Extend(keys, rng.integers(0, VOCAB, 1).tolist()) for keys in sequences]
            found += driver.logprobs(*steps, vocab_size=VOCAB)
    return np.concatenate(found)


def _greedy(worker: Any) -> list[int]:
    from testing.worker_batches import Driver, Keys

    tokens: list[int] = Driver(worker.run, "model").generate(Keys(), list(range(30, 50)), TOKENS)
    return tokens
