"""The benchmark for GPUs runs from end to end, on a tiny model and a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import gpu_bench
from benchmarks.gpu.results import Row, read, read_problems, row, tell, tell_problem
from benchmarks.gpu.shapes import SHAPES, write_checkpoint
from pie_inference.testing.checkpoints import tensor_shapes


def test_it_runs_from_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    file = tmp_path / "results" / "gpu.json"
    assert gpu_bench.main(["--device", "cpu", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    ways = {(row["way"], row["concurrent"]) for row in report["rows"]}
    assert {(way, n) for way in ("closed loop", "closed loop, ahead", "pie", "transformers") for n in (1, 3)} <= ways
    assert all(row["tpot_ms"] > 0 and row["bound_ms"] > 0 for row in report["rows"])
    assert not [row for row in report["rows"] if row["way"].startswith("closed loop") and row["note"]]
    assert all("varlen" in problem for problem in report["left_out"])  # not in every version, and needs a GPU


def test_a_part_that_fails_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    assert gpu_bench.main(["--device", "cpu", "--json", str(file), "--only", "worker", "--concurrent", "400"]) == 1
    [problem] = json.loads(file.read_text())["left_out"]
    assert problem.startswith("tiny, worker: ended with 1")
    assert problem.splitlines()[-1] in capsys.readouterr().err


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    assert gpu_bench.main(["--device", "cpu", "--json", str(file), "--budget", "1"]) == 1
    assert json.loads(file.read_text())["left_out"] == [f"tiny, {part}: no time left" for part in gpu_bench.PARTS]


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_bench.main(["--only", "gpu"])
    assert "--only gpu: there are worker, system, transformers, llama-1b" in capsys.readouterr().err


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
    rows = [row("m", "w", 8, 0.004), Row("m", "v", 1, 1.0, 2.0, "a note")]
    tell(rows)
    tell_problem("two\nlines")
    output = "noise\n" + capsys.readouterr().out
    assert read(output) == rows
    assert (rows[0].tpot_ms, rows[0].tokens_per_second) == (4.0, 2000.0)
    assert read_problems(output) == ["two lines"]
