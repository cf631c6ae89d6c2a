"""Kernels that multiply rows with their adapters, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pie_inference.adapters.groups import FEW_ROWS, NO_SLOT, TILE_OF_FEW, Groups
from pie_inference.adapters.products.cpu_products import CpuProducts
from pie_inference.adapters.products.interface import Lora
from pie_inference.adapters.products.torch_products import TorchProducts
from pie_inference.assembly.kernels import choose_products
from pie_inference.cpu_kernels.library import Library
from testing.adapters.oracle import PROBLEMS, TOLERANCE, assert_passes, make_loras
from testing.triton_interpreter import Interpreter

CPU = torch.device("cpu")
WITHOUT_ROOM = [name for name, problem in PROBLEMS.items() if not problem.spare]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", WITHOUT_ROOM)
def test_torch(name: str, dtype: torch.dtype) -> None:
    assert_passes(name, TorchProducts(), dtype, CPU)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_cpu_kernel(name: str, dtype: torch.dtype, library: Library) -> None:
    assert_passes(name, CpuProducts(library, dtype), dtype, CPU)


def check_triton(name: str, kind: str) -> None:
    from pie_inference.adapters.products.triton_products import TritonProducts

    assert_passes(name, TritonProducts(torch.float32), getattr(torch, kind), CPU)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_triton(interpreter: Interpreter, name: str, dtype: str) -> None:
    interpreter.call(check_triton, name, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_do_not_depend_on_each_other(dtype: torch.dtype, library: Library) -> None:
    """What else is in a batch must not change a bit of a row."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 300, generator=random).to(dtype)
    adapters = {
        slot: Lora(torch.randn(rank, 300, generator=random), torch.randn(rank, 130, generator=random))
        for slot, rank in enumerate((5, 16, 33))
    }
    loras, slots = make_loras(adapters, CPU), np.arange(40) % 4 - 1

    def run(chosen: slice) -> torch.Tensor:
        results, groups = torch.zeros(40, 130, dtype=dtype)[chosen], Groups.of(slots[chosen], CPU)
        assert groups is not None
        CpuProducts(library, dtype).add(results, rows[chosen], groups, loras)
        return results

    together = run(slice(None))
    for some in (slice(1, 2), slice(0, 9), slice(7, 33)):
        assert torch.equal(run(some), together[some])


def test_views_of_wider_rows(library: Library) -> None:
    random = torch.Generator().manual_seed(0)
    wide, results = torch.randn(6, 90, generator=random), torch.zeros(6, 70)
    loras = make_loras({2: Lora(torch.randn(4, 40, generator=random), torch.randn(4, 50, generator=random))}, CPU)
    groups = Groups.of(np.array([2, NO_SLOT, 2, 2, NO_SLOT, 2]), CPU)
    assert groups is not None
    plain = torch.zeros(6, 50)
    TorchProducts().add(plain, wide[:, 30:70].contiguous(), groups, loras)
    CpuProducts(library, torch.float32).add(results[:, 15:65], wide[:, 30:70], groups, loras)
    torch.testing.assert_close(results[:, 15:65], plain)
    assert not results[:, :15].any()
    assert not results[:, 65:].any()


@pytest.mark.parametrize("seed", range(10))
def test_groups_cover_each_row_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots = random.integers(NO_SLOT, 6, int(random.integers(1, 2 * FEW_ROWS)))
    groups = Groups.of(slots, CPU)
    assert groups is not None
    tiles = groups.tiles.tolist()
    covered = [row for _, begin, end in tiles for row in groups.rows[begin:end].tolist()]
    assert sorted(covered) == np.flatnonzero(slots != NO_SLOT).tolist()
    assert all(slots[row] == slot for slot, begin, end in tiles for row in groups.rows[begin:end].tolist())
    assert all(0 < end - begin <= groups.tile_rows for _, begin, end in tiles)
    if len(slots) <= FEW_ROWS:
        room = Groups.room(len(slots), 6, CPU)
        room.fill(groups)
        assert room.tile_rows == groups.tile_rows == TILE_OF_FEW
        assert room.tiles[: len(tiles)].tolist() == tiles
        assert not room.tiles[len(tiles) :].any()


def test_nothing_runs_for_rows_without_an_adapter() -> None:
    assert Groups.of(np.full(5, NO_SLOT), CPU) is None


def test_the_choice(library: Library) -> None:
    assert isinstance(choose_products("auto", CPU, torch.float32, library), CpuProducts)
    assert isinstance(choose_products("torch", CPU, torch.float32, None), TorchProducts)
    assert isinstance(choose_products("auto", CPU, torch.float32, None), TorchProducts)
