"""Random adapters and rows that test implementations of `Products` on any device, with solutions in float64 on the CPU.

It needs only torch and this package, so that other machines can use it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pie_inference.adapters.groups import NO_SLOT, Groups
from pie_inference.adapters.products.interface import LayerLoras, Lora, Products

SLOTS = 7
TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest error relative to the largest number: numbers are rounded between the products, and at the end."""


@dataclass(frozen=True)
class AdapterProblem:
    """`slots` of rows, -1: none; `ranks` by slot, of which those left out do not change the layer. `spare`: empty rows
    and tiles behind those of the batch, as a recorded launch has them."""

    slots: Sequence[int]
    ranks: Mapping[int, int]
    ins: int = 64
    outs: int = 96
    spare: bool = False


PROBLEMS: Mapping[str, AdapterProblem] = {
    "one row": AdapterProblem([3], {3: 4}),
    "one adapter": AdapterProblem([0] * 16, {0: 16}),
    "none and several, mixed": AdapterProblem([2, -1, 0, 5, -1, 2, 2, 0, 5, -1], {0: 8, 2: 3, 5: 16}),
    "more rows than a tile": AdapterProblem([1] * 21 + [4] * 18 + [1] * 3, {1: 8, 4: 5}),
    "an adapter that does not change the layer": AdapterProblem([0, 1, 2, 1], {0: 8, 2: 8}),
    "many features": AdapterProblem([0, 1, 1, 0, 6], {0: 130, 1: 33, 6: 1}),
    "odd sizes": AdapterProblem([0, -1, 1, 1, 1], {0: 7, 1: 2}, ins=75, outs=201),
    "many inputs and outputs": AdapterProblem([0, 1, 0], {0: 16, 1: 48}, ins=1337, outs=530),
    "many rows": AdapterProblem([row % 5 - 1 for row in range(600)], {0: 8, 1: 4, 3: 2}),
    "room to spare": AdapterProblem([4, -1, 2, 2], {2: 8, 4: 4}, spare=True),
}


def assert_passes(name: str, products: Products, dtype: torch.dtype, device: torch.device) -> None:
    error = relative_error(name, products, dtype, device)
    assert error <= TOLERANCE[dtype], f"{name}: {error}"


def relative_error(name: str, products: Products, dtype: torch.dtype, device: torch.device) -> float:
    """The largest error relative to the largest number. Rows without an adapter must stay as they are."""
    problem = PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(kind)

    kind = torch.float32 if products_in_float32(device) else dtype
    rows, before = random(len(problem.slots), problem.ins), random(len(problem.slots), problem.outs)
    matrices = {
        slot: (random(rank, problem.ins, kind=kind) * problem.ins**-0.5, random(rank, problem.outs, kind=kind))
        for slot, rank in problem.ranks.items()
    }
    expected = before.double()
    for row, slot in enumerate(problem.slots):
        if slot in matrices:
            down, up = (matrix.double() for matrix in matrices[slot])
            expected[row] += down @ rows[row].double() @ up
    loras = make_loras({slot: Lora(down.to(device), up.to(device)) for slot, (down, up) in matrices.items()}, device)
    groups = Groups.of(np.array(problem.slots), device)
    assert groups is not None
    if problem.spare:
        room = Groups.room(16, SLOTS, device)
        room.fill(groups)
        groups = room
    results = before.to(device)
    products.add(results, rows.to(device), groups, loras)
    error = float((results.cpu().double() - expected).abs().max() / expected.abs().max())
    without = torch.tensor([slot == NO_SLOT for slot in problem.slots])
    assert torch.equal(results.cpu()[without], before[without]), "rows without an adapter stay as they are"
    return error


def products_in_float32(device: torch.device) -> bool:
    """Whether adapters are in float32, whatever the rows are in."""
    return device.type == "cpu"


def make_loras(adapters: Mapping[int, Lora], device: torch.device) -> LayerLoras:
    loras = LayerLoras()
    table = torch.zeros(3, SLOTS, dtype=torch.int64)
    for slot, lora in adapters.items():
        loras.put(slot, lora)
        table[:, slot] = torch.tensor([lora.down.data_ptr(), lora.up.data_ptr(), len(lora.down)])
    loras.table = table.to(device)
    return loras
