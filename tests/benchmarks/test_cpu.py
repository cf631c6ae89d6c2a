"""Benchmarks of models on a CPU run, in a form too short to mean anything."""

from __future__ import annotations

import importlib.util
import math
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks.cpu import attention, cpu_kernels
from benchmarks.support.costs import llama_costs
from benchmarks.support.generation import Generated, Prompts
from benchmarks.support.limited import limited_process
from benchmarks.support.models.gguf_file import gguf_of
from benchmarks.support.models.large_model import LargeModel
from benchmarks.support.server import Server, serving
from pie_inference.cpu_kernels.library import find_library
from pie_inference.loading.checkpoint import Checkpoint
from pie_inference.loading.weight_sizes import tensor_bytes
from pie_inference.options import default_cache_dir
from testing.checkpoints import make_checkpoint
from tests.helpers.kernels import needs_kernels

from .running import run

PAGE = 16
LITTLE = ("--read-bytes", str(1 << 22), "--gemm-size", "256")
OPTIONS = {"quantization": "int4", "kernels": "torch", "max_isa": "avx2"}


@dataclass
class Watched:
    """What the server of a benchmark was started with, and the prompts that it got."""

    settings: dict[str, object] = field(default_factory=dict)
    prompts: list[tuple[int, ...]] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen, generate = Watched(), LargeModel.generate

    def serve(**settings: object) -> AbstractAsyncContextManager[Server]:
        seen.settings = settings
        return serving(**settings)  # type: ignore[arg-type]

    async def note(model: LargeModel, prompts: Prompts, tokens: int) -> Generated:
        seen.prompts += map(tuple, prompts)
        return await generate(model, prompts, tokens)

    monkeypatch.setattr("benchmarks.support.models.large_model.serving", serve)
    monkeypatch.setattr(LargeModel, "generate", note)
    return seen


def rows_of(folder: Path, name: str, watched: Watched, *words: str) -> list[dict[str, Any]]:
    """The rows of a benchmark, whose server has had its options, and prompts that begin differently: of such that
    begin alike it computes the beginning once."""
    options = [word for option, value in OPTIONS.items() for word in (f"--{option.replace('_', '-')}", value)]
    rows = run(folder, name, "--model", "random-tiny", "--pages", "128", "--rounds", "2", *options, *words)
    assert watched.settings.items() >= OPTIONS.items()
    begins = {prompt[:PAGE] for prompt in watched.prompts}
    assert len(begins) == len(watched.prompts) >= 3
    return rows


def test_decode(tmp_path: Path, watched: Watched) -> None:
    words = ["--concurrent", "1,2", "--prompt", "32", "--tokens", "6", "--single-tokens", "6"]
    rows = rows_of(tmp_path, "decode", watched, *LITTLE, *words)
    measures = ("token, end to end", "wave, in the worker")
    assert [(row["concurrent"], row["measure"]) for row in rows] == [(n, each) for n in (1, 2) for each in measures]
    for row in rows[2:]:  # of one round: the ratio of its medians
        rounded = 0.001 * (1 + row["of_bound"] + row["ms"])  # each to three digits
        assert row["of_bound"] * row["ms"] == pytest.approx(row["bound_ms"], abs=rounded)
        assert row["ms"] > 0


def test_prefill(tmp_path: Path, watched: Watched) -> None:
    rows = rows_of(tmp_path, "prefill", watched, *LITTLE, "--prompt", "100")
    assert [row["measure"] for row in rows] == ["end to end", "in the worker"]
    for row in rows:
        rounded = 0.1 * (1 + row["of_gemm"]) + 0.001 * row["gemm_gflop_s"]  # rates to one digit, their ratio to three
        assert row["of_gemm"] * row["gemm_gflop_s"] == pytest.approx(row["gflop_s"], abs=rounded)


@pytest.mark.parametrize("option", ["--quantization", "--kernels", "--max-isa"])
def test_options_that_the_server_does_not_have_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["decode", option, "mmx"])
    assert f"{option} must be one of" in capsys.readouterr().err


@pytest.mark.skipif(not importlib.util.find_spec("gguf"), reason="the package gguf is not installed")
def test_a_gguf_file_has_every_matrix_in_16_bits(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", intermediate_size=128, tie_embeddings=True)
    tensors = importlib.import_module("gguf").GGUFReader(gguf_of(checkpoint)).tensors
    matrices = [one for one in tensors if len(one.shape) == 2]
    assert len(matrices) == 1 + 2 * 7
    assert all(one.n_bytes == 2 * one.n_elements for one in matrices)


@needs_kernels
def test_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "WORST", math.inf)
    forms = ["bfloat16", "float32", "int8", "int4-32"]
    small = replace(cpu_kernels.FULL, shapes=((64, 96),), copies=2, repeats=2, threads=1, read_bytes=1 << 22)
    rows = cpu_kernels._run(replace(small, forms=tuple(forms), rows=(1, 9)))
    assert [(row.form, row.rows) for row in rows] == [(form, count) for form in forms for count in (1, 9)]
    assert all(row.of_bound > 0 and row.ratio is not None and row.ratio > 0 for row in rows)


def test_forms_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no form int2"):
        replace(cpu_kernels.FULL, forms=("int2",))


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_library("auto", default_cache_dir(), torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    one = attention.Point
    points = (one(2, 1, 50), one(1, 20, 40, 4, 2, 16, "float32"), one(1, 9, 70, window=32))
    monkeypatch.setattr(attention, "FULL", replace(attention.FULL, points=points))
    rows = run(tmp_path, "attention", "--rounds", "1", "--layer-bytes", str(1 << 20))
    assert [row["error"] < (1e-5 if row["dtype"] == "float32" else 1e-2) for row in rows] == [True] * 3


def test_costs_count_the_keys_and_values_of_each_sequence(tmp_path: Path) -> None:
    costs = llama_costs(make_checkpoint(tmp_path, tie_embeddings=True), "none")
    one, two = (costs.step_bytes(sequences, 10) for sequences in (1, 2))
    assert two - one == 10 * 2 * 2 * 2 * 16 * 2  # tokens, layers, keys and values, heads, their size, bytes


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_costs_count_quantized_layers_and_an_exact_head(quantization: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, hidden_size=128, intermediate_size=256)
    tensors = list(Checkpoint(folder).tensors())
    read = [one for one in tensors if len(one.shape) == 2 and "embed_tokens" not in one.name]
    assert llama_costs(folder, quantization).step_bytes(0, 0) == sum(tensor_bytes(one, 2, quantization) for one in read)


def test_a_limited_process_keeps_torch_to_its_limit() -> None:
    with limited_process("avx2") as pool:
        assert pool.submit(torch.backends.cpu.get_cpu_capability).result() in ("AVX2", "DEFAULT")
        assert pool.submit(os.getenv, "ONEDNN_MAX_CPU_ISA").result() == "AVX2"
