"""The memory for partial results suffices for whatever FlashInfer plans: it refuses to plan with less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pie_inference.attention.flashinfer.cache_views import FEW_ROWS
from pie_inference.attention.flashinfer.kernels import Shape, workspace_bytes
from pie_inference.kv_cache.pages import KvShape

PAGE = 16
H200, RTX_PRO_6000 = 132, 188  # processors


def tile_rows(average: int, dim: int) -> int:
    """FA2DetermineCtaTileQ of FlashInfer's utils.cuh."""
    if average > 64 and dim < 256:
        return 128
    return 64 if average > 16 else 16


def planned_bytes(
    shape: Shape, processors: int, queries: Sequence[int], pages: Sequence[int], *, graph: bool = False
) -> int:
    """What PrefillPlan of FlashInfer's scheduler.cuh takes for sequences with so many queries and pages."""
    dim, heads = shape.cache.head_dim, shape.num_heads
    most = 2 * processors // shape.cache.num_kv_heads
    rows = np.array(queries) * shape.group
    tile = tile_rows(int(rows.max() if graph else rows.sum() // len(rows)), dim)
    tiles, kept = -(-rows // tile), np.array(pages)

    def parts(chunk: int) -> int:
        return int((tiles * -(-kept // chunk)).sum())

    low, high = max(128 // PAGE, 1), int(kept.max())
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if parts(middle) > most else (low, middle)
    if not graph and low >= kept.max():
        return 0  # it is not split
    padded = max(most, -(-int(rows.sum()) // tile) + len(rows) - 1) if graph else parts(low)
    return heads * padded * tile * (dim + 1) * 4


def shape_of(heads: int, kv_heads: int, dim: int) -> Shape:
    return Shape(KvShape(1, kv_heads, dim, PAGE, torch.bfloat16), heads, torch.device("cpu"))


SHAPES = {
    "llama-8b": (32, 8, 128),
    "glm-4-9b": (32, 2, 128),
    "glm-4.5-air": (96, 8, 128),
    "qwen3-235b": (64, 4, 128),
    "falcon-7b": (71, 1, 64),
    "gemma-2b": (8, 1, 256),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("processors", [H200, RTX_PRO_6000])
def test_whatever_is_planned_has_room(name: str, processors: int) -> None:
    shape, rng = shape_of(*SHAPES[name]), np.random.default_rng(0)
    room = workspace_bytes(shape, processors, FEW_ROWS)
    one = [planned_bytes(shape, processors, [count], [pages]) for count in range(1, 300, 3) for pages in (9, 120, 5000)]
    batches = [rng.integers(1, 400, (2, rng.integers(1, 20))) for _ in range(300)]
    several = [planned_bytes(shape, processors, queries.tolist(), pages.tolist()) for queries, pages in batches]
    graphs = [planned_bytes(shape, processors, [1] * rows, [40] * rows, graph=True) for rows in range(1, FEW_ROWS + 1)]
    assert max(*one, *several, *graphs) <= room
    assert max(*one, *several, *graphs) > room / 3, "not much more than that"


def test_known_overflows_have_room() -> None:
    """Of servers with 256 MiB (vLLM's issue 25342), and what a prompt of 75 tokens behind 1,700 takes on an H200."""
    assert workspace_bytes(shape_of(*SHAPES["glm-4.5-air"]), RTX_PRO_6000, FEW_ROWS) > 283115520
    glm = shape_of(*SHAPES["glm-4-9b"])
    assert planned_bytes(glm, H200, [75], [110]) > 256 << 20
