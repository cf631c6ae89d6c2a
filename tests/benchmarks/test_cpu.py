"""Benchmarks of models on a CPU run, in a form too short to mean anything."""

from __future__ import annotations

import importlib.util
import math
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

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

TINY = ["--model", "random-tiny", "--rounds", "1", "--pages", "128"]
PAGE = 16
LITTLE = ("--read-bytes", str(1 << 22), "--gemm-size", "256")


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


def test_busy_processes_are_refused_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["shared_cores", "--busy", "0,1"])
    assert "--busy is 0,1: give 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decode", "prefill", "shared_cores"])
def test_the_server_gets_its_options(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def note(*, tree: Path | None, **settings: object) -> AbstractAsyncContextManager[Server]:
        given.append(settings)
        return serving(tree=tree, **settings)

    monkeypatch.setattr("benchmarks.support.models.large_model.serving", note)
    options = {"quantization": "int4", "kernels": "torch", "max_isa": "avx2"}
    words = [word for option, value in options.items() for word in (f"--{option.replace('_', '-')}", value)]
    run(tmp_path, name, "--quick", "--rounds", "1", *(() if name == "shared_cores" else LITTLE), *words)
    assert {option: given[0][option] for option in options} == options


@pytest.mark.parametrize("option", ["--quantization", "--kernels", "--max-isa"])
def test_options_that_the_server_does_not_have_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["decode", option, "mmx"])
    assert f"{option} must be one of" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_no_two_prompts_begin_alike(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    generate = LargeModel.generate

    async def note(model: LargeModel, prompts: Prompts, tokens: int) -> Generated:
        seen.extend(tuple(prompt[:PAGE]) for prompt in prompts)
        return await generate(model, prompts, tokens)

    monkeypatch.setattr(LargeModel, "generate", note)
    run(tmp_path, name, "--quick", "--rounds", "2", *LITTLE)
    assert len(seen) >= 3
    assert len(set(seen)) == len(seen)


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
