"""How fast is attention over pages on the CPU, against torch's own without pages?

Three implementations take turns: our kernel, the torch backend, and torch's scaled_dot_product_attention (SDPA).

`error` is the root mean square of the kernel's difference to float64, divided by that of the result. `gb_s` is the rate
at which a decode reads keys and values; compare it with the rate of memory that `pie bench-model` tells. Keys in common
count for each sequence. `gflop_s` is the rate at which a prefill computes, without the part that the causal rule hides.
SDPA gets keys without pages and grouped queries; gathering them is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pie_inference.attention.cpu.pages import CpuAttention
from pie_inference.attention.interface import AttentionBackend, AttentionSpec
from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.cpu_kernels.library import find_library
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.options import default_cache_dir
from pie_inference.protocol import Array, Forward

CPU = torch.device("cpu")
PAGE = 16


@dataclass(frozen=True)
class Point:
    """`sequences` sequences of `keys` keys each; the last `queries` keys are new and have a query. They have
    the first `shared` keys in common."""

    sequences: int
    queries: int
    keys: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 64
    dtype: str = "bfloat16"
    window: int | None = None
    shared: int = 0


@dataclass(frozen=True)
class Plan:
    """The median of `rounds` counts."""

    points: tuple[Point, ...]
    rounds: int
    layer_bytes: int = 256 << 20  # all layers together: more than CPU caches hold


FULL = Plan(
    (
        *(Point(sequences, 1, keys) for sequences, keys in ((1, 1024), (8, 1024), (32, 1024), (1, 8192))),
        Point(1, 1, 32768, window=4096),
        *(Point(1, tokens, tokens) for tokens in (128, 512, 2048)),
        Point(1, 512, 4096),
        Point(32, 1, 150, 4, 2, dtype="float32"),
        *(Point(8, 1, 8192, shared=shared) for shared in (0, 8064)),
        *(Point(8, 1, 1600, 12, 4, dtype="float32", shared=shared) for shared in (0, 1536)),
    ),
    rounds=9,
)
QUICK = Plan((Point(1, 1, 1024), Point(8, 1, 256), Point(1, 256, 256)), rounds=5)


@dataclass(frozen=True)
class Row:
    """Milliseconds of one layer, microseconds of planning; medians."""

    sequences: int
    queries: int
    keys: int
    heads: str
    dtype: str
    window: int | None
    shared: int
    plan_us: float
    ms: float
    torch_ms: float
    sdpa_ms: float | None  # None: SDPA has no windows
    gb_s: float
    gflop_s: float
    error: float


async def run(plan: Plan) -> list[Row]:
    with torch.inference_mode():
        return [measure(point, plan) for point in plan.points]


def measure(point: Point, plan: Plan) -> Row:
    """Measures all implementations, in turns, so that other work on the machine affects them alike."""
    setting = _Setting(point, plan.layer_bytes)
    ours, theirs = setting.kernel(), setting.reference()
    times = [(setting.time(ours), setting.time(theirs), setting.time_sdpa()) for _ in range(plan.rounds)]
    seconds = [float(np.median([each[side] for each in times])) for side in range(3)]
    return Row(
        sequences=point.sequences,
        queries=point.queries,
        keys=point.keys,
        heads=f"{point.num_heads}/{point.num_kv_heads} x {point.head_dim}",
        dtype=point.dtype,
        window=point.window,
        shared=point.shared,
        plan_us=round(float(np.median([_seconds(lambda: ours.plan(setting.batch)) for _ in range(50)])) * 1e6, 1),
        ms=round(seconds[0] * 1e3, 4),
        torch_ms=round(seconds[1] * 1e3, 4),
        sdpa_ms=round(seconds[2] * 1e3, 4) if point.window is None else None,
        gb_s=round(setting.bytes_read / seconds[0] / 1e9, 1),
        gflop_s=round(setting.operations / seconds[0] / 1e9, 1),
        error=setting.error(ours),
    )


class _Setting:
    """A cache full of random numbers, pages in random order, and one batch."""

    def __init__(self, point: Point, layer_bytes: int) -> None:
        dtype: torch.dtype = getattr(torch, point.dtype)
        self.point = point
        self.pages = -(-point.keys // PAGE)
        num_pages = point.sequences * self.pages
        per_layer = num_pages * PAGE * 2 * point.num_kv_heads * point.head_dim * dtype.itemsize
        self.layers = max(1, min(16, layer_bytes // per_layer))
        shape = KvShape(self.layers, point.num_kv_heads, point.head_dim, PAGE, dtype)
        self.cache = KvCache(shape, num_pages, CPU)
        for layer in range(self.layers):
            self.cache.layer(layer).normal_()
        every = np.arange(point.keys, dtype=np.int32)
        self.page_table = np.random.default_rng(0).permutation(num_pages).astype(np.int32).reshape(-1, self.pages)
        self.page_table[:, : point.shared // PAGE] = self.page_table[0, : point.shared // PAGE]
        self.slots = self.page_table[:, every // PAGE] * PAGE + every % PAGE
        self.cache.positions[self.slots] = every
        self.batch = self._batch()
        heads = point.num_heads + 2 * point.num_kv_heads
        self.rows = torch.randn(point.sequences * point.queries, heads, point.head_dim).to(dtype)
        self._specs = (AttentionSpec(point.head_dim**-0.5, point.window),) * self.layers
        self._dense = [self._keys(side) for side in (0, 1)]

    def kernel(self) -> AttentionBackend:
        library = find_library("auto", default_cache_dir(), CPU)
        assert library is not None, "there are no compiled kernels here"
        return CpuAttention(self.cache, self.point.num_heads, self._specs, library)

    def reference(self) -> AttentionBackend:
        return TorchAttention(self.cache, self.point.num_heads, self._specs)

    @property
    def seen(self) -> int:
        return min(self.point.keys, self.point.window or self.point.keys)

    @property
    def bytes_read(self) -> int:
        shape = self.cache.shape
        return self.point.sequences * self.seen * 2 * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize

    @property
    def operations(self) -> float:
        """Operations of two products of each query with the keys that it sees; of new keys it sees half on average."""
        point = self.point
        keys = self.seen - (point.queries - 1) / 2
        return 4.0 * point.sequences * point.queries * keys * point.num_heads * point.head_dim

    def time(self, backend: AttentionBackend) -> float:
        """Seconds of one layer, without planning."""
        plan = backend.plan(self.batch)
        inputs = self.rows.clone()
        start = time.perf_counter()
        for layer in range(self.layers):
            plan.attend(layer, inputs[:, : self.point.num_heads], inputs[:, self.point.num_heads :])
        return (time.perf_counter() - start) / self.layers

    def time_sdpa(self) -> float:
        """Seconds of SDPA on layer 0; its keys may therefore be in a CPU cache."""
        return _seconds(self._sdpa)

    def error(self, backend: AttentionBackend) -> float:
        heads = self.point.num_heads
        inputs = self.rows.clone()
        actual = backend.plan(self.batch).attend(0, inputs[:, :heads], inputs[:, heads:]).double()
        self._dense = [self._keys(side) for side in (0, 1)]  # keys and values, new ones included
        expected = self._solve()
        return float(f"{((actual - expected).norm() / expected.norm()).item():.1e}")

    def _keys(self, side: int) -> Tensor:
        """Keys or values of layer 0 [sequences, kv_heads, keys, head_dim]."""
        slots = self.cache.locate(self.slots.reshape(-1))
        both = self.cache.read(0, slots).view(*self.slots.shape, 2, self.point.num_kv_heads, -1)
        return both[:, :, side].transpose(1, 2).contiguous()

    def _queries(self) -> Tensor:
        """Queries [sequences, kv_heads, group * queries, head_dim]."""
        point = self.point
        shape = (point.sequences, point.queries, point.num_kv_heads, -1, point.head_dim)
        rows = self.rows[:, : point.num_heads].reshape(shape).permute(0, 2, 3, 1, 4)
        return rows.reshape(point.sequences, point.num_kv_heads, -1, point.head_dim)

    def _sdpa(self) -> Tensor:
        mask = None if self.point.queries == 1 else self._visible()
        keys, values = self._dense
        return F.scaled_dot_product_attention(self._queries(), keys, values, attn_mask=mask)

    def _visible(self) -> Tensor:
        """The keys that each query sees, bool [group * queries, keys]."""
        point = self.point
        key = torch.arange(point.keys)
        query = torch.arange(point.keys - point.queries, point.keys)[:, None]
        visible = (key <= query) & (key > query - (point.window or point.keys))
        return visible.repeat(point.num_heads // point.num_kv_heads, 1)

    def _solve(self) -> Tensor:
        """The solution, float64 [rows, num_heads * head_dim]."""
        point = self.point
        keys, values = (side.double() for side in self._dense)
        scores = self._queries().double() @ keys.transpose(2, 3) * point.head_dim**-0.5
        weights = scores.masked_fill_(~self._visible(), -torch.inf).softmax(-1)
        mixed = torch.matmul(weights, values)
        shape = (point.sequences, point.num_kv_heads, -1, point.queries, point.head_dim)
        return mixed.view(shape).permute(0, 3, 1, 2, 4).reshape(len(self.rows), -1)

    def _batch(self) -> Forward:
        point = self.point
        new = np.arange(point.keys - point.queries, point.keys)
        runs = point.sequences * self.pages
        ends = np.full((point.sequences, self.pages), PAGE)
        ends[:, -1] = point.keys - (self.pages - 1) * PAGE
        rows = _int32(range(len(new) * point.sequences))
        return Forward(
            q_indptr=_int32(range(0, len(rows) + 1, point.queries)),
            q_embeds=rows,
            q_positions=_int32(np.tile(new, point.sequences)),
            q_slots=_int32(self.slots[:, new].reshape(-1)),
            kv_indptr=_int32(range(0, runs + 1, self.pages)),
            kv_pages=_int32(self.page_table.reshape(-1)),
            kv_begins=_int32(np.zeros(runs)),
            kv_ends=_int32(ends.reshape(-1)),
            dense=np.ones(point.sequences, bool),
            out_rows=rows,
            out_embeds=rows,
        )


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _int32(numbers: Sequence[int] | Array) -> Array:
    return np.asarray(numbers, np.int32)
