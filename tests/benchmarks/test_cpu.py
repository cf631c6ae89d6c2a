"""Benchmarks of models on a CPU run, in a form too short to mean anything."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from benchmarks.cpu import attention, cpu_kernels, peers
from benchmarks.support.costs import llama_costs
from pie_inference.cpu_kernels.library import find_library
from pie_inference.options import default_cache_dir
from pie_inference.testing.checkpoints import make_checkpoint

from .running import run

TINY = ["--model", "random-tiny", "--rounds", "1", "--pages", "128"]
LITTLE = ("--read-bytes", str(1 << 22), "--gemm-size", "256")


def test_machine(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "machine", *LITTLE, "--threads", "1")
    assert row["threads"] == 1
    assert row["read_gb_s"] > 0
    assert row["gemm_gflop_s"] > 0


def test_decode(tmp_path: Path) -> None:
    options = ["--concurrent", "1,2", "--prompt", "32", "--tokens", "6", "--single-tokens", "6"]
    rows = run(tmp_path, "decode", *TINY, *LITTLE, *options)
    measures = ("token, end to end", "wave, in the worker")
    assert [(row["concurrent"], row["measure"]) for row in rows] == [(n, each) for n in (1, 2) for each in measures]
    assert all(row["of_bound"] > 0 for row in rows)  # rounded: so few tokens may come to the client at one moment


def test_prefill(tmp_path: Path) -> None:
    rows = run(tmp_path, "prefill", *TINY, *LITTLE, "--prompt", "100")
    assert [row["measure"] for row in rows] == ["end to end", "in the worker"]
    assert all(row["of_gemm"] == pytest.approx(row["gflop_s"] / row["gemm_gflop_s"], abs=0.01) for row in rows)


def test_peers_run_the_same_model_or_are_left_out(tmp_path: Path) -> None:
    rows = run(tmp_path, "peers", *TINY, *["--concurrent", "2", "--prompt", "32", "--tokens", "6"])
    transformers = [row for row in rows if row["peer"] == "transformers"]
    assert [row["measure"] for row in transformers] == ["decode", "prompts of 32"]
    assert "first token the same in 2 of 2" in transformers[0]["note"]
    others = [row for row in rows if row["peer"] == "llama.cpp"]
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        assert all(row["ratio"] > 0 for row in others)
    else:
        assert [row["ratio"] for row in others] == [None]
        assert "not installed" in others[0]["note"]


def test_peers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no peer vllm; there are transformers, llama\.cpp"):
        replace(peers.FULL, peers=("vllm",))


def test_loading(tmp_path: Path) -> None:
    options = [
        "--layers",
        "1",
        "--vocab-size",
        "272",
        "--rounds",
        "1",
        "--quantizations",
        "int8",
        "--hidden-size",
        "128",
    ]
    (row,) = run(tmp_path, "loading", *options)
    assert min(row["discard_s"], row["read_s"], row["load_s"]) > 0


def test_cpu_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "FULL", replace(cpu_kernels.FULL, shapes=((64, 96),)))
    options = ["--rows", "1,9", "--copies", "2", "--repeats", "2", "--threads", "1"]
    rows = run(tmp_path, "cpu_kernels", *LITTLE[:2], *options)
    assert [row["rows"] for row in rows[:: len(rows) // 2]] == [1, 9]
    assert all(row["of_bound"] > 0 for row in rows)


def test_adapters(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "adapters", "--tiny")
    assert (row["model"], row["adapters"]) == ("random-tiny", 2)
    assert min(row["ms"], row["times"], row["one_by_one"]) > 0


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_library("auto", default_cache_dir(), torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    one = attention.Point
    points = (one(2, 1, 50), one(1, 20, 40, 4, 2, 16, "float32"), one(1, 9, 70, window=32))
    monkeypatch.setattr(attention, "FULL", replace(attention.FULL, points=points))
    rows = run(tmp_path, "attention", "--rounds", "1", "--layer-bytes", str(1 << 20))
    assert [row["error"] < (1e-5 if row["dtype"] == "float32" else 1e-2) for row in rows] == [True] * 3


def test_costs_count_every_weight_once(tmp_path: Path) -> None:
    costs = llama_costs(make_checkpoint(tmp_path, tie_embeddings=True))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    assert costs.layer_weights + costs.head_weights == sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    one, two = (costs.step_bytes(sequences, 10) for sequences in (1, 2))
    assert two - one == 10 * 2 * 2 * 2 * 16 * 2  # tokens, layers, keys and values, heads, their size, bytes
