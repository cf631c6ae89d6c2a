"""The checks of `gpu_check` that need more than one kernel: sampling, swapping, graphs, a whole model."""

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
ATTENTIONS = ("triton", "flashinfer", "torch")
KV_HEADS = 2


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
    from pie_inference.execution.choices import Choice

    rng, rows = np.random.default_rng(0), 64
    logits = torch.from_numpy(rng.normal(0, 3, (rows, 32_000)).astype(np.float32))
    values = {"temperature": [1.0], "top_k": [0], "top_p": [1.0], "min_p": [0.0], "typical_p": [1.0], **bounds}
    drawn = {name: rng.choice(np.array(options), rows) for name, options in values.items()}
    top_k = drawn.pop("top_k").astype(np.int64)
    floats = {name: numbers.astype(np.float64) for name, numbers in drawn.items()}
    choice = Choice(top_k=top_k, uniform=rng.random(rows), **floats)
    expected = sampling.choose(logits, choice)
    differing = int((sampling.choose(logits.to(device), choice).cpu() != expected).sum())
    assert differing == 0, f"{differing} of {rows} tokens differ"
    return Errors(note=f"{rows} tokens equal")


# ---- host pages ------------------------------------------------------------------------------------------------------


def host_pages(setting: Setting) -> Checks:
    yield "swapped out and in", functools.partial(_swap, setting.device)
    yield "with states", functools.partial(_swap_states, setting.device)


def _swap(device: torch.device) -> Errors:
    """Overwrites pages as soon as they are swapped out, then swaps them in elsewhere, again and again."""
    from pie_inference.kv_cache.copy_lane import make_lane
    from pie_inference.kv_cache.host_pages import HostPages
    from pie_inference.kv_cache.pages import KvCache, KvShape

    cache = KvCache(KvShape(4, 4, 64, 16, torch.bfloat16), 64, device)
    pool = HostPages(cache, 64, 32, make_lane(device))
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    contents = torch.randn(4, 32, 8, 16, 64, generator=generator).to(torch.bfloat16)
    for _ in range(20):
        pages, elsewhere = (np.sort(rng.permutation(64)[:32]).astype(np.int32) for _ in range(2))
        host = rng.permutation(64)[:32].astype(np.int32)
        index, other = (torch.from_numpy(each.astype(np.int64)).to(device) for each in (pages, elsewhere))
        for layer in range(4):
            cache.write_pages(layer, index, contents[layer].to(device))
        pool.swap_out(pages, host)
        for layer in range(4):
            cache.write_pages(layer, index, torch.zeros_like(contents[layer]).to(device))
        pool.swap_in(host, elsewhere)
        for layer in range(4):
            assert torch.equal(cache.read_pages(layer, other).cpu(), contents[layer]), f"layer {layer} differs"
    return Errors(note="20 rounds of 32 pages equal")


def _swap_states(device: torch.device) -> Errors:
    """Overwrites states as soon as they are swapped out, in more parts than one, then swaps them in elsewhere."""
    from pie_inference.kv_cache.copy_lane import make_lane
    from pie_inference.kv_cache.host_pages import HostStates
    from pie_inference.protocol import SwapIn, SwapOut

    pool = torch.zeros(16, 8, 1 << 18, device=device)  # 8 MB each, of which 8 move at a time
    host, rng = HostStates(pool, 12, make_lane(device)), np.random.default_rng(0)
    page, all_of_it = np.zeros(1, np.int32), np.array([0, 10], np.int32)
    for turn in range(5):
        states, elsewhere = (rng.permutation(16)[:10].astype(np.int32) for _ in range(2))
        there = rng.permutation(12)[:10].astype(np.int32)
        here, other = (torch.from_numpy(each.astype(np.int64)).to(device) for each in (states, elsewhere))
        contents = torch.arange(10.0, device=device).view(10, 1, 1) + turn
        pool[here] = contents
        host.swap_out(SwapOut(page, page, all_of_it, states, there))
        pool.zero_()
        host.swap_in(SwapIn(page, page, all_of_it, there, elsewhere))
        assert bool((pool[other] == contents).all()), f"states differ in turn {turn}"
    return Errors(note="5 rounds of 10 states equal")


# ---- copies and moves ------------------------------------------------------------------------------------------------


def moves(setting: Setting) -> Checks:
    """Checks that slots are copied, and keys moved to other positions, as on the CPU."""
    for dtype, allowed in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3)):
        yield str(dtype).removeprefix("torch."), functools.partial(_compare_moves, dtype, allowed, setting.device)


def _compare_moves(dtype: torch.dtype, allowed: float, device: torch.device) -> Errors:
    found, expected = (_moved(dtype, one) for one in (device, torch.device("cpu")))
    return compare(found, expected.double(), allowed)


def _moved(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The contents of a cache after copies of pages and slots, and a move of keys."""
    from pie_inference.kv_cache.pages import KvCache, KvShape
    from pie_inference.layers.rotary import rotation

    cache, generator = KvCache(KvShape(2, 2, 64, 16, dtype), 32, device), torch.Generator().manual_seed(0)
    for layer in range(2):
        pages = cache.layer(layer)
        pages.copy_(torch.randn(pages.shape, generator=generator))
    source, target = (np.r_[first : first + 40, last].astype(np.int32) for first, last in ((16, 90), (176, 3)))
    cache.copy(source, target)
    slots = np.arange(100, 150, dtype=np.int32)
    far = torch.from_numpy(cache.distances(slots, 3 * slots).astype(np.int64)).to(device)
    inverse = torch.exp2(-torch.arange(32.0, device=device) / 4)
    cache.shift(slots, 3 * slots, [rotation(inverse, far, torch.float32)] * 2)
    return torch.stack([cache.layer(layer) for layer in range(2)]).cpu()


# ---- graphs and models -----------------------------------------------------------------------------------------------


def graphs(setting: Setting) -> Checks:
    """Checks that decode by CUDA graphs equals decode kernel by kernel. With four heads that share keys, FlashInfer
    decodes by its tensor cores."""
    if not setting.is_gpu:
        raise Unavailable("CUDA graphs need a GPU")
    for attention in ATTENTIONS[:2]:
        for heads in (4, 8):
            name = f"{attention}, {heads // KV_HEADS} heads share keys"
            yield name, functools.partial(_graphs, setting, attention, heads)


def _graphs(setting: Setting, attention: str, heads: int) -> Errors:
    _need(setting, attention)
    replayed, eager = (
        served(setting, "bfloat16", heads=heads, attention=attention, graphs=graphs) for graphs in ("auto", "off")
    )
    errors = _compare_decoding(replayed, eager, "bfloat16")
    need_recorded(replayed)
    return errors


def need_recorded(worker: Any, adapted: bool = False) -> None:
    """Raises AssertionError unless steps have run by graphs; `adapted`: with adapters."""
    made = [recording for (_, form), recording in worker._served.executor._recordings.items() if adapted == bool(form)]
    assert any(made), "no step was recorded: stderr says why"


def model(setting: Setting) -> Checks:
    """Checks that a random model gives the same results as on the CPU, with each attention, and by transformers'
    code."""
    for attention in ATTENTIONS if setting.is_gpu else ("auto", "torch"):
        for dtype in ("bfloat16", "float32"):
            if attention != "flashinfer" or dtype == "bfloat16":
                yield f"{attention}, {dtype}", functools.partial(_model, setting, attention, dtype)
    if setting.is_gpu:
        yield "by transformers' code", functools.partial(_model, setting, "auto", "bfloat16", "transformers")


def _model(setting: Setting, attention: str, dtype: str, code: str = "auto") -> Errors:
    _need(setting, attention)
    started = time.perf_counter()
    found = served(setting, dtype, attention=attention, pages=None, model_code=code)
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


def served(setting: Setting, dtype: str, *, heads: int = 4, **options: Any) -> Any:
    """A worker of a random model."""
    from pie_inference.config import WorkerConfig
    from pie_inference.serving.worker import Worker
    from testing.checkpoints import make_checkpoint

    folder: Path = setting.folder / f"model-{heads}"
    if not folder.exists():
        sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
        make_checkpoint(folder, **sizes, num_heads=heads, num_kv_heads=KV_HEADS)
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
