"""`pie models MODEL` and `pie bench-model`: what is told of checkpoints."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pie_control.cli import inspection
from pie_control.cli.main import main
from pie_inference.amounts import amount
from pie_inference.config import WorkerConfig
from pie_inference.errors import CheckpointError
from pie_inference.inspection import __main__ as inspecting
from pie_inference.inspection import measure as measuring
from pie_inference.inspection import rates
from pie_inference.inspection.checkup import check_up
from pie_inference.inspection.costs import model_costs
from pie_inference.loading.checkpoint import Checkpoint
from pie_inference.loading.quantized.choose import find_scheme
from pie_inference.loading.weight_sizes import weight_bytes
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "llama", dtype=torch.bfloat16)


@pytest.fixture
def inspected_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are inspected in this process, which has imported torch."""

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = inspecting.main(command[3:])
        return subprocess.CompletedProcess(command, status, said.getvalue())

    monkeypatch.setattr(inspection, "subprocess", SimpleNamespace(run=run, DEVNULL=None, PIPE=None))


def config(folder: Path, **changes: Any) -> WorkerConfig:
    return WorkerConfig(folder, "model", device="cpu", kernels="torch", **changes)


def test_a_checkup_foresees_the_worker(folder: Path) -> None:
    found = check_up(config(folder, dtype="bfloat16", pages=32))
    description = Worker(config(folder, dtype="bfloat16", pages=32)).describe()[0]
    assert found.shape is not None
    assert found.choice is not None
    assert (found.problem, found.shape.family, found.shape.max_context) == (None, "llama", description.max_context)
    assert found.shape.file_bytes == 2 * found.shape.parameters
    choice = found.choice
    assert (choice.dtype, choice.page_bytes, choice.num_pages) == ("bfloat16", description.page_bytes, 32)
    assert (choice.weight_bytes, choice.cached_tokens) == (description.weight_bytes, 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": "int4"}, "--quantization int4: .* 96 .* choose int8 or int4-32 or fp8"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"dtype": "float64", "quantization": "int8"}, "--dtype float64 .* does not go with --quantization"),
        ({"dtype": "float64", "attention": "cpu"}, "--attention cpu: there are no compiled kernels here"),
    ],
)
def test_options_that_do_not_fit_are_problems(changes: dict[str, Any], message: str, folder: Path) -> None:
    if "device" in changes and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(Exception, match=message):
        raise CheckpointError(check_up(WorkerConfig(folder, "model", **changes)).problem)


def test_a_model_of_another_kind_is_a_problem(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GizmoForCausalLM"]}')
    found = check_up(config(tmp_path))
    assert "GizmoForCausalLM is not supported" in str(found.problem)
    assert (found.shape, found.choice) == (None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_costs_of_a_dense_model(tmp_path: Path, dtype: torch.dtype) -> None:
    make_checkpoint(tmp_path, dtype=torch.bfloat16, tie_embeddings=True)
    checkpoint = Checkpoint(tmp_path)
    costs = model_costs(checkpoint, {}, dtype, "none")
    matrices = sum(tensor.numel for tensor in checkpoint.tensors() if len(tensor.shape) == 2)
    assert costs.read_bytes(1) == costs.read_bytes(9) == 2 * matrices  # the table serves as the head
    assert costs.operations(5, 2) == 2 * (5 * (matrices - 272 * 64) + 2 * 272 * 64)
    assert costs.head_bytes == 2 * 272 * 64


def test_costs_of_experts(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4),
        "lm_head.weight": torch.zeros(10, 4),
        "model.layers.0.mlp.gate.weight": torch.zeros(8, 4),
        **{f"model.layers.0.mlp.experts.{n}.up_proj.weight": torch.zeros(16, 4) for n in range(8)},
    }
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"num_experts": 8, "num_experts_per_tok": 2}
    costs = model_costs(Checkpoint(tmp_path), config, torch.float32, "none")
    assert costs.operations(1, 0) == 2 * (32 + 2 * 64)
    assert costs.read_bytes(1) == 4 * (32 + 40 + 2 * 64)
    assert costs.read_bytes(1000) == pytest.approx(4 * (32 + 40 + 8 * 64))
    head, experts = 40 + 4 * 10, 512 + 4 * 128
    assert weight_bytes(Checkpoint(tmp_path).tensors(), torch.float32, "int8") == 4 * (40 + 32) + head + experts


def test_costs_of_quantized_weights(tmp_path: Path) -> None:
    """Each weight counts, in the bytes that it has in the file; of what is left out nothing does."""
    packed = torch.zeros(4, 16, dtype=torch.int32)  # eight of 4 bits in a number
    layer = "model.layers.0.mlp.up_proj"
    tensors = {
        f"{layer}.qweight": packed,
        f"{layer}.qzeros": torch.zeros(1, 2, dtype=torch.int32),
        f"{layer}.scales": torch.zeros(1, 16, dtype=torch.float16),
        f"{layer}.g_idx": torch.zeros(32, dtype=torch.int32),
        "visual.patch.weight": torch.zeros(64, 64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    checkpoint = Checkpoint(tmp_path, find_scheme(tmp_path, quantized), ("visual.",))
    costs = model_costs(checkpoint, {}, torch.bfloat16, "none")
    assert costs.layer_numbers == 32 * 16
    assert costs.layer_bytes == pytest.approx(4 * 64 + 2 * 4 + 2 * 16, rel=0.1)


def test_measuring_runs_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure_rates", lambda *_, **__: rates.Rates(1e9, 1e9))
    found = measuring.measure(config(folder, dtype="float32", pages=40), sequences=(1, 3, 32), budget=0.001)
    assert [(speed.work, speed.sequences) for speed in found.speeds] == [
        ("prefill", 1),
        ("decode", 1),
        ("decode", 3),
        ("decode", 4),  # as many as the 40 pages hold
    ]
    for speed in found.speeds:
        assert speed.share == pytest.approx(speed.tokens_per_second / speed.bound_tokens_per_second)
    assert found.peak_bytes > found.weight_bytes


@pytest.mark.usefixtures("inspected_here")
def test_pie_models_tells_of_checkpoints(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GizmoForCausalLM"]}')
    assert main(["models", str(folder), str(tmp_path), "--dtype", "bfloat16", "--device", "cpu"]) == 1
    good, bad = capsys.readouterr().out.split("\n\n")
    assert "family      llama (LlamaForCausalLM)" in good
    assert "served as   bfloat16 on cpu" in good
    assert "numbers     bfloat16: --dtype bfloat16" in good
    assert "4.1 kB a page of 16 tokens, 256 kB for 1000 tokens" in good
    assert f"cannot be served here: {tmp_path}/config.json: architecture GizmoForCausalLM is not supported" in bad
    assert main(["models", str(tmp_path / "absent")]) == 2
    assert "no model at" in capsys.readouterr().err


@pytest.mark.usefixtures("inspected_here")
def test_what_is_no_model_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, adapter, other = tmp_path / "model", tmp_path / "poet", tmp_path / "other"
    for folder, name in ((model, "config.json"), (adapter, "adapter_config.json"), (other, "m-Q4_K_M.gguf")):
        folder.mkdir()
        (folder / name).write_text("{}")
    assert main(["models", str(model / "config.json")]) == 2
    assert f"that is a file of one; give its folder, {model}\n" in capsys.readouterr().err
    assert main(["models", str(tmp_path)]) == 2
    assert "Qwen3-0.6B, or demo or demo-reasoner\n" in capsys.readouterr().err
    assert main(["models", str(adapter)]) == 2
    assert f"that is an adapter; give it with its model, as in --model MODEL --adapter poet={adapter}" in (
        capsys.readouterr().err
    )
    assert main(["models", str(other), str(other / "m-Q4_K_M.gguf")]) == 1
    told = "GGUF is not supported; take the original checkpoint in safetensors"
    assert [told in each for each in capsys.readouterr().out.split("\n\n")] == [True, True]


@pytest.mark.usefixtures("inspected_here")
def test_pie_bench_model_measures(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-model", str(folder), "--quick", "--json", "--device", "cpu", "--quantization", "int8"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert (found["quantization"], len(found["speeds"])) == ("int8", 4)
    assert found["read_bytes_per_second"] > 1e9
    assert "decoding 8 at a time" in err


@pytest.mark.usefixtures("inspected_here")
def test_pie_bench_model_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["bench-model", str(tmp_path)]) == 2
    assert "architectures must be a list of names, not None" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "sizes"), [(1e-4, [256, 2048]), (1.0, [256, 256])], ids=["fast", "slow"])
def test_slow_products_are_measured_by_small_ones(
    seconds: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied: list[int] = []

    def timed(action: Callable[[], object], *_: object) -> float:
        action()
        return seconds

    monkeypatch.setattr(rates, "best_seconds", timed)
    monkeypatch.setattr(torch, "mm", lambda left, _: multiplied.append(len(left)))
    found = rates.measure_rates(torch.device("cpu"), torch.bfloat16, None, read_bytes=512)
    assert multiplied == sizes
    assert found.gemm_operations == 2 * sizes[1] ** 3 / seconds


@pytest.mark.parametrize(
    ("number", "text"), [(1.2345e9, "1.23 GB"), (999, "999 B"), (17.8e6, "17.8 MB"), (2e12, "2 TB"), (0, "0 B")]
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number, "B") == text
