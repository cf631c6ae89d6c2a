"""The products that compete, in the shapes of the model that starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..adapters.groups import Groups
from ..adapters.products.cpu_products import CpuProducts
from ..adapters.products.interface import LayerLoras, Lora, Products
from ..adapters.products.torch_products import TorchProducts
from ..assembly.plan import ServingPlan
from ..attention.choose import CANDIDATES, Requirements
from ..cpu_kernels.library import Library
from ..kv_cache.pages import KvCache
from ..loading.weight_sizes import largest_matrices
from ..ops.cpu_linear import LinearPacker
from ..ops.interface import Linear
from ..ops.torch_ops import TorchOps
from ..protocol import Forward
from ..quantization import cpu_linear, torch_linear
from ..quantization.formats import QuantizedWeight
from ..quantization.names import FORMATS, Format
from .batches import DecodeBatch
from .measure import Size

Weight = TypeVar("Weight")
Made = TypeVar("Made")

CPU = torch.device("cpu")

ROWS = (1, 4, 16, 64, 128)
"""Rows of a product: one of each band that is likely to differ from the others."""
WEIGHTS = 32 << 20
"""Numbers in all weights that take turns, so that they come from memory as a model's do."""
MOST_COPIES = 16
NUM_SLOTS, RANK = 4, 16  # of adapters
DECODES, CONTEXT, PROMPT = 8, 512, 512
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shapes:
    """What is tried: the largest matrices, [outs, ins], the form of their weights, and the heads."""

    matrices: tuple[tuple[int, int], ...]
    quantization: str
    heads: tuple[int, int, int]  # of queries, of keys, and their size

    @classmethod
    def of(cls, plan: ServingPlan) -> Shapes:
        kv = plan.kv_shape
        matrices = largest_matrices(plan.checkpoint)
        return cls(matrices, plan.config.quantization, (plan.num_heads, kv.num_kv_heads, kv.head_dim))


def sizes_of(plan: ServingPlan) -> Iterator[tuple[str, list[Size]]]:
    """Each kind of product that the model has, with the sizes to time. A kind's weights are made when it is its
    turn."""
    assert plan.library is not None
    shapes = Shapes.of(plan)
    if shapes.quantization == "none":
        yield "linear", _linear(plan.library, shapes)
    else:
        yield "quantized", _quantized(plan.library, shapes)
    if plan.config.max_adapters:
        yield "low_rank", _low_rank(plan.library, shapes)
    if plan.config.attention == "auto":
        yield "attention", _attention(plan)


def _linear(library: Library, shapes: Shapes) -> list[Size]:
    packer, plain = LinearPacker(library, DTYPE), TorchOps(CPU, DTYPE)
    weights = [torch.zeros(shape, dtype=DTYPE) for shape in shapes.matrices]
    return _products(shapes, weights, lambda each: packer.make([each], None), lambda each: plain.linear([each], None))


def _quantized(library: Library, shapes: Shapes) -> list[Size]:
    weights = [_zero_weight(FORMATS[shapes.quantization], *shape) for shape in shapes.matrices]
    return _products(
        shapes,
        weights,
        lambda each: cpu_linear.make_linear(library, each, None),
        lambda each: torch_linear.make_linear(each, None),
    )


def _zero_weight(format: Format, outs: int, ins: int) -> QuantizedWeight:
    values = torch.zeros(outs, ins // (2 if format.kind == "int4" else 1), dtype=torch.uint8)
    if format.kind != "int4":
        values = values.view(torch.int8 if format.kind == "int8" else torch.float8_e4m3fn)
    scales = torch.ones(outs, ins // format.group if format.group else 1, dtype=DTYPE)
    return QuantizedWeight(format, values, scales, torch.zeros_like(scales) if format.kind == "int4" else None)


def _products(
    shapes: Shapes, weights: Sequence[Weight], own: Callable[[Weight], Linear], torchs: Callable[[Weight], Linear]
) -> list[Size]:
    """One product with each weight in turn, of which there are enough copies to come from memory."""
    copies = min(MOST_COPIES, -(-WEIGHTS // sum(outs * ins for outs, ins in shapes.matrices)))
    layers = {way: [make(each) for _ in range(copies) for each in weights] for way, make in _named(own, torchs).items()}

    def size(rows: int) -> Size:
        inputs = [torch.ones(rows, ins, dtype=DTYPE) for _, ins in shapes.matrices] * copies
        return Size(_rows(rows), {way: partial(_multiply, each, inputs) for way, each in layers.items()})

    return [size(rows) for rows in ROWS]


def _multiply(layers: Sequence[Linear], inputs: Sequence[Tensor]) -> None:
    for layer, rows in zip(layers, inputs, strict=True):
        layer(rows)


def _named(own: Made, torchs: Made) -> dict[str, Made]:
    return {"own": own, "torch": torchs}


def _rows(rows: int) -> str:
    return f"{rows} rows" if rows > 1 else "1 row"


def _low_rank(library: Library, shapes: Shapes) -> list[Size]:
    outs, ins = shapes.matrices[0]
    lora = Lora(torch.zeros(RANK, ins), torch.zeros(RANK, outs))
    loras = LayerLoras()
    for slot in range(NUM_SLOTS):
        loras.put(slot, lora)
    loras.table = torch.tensor([[lora.down.data_ptr()], [lora.up.data_ptr()], [RANK]]).repeat(1, NUM_SLOTS)
    products: dict[str, Products] = _named(CpuProducts(library, DTYPE), TorchProducts())

    def size(rows: int) -> Size:
        inputs, results = torch.ones(rows, ins, dtype=DTYPE), torch.zeros(rows, outs, dtype=DTYPE)
        groups = Groups.of(np.arange(rows) % NUM_SLOTS, CPU)
        assert groups is not None
        return Size(
            _rows(rows), {way: partial(each.add, results, inputs, groups, loras) for way, each in products.items()}
        )

    return [size(rows) for rows in ROWS]


def _attention(plan: ServingPlan) -> list[Size]:
    """Attention of one layer without a window: of sequences that decode, and of a prompt."""
    spec, shape = replace(plan.model.attention[0], window=None), replace(plan.kv_shape, num_layers=1)
    num_pages = DECODES * (-(-CONTEXT // shape.page_size)) + -(-PROMPT // shape.page_size)
    cache = KvCache(shape, num_pages, CPU)
    needed = Requirements(shape, num_pages, CPU, plan.num_heads, [spec], plan.library)
    backends = {way: CANDIDATES[name].make(needed, cache) for way, name in _named("cpu", "torch").items()}

    def size(name: str, batch: Forward) -> Size:
        rows = len(batch.q_slots)
        query = torch.ones(rows, plan.num_heads, shape.head_dim, dtype=DTYPE)
        key_value = torch.ones(rows, 2 * shape.num_kv_heads, shape.head_dim, dtype=DTYPE)
        plans = {way: backend.plan(batch) for way, backend in backends.items()}
        return Size(name, {way: partial(each.attend, 0, query, key_value) for way, each in plans.items()})

    decodes, prompt = DecodeBatch(DECODES, CONTEXT, shape.page_size), DecodeBatch(1, PROMPT, shape.page_size)
    return [size("decode", decodes.forward(CONTEXT - 1)), size("prompt", prompt.prefill(0, PROMPT))]
