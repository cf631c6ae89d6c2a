"""The benchmark for GPUs runs from end to end, on a tiny model and a CPU."""

from __future__ import annotations

import asyncio
import errno
import math
import shutil
import subprocess
import sys
import tempfile
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu import gpu_bench
from benchmarks.gpu.plan import PARTS
from benchmarks.gpu.results import Measured, read, row, tell
from benchmarks.gpu.shapes import SHAPES, write_checkpoint
from testing.checkpoints import tensor_shapes

from .running import run

OURS = ("closed loop", "closed loop, ahead", "closed loop, top-p", "pie")


@pytest.mark.parametrize(
    ("parts", "expected"), [("worker,system", OURS), ("worker,system,transformers", (*OURS, "transformers"))]
)
def test_it_runs_from_end_to_end(
    parts: str, expected: tuple[str, ...], tmp_path: Path, guest_cache: Path, kernel_cache: Path
) -> None:
    pytest.importorskip("psutil")
    rows = run(tmp_path, "gpu_bench", "--tiny", "--parts", parts)
    measured = [row for row in rows if row["tpot_ms"] is not None]
    ways = {(row["way"], row["concurrent"]) for row in measured}
    assert {(way, n) for way in expected for n in (1, 3)} <= ways
    assert all(row["tpot_ms"] > 0 and row["bound_ms"] > 0 and row["read_gb_s"] > 0 for row in measured)
    notes = [row["note"] for row in measured if row["way"].startswith("closed loop")]
    assert all("Attention, " in note and "tokens differ" not in note for note in notes)
    assert len(measured) == len(rows) == 2 * len(expected)


def test_a_part_that_fails_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = asyncio.run(gpu_bench.run(replace(gpu_bench.TINY, parts=("worker",), concurrent=(400,))))
    assert (row.way, row.tpot_ms) == ("worker", None)
    assert row.note.startswith("ended with 1")
    assert row.note.splitlines()[-1] in capsys.readouterr().err
    assert not gpu_bench.passed([row])


def test_a_time_below_the_bound_is_no_measurement() -> None:
    found = Measured("tiny", "transformers", 1, tpot_ms=1e-3, tokens_per_second=1e6)
    above, below = (gpu_bench._row(found, gpu_bench.TINY, bandwidth) for bandwidth in (1e12, 1e6))
    assert (above.tpot_ms, above.note) == (1e-3, "")
    assert (below.tpot_ms, below.tokens_per_second, below.share_of_bound) == (None, None, None)
    assert "memory cannot be read" in below.note
    none = gpu_bench._row(replace(found, tpot_ms=None, note="it fails"), gpu_bench.TINY, bandwidth=1e12)
    assert (none.tpot_ms, none.share_of_bound, none.note) == (None, None, "it fails")


def test_a_machine_with_a_gpu_needs_few_packages() -> None:
    """docs/gpu.md names them."""
    words = "import sys, benchmarks.__main__, benchmarks.gpu.gpu_bench, benchmarks.gpu.transformers_part as part\n"
    words += f"print({set(gpu_bench.SYSTEM_PACKAGES) - {'zmq', 'msgspec'}} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", words], text=True) == "set()\n"


def test_without_time_nothing_is_begun() -> None:
    rows = asyncio.run(gpu_bench.run(replace(gpu_bench.TINY, budget=1.0)))
    assert [(row.way, row.note) for row in rows] == [(part, "no time left") for part in PARTS]


def test_a_checkpoint_that_fits_nowhere_leaves_its_model_out(monkeypatch: pytest.MonkeyPatch) -> None:
    places, full = [], OSError(errno.ENOSPC, "No space left on device")

    def write(_: object, folder: Path) -> None:
        places.append(str(folder.parent))
        raise full

    monkeypatch.setattr(gpu_bench, "write_checkpoint", write)
    for free in (1 << 40, 64 << 20):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        [row] = asyncio.run(gpu_bench.run(gpu_bench.TINY))
        assert (row.model, row.way, row.tpot_ms, row.note) == ("tiny", "checkpoint", None, str(full))
    assert places == [gpu_bench.MEMORY, tempfile.gettempdir()]


def test_a_checkpoint_has_what_its_shape_says(tmp_path: Path) -> None:
    tensors = load_file(write_checkpoint(SHAPES["tiny"], tmp_path) / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == tensor_shapes(SHAPES["tiny"].config())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert bool((tensors["model.norm.weight"] == 1).all())
    assert 0.015 < float(tensors["model.layers.0.mlp.up_proj.weight"].float().std()) < 0.025


def test_a_step_reads_all_weights_but_the_input_embeddings() -> None:
    """Llama 3.1 8B: 8.03 billion parameters, 128 KiB of keys and values for each token."""
    shape = SHAPES["llama-8b"]
    total = sum(math.prod(one) for one in tensor_shapes(shape.config()).values())
    assert round(total / 1e9, 2) == 8.03
    assert shape.step_bytes(0, 0) == 2 * (total - 128256 * 4096)
    assert shape.step_bytes(2, 10) - shape.step_bytes(0, 0) == 2 * 10 * 128 * 1024
    assert round(SHAPES["llama-1b"].step_bytes(0, 0) / 2e9, 2) == 1.24  # tied: they are the head


def test_what_a_part_tells_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row("m", "w", 8, 0.004),
        Measured("m", "v", 1, 1.0, 2.0, "a note"),
        Measured("m", "v", 2, None, None, "a\nb"),
    ]
    tell(rows)
    output = "noise\n" + capsys.readouterr().out
    assert read(output) == rows
    assert (rows[0].tpot_ms, rows[0].tokens_per_second) == (4.0, 2000.0)
