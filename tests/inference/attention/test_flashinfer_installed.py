"""The installed FlashInfer's own Python, with its compiled modules replaced by torch: what we give its wrappers reaches
the kernels as we mean it. Needs the package, but no GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pie_inference.attention.flashinfer.pages import FlashInferAttention
from pie_inference.attention.interface import AttentionSpec
from pie_inference.device.flashinfer_library import load
from pie_inference.kv_cache.pages import KvCache
from testing.attention_oracle import CASES, Problem, assert_near, assert_solves, filled_cache
from tests.helpers.fake_flashinfer import HIDDEN, append_paged_kv_cache

pytest.importorskip("flashinfer", exc_type=ImportError)

CPU = torch.device("cpu")
CAUSAL, CUSTOM = 1, 2  # MaskMode
HND = 1  # TensorLayout
LN_2 = 0.6931471805599453


def attend(
    q: Tensor,
    cache: Sequence[Tensor],
    q_indptr: Tensor,
    table: Sequence[Tensor],
    out: Tensor,
    lse: Tensor | None,
    hidden: Callable[[int, int, int], Tensor],
    scale: float,
    cap: float,
) -> None:
    """What kernels do with what wrappers give them."""
    indptr, indices, last = table
    for number in range(len(q_indptr) - 1):
        rows = slice(int(q_indptr[number]), int(q_indptr[number + 1]))
        pages = indices[int(indptr[number]) : int(indptr[number + 1])].long()
        count = (len(pages) - 1) * cache[0].shape[2] + int(last[number])
        keys, values = (side[pages].transpose(1, 2).flatten(0, 1)[:count].double() for side in cache)
        group = q.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[rows].double(), keys.repeat_interleave(group, 1)) * scale
        if cap > 0:
            scores = cap * torch.tanh(scores / cap)
        scores.masked_fill_(hidden(number, rows.stop - rows.start, count), HIDDEN)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.repeat_interleave(group, 1)).to(q.dtype)
        if lse is not None:
            lse[rows] = (scores.logsumexp(-1) / LN_2).t().float()


def outside(window_left: int, queries: int, keys: int) -> Tensor:
    own = torch.arange(queries)[:, None] + keys - queries
    return (
        (torch.arange(keys) + window_left < own) if window_left >= 0 else torch.zeros(queries, keys, dtype=torch.bool)
    )


def decode_module(*_: Any) -> Any:
    """In place of a compiled decode module."""

    def run(_f: Any, _i: Any, _p: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
        indptr, indices, last, out, lse, layout, window_left, _pdl, _alibi, cap, scale, *_rope = rest
        assert layout == HND
        q_indptr = torch.arange(len(q) + 1)
        attend(
            q,
            (k, v),
            q_indptr,
            (indptr, indices, last),
            out,
            lse,
            lambda _, queries, keys: outside(window_left, queries, keys),
            scale,
            cap,
        )

    return SimpleNamespace(plan=lambda *args: list(args[3:4]), run=run)


def prefill_module(*_: Any) -> Any:
    """In place of a compiled prefill module."""

    def run(_f: Any, _i: Any, _p: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
        q_indptr, indptr, indices, last, out, lse, mode, layout, window_left, _pdl, *more = rest
        bits, bit_indptr, _alibi, _prefix, _token, _item, cap, scale, *_unused = more
        assert layout == HND

        def hidden(number: int, queries: int, keys: int) -> Tensor:
            if mode == CUSTOM:  # as variants.cuh reads it
                begin = int(bit_indptr[number])
                own = bits.numpy()[begin : begin + -(-queries * keys // 8)]
                seen = np.unpackbits(own, count=queries * keys, bitorder="little").reshape(queries, keys)
                return torch.from_numpy(seen == 0) | outside(window_left, queries, keys)
            causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            return outside(window_left, queries, keys) | (~causal if mode == CAUSAL else torch.zeros_like(causal))

        attend(q, (k, v), q_indptr, (indptr, indices, last), out, lse, hidden, scale, cap)

    return SimpleNamespace(plan=lambda *args: list(args[3:4]), paged_run=run)


def page_module() -> Any:
    def append(*args: Any) -> None:
        key, value, batch_indices, positions, k, v, indices, indptr, last, layout = args
        assert layout == HND
        append_paged_kv_cache(key, value, batch_indices, positions, (k, v), indices, indptr, last, "HND")

    return SimpleNamespace(append_paged_kv_cache=append)


@pytest.fixture(autouse=True)
def torch_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, prefill = (importlib.import_module(f"flashinfer.{name}") for name in ("decode", "prefill"))
    monkeypatch.setattr(decode, "get_batch_decode_module", decode_module)
    for module in (decode, prefill):
        monkeypatch.setattr(module, "get_batch_prefill_module", prefill_module)
    monkeypatch.setattr(importlib.import_module("flashinfer.page"), "get_page_module", page_module)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **more: empty(*args, **{**more, "pin_memory": False}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))


def backend(cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> FlashInferAttention:
    return FlashInferAttention(cache, num_heads, specs, load())


@pytest.mark.parametrize("case", ["decode many", "mixed", "holes", "masks", "masks and windows", "soft caps"])
def test_batches_reach_the_kernels(case: str) -> None:
    assert_solves(Problem(CASES[case], torch.bfloat16), backend, CPU)


def test_heads_without_a_decode_kernel_reach_another() -> None:
    assert_solves(Problem(CASES["groups of 7, dimension 64"], torch.bfloat16), backend, CPU)


@pytest.mark.parametrize("case", ["decode many", "windows in decode"])
def test_graph_plans_reach_the_kernels(case: str) -> None:
    problem = Problem(CASES[case], torch.bfloat16)
    full = backend(filled_cache(problem, CPU), problem.case.num_heads, problem.case.specs)
    plan = full.graph_plan(16)
    for _ in range(2):
        plan.update(problem.batch)
    count = len(problem.new_slots)
    for layer, own in enumerate(problem.rows):
        rows = torch.cat((own, torch.zeros(16 - count, *own.shape[1:], dtype=own.dtype)))
        heads = problem.case.num_heads
        assert_near(plan.attend(layer, rows[:, :heads], rows[:, heads:])[:count], problem.expected(layer))
