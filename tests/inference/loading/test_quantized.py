"""Checkpoints that are quantized already: each weight is what its scheme says, and serves in the memory of its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import SingleRank
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.inspection.checkup import check_up
from pie_inference.loading.checkpoint import SINGLE_FILE, Checkpoint
from pie_inference.loading.hub import find_folder
from pie_inference.loading.quantized.check import check_scales
from pie_inference.loading.quantized.choose import read_scheme
from pie_inference.loading.quantized.layers import QuantizedTensors
from pie_inference.loading.quantized.scheme import TAKE_THE_ORIGINAL
from pie_inference.loading.weights import Block, WeightLoader
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.quantized_checkpoints import E2M1, READ_AS_PLAIN, WRITERS, write
from testing.worker_batches import Driver, Extend, Keys

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"


def make(folder: Path, scheme: str) -> tuple[Path, Path]:
    """A quantized checkpoint, and the plain one with the weights that it stands for."""
    quantized, exact = folder / "quantized", folder / "exact"
    make_checkpoint(quantized, hidden_size=256, intermediate_size=384, dtype=torch.bfloat16)
    write(quantized, exact, WRITERS[scheme])
    return quantized, exact


def logprobs(folder: Path, dtype: str, **options: Any) -> tuple[np.ndarray, int]:
    worker = Worker(WorkerConfig(folder, "model", dtype=dtype, pages=16, embeds=2048, device="cpu", **options))
    tokens = np.random.default_rng(0).integers(0, 272, 40).tolist()
    [found] = Driver(worker.run, "model").logprobs(Extend(Keys(), tokens), vocab_size=272)
    return found, worker.describe()[0].weight_bytes


@pytest.mark.parametrize("scheme", WRITERS)
def test_weights_are_what_their_scheme_says_to_the_last_bit(scheme: str, tmp_path: Path) -> None:
    quantized, exact = make(tmp_path, scheme)
    checkpoint = Checkpoint(quantized, read_scheme(json.loads((quantized / "config.json").read_text())))
    expected = load_file(exact / SINGLE_FILE)
    assert checkpoint.scheme is not None
    for module in (UP, DOWN):
        weight = expected[f"{module}.weight"]
        stored = checkpoint.scheme.read(checkpoint, module, *weight.shape)
        found = stored.weight.dequantize(torch.bfloat16)
        in_order = found if stored.order is None else found[:, torch.argsort(stored.order)]
        assert torch.equal(in_order, weight.to(torch.bfloat16))


@pytest.mark.parametrize("scheme", WRITERS)
def test_a_model_equals_the_one_with_plain_weights(scheme: str, tmp_path: Path) -> None:
    quantized, exact = make(tmp_path, scheme)
    expected, plain_bytes = logprobs(exact, "float32")
    found, nbytes = logprobs(quantized, "float32")  # here products are torch's
    rounding = np.abs(logprobs(exact, "bfloat16")[0] - expected).mean()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    by_kernels, _ = logprobs(quantized, "bfloat16")
    assert np.abs(by_kernels - expected).mean() < 1.5 * rounding
    assert nbytes < 0.4 * plain_bytes


@pytest.mark.parametrize(
    ("scheme", "kept"), [("gptq-4-128", False), ("gptq-8-rows", False), ("gptq-8-128-asymmetric", True)]
)
def test_zeros_of_a_symmetric_file_take_no_memory(scheme: str, kept: bool, tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, scheme)
    checkpoint = Checkpoint(quantized, read_scheme(json.loads((quantized / "config.json").read_text())))
    assert checkpoint.scheme is not None
    weight = checkpoint.scheme.read(checkpoint, UP, 384, 256).weight
    assert (weight.zeros is not None) == weight.zeros_taken == kept


def test_experts_of_mxfp4_are_read_out_of_one_tensor(tmp_path: Path) -> None:
    experts, outs, groups, module = 3, 8, 5, "experts.gate_up_proj"
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (experts, outs, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(90, 160, (experts, outs, groups), dtype=torch.uint8, generator=generator)
    save_file({f"{module}_blocks": blocks, f"{module}_scales": scales}, tmp_path / SINGLE_FILE)
    checkpoint = Checkpoint(tmp_path, read_scheme({"quantization_config": {"quant_method": "mxfp4"}}))
    assert checkpoint.scheme is not None
    check_scales(checkpoint)
    assert checkpoint.num_parameters() == blocks.numel() * 2
    stored = checkpoint.scheme.read(checkpoint, module, experts * outs, groups * 32)
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(3).int()
    numbers = torch.tensor([*E2M1, *(-each for each in E2M1)])[codes]
    expected = torch.ldexp(numbers, scales[..., None].int() - 127).flatten(2).bfloat16()
    for expert in range(experts):
        assert torch.equal(stored.rows(expert * outs, outs).weight.dequantize(torch.bfloat16), expected[expert])
    with pytest.raises(CheckpointError, match=r"gate_up_proj_blocks' has shape \[3, 8, 5, 16\], expected 16 rows"):
        checkpoint.scheme.read(checkpoint, module, 16, groups * 32)


def test_a_file_beside_the_config_may_tell_the_scheme(tmp_path: Path) -> None:
    quantized, exact = make(tmp_path, "nvfp4-modelopt")
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    told = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    beside = quantized / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": told}))
    np.testing.assert_allclose(logprobs(quantized, "float32")[0], logprobs(exact, "float32")[0], atol=1e-4)
    beside.write_text(json.dumps({"quantization": {**told, "quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(CheckpointError, match=r"hf_quant_config.json.quantization.quant_algo: 'W4A8_AWQ' is not supp"):
        logprobs(quantized, "float32")


@pytest.mark.parametrize("scheme", ["packed-4-128", "nf4"])
def test_a_tensor_with_rows_of_several_blocks_is_read_once(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To unpack one takes long, and a tensor of Qwen3-Next has the rows of 64."""
    make_checkpoint(tmp_path / "quantized", hidden_size=256, intermediate_size=384, dtype=torch.bfloat16)
    write(tmp_path / "quantized", tmp_path / "exact", {**WRITERS, **READ_AS_PLAIN}[scheme])
    config = json.loads((tmp_path / "quantized" / "config.json").read_text())
    checkpoint, read, names = Checkpoint(tmp_path / "quantized", read_scheme(config)), Checkpoint.read, list[str]()

    def noted(self: Checkpoint, name: str, *more: Any) -> torch.Tensor:
        names.append(name)
        return read(self, name, *more)

    monkeypatch.setattr(Checkpoint, "read", noted)
    stored = QuantizedTensors(checkpoint.scheme, checkpoint, None) if checkpoint.scheme else None
    cpu = torch.device("cpu")
    ops = TorchOps(cpu, torch.float32)
    weights = WeightLoader(checkpoint, ops, torch.float32, cpu, SingleRank(), stored=stored)
    product = weights.linear([Block(UP, 256, 128, 384), Block(UP, 128, 0, 384)], 256)
    exact = load_file(tmp_path / "exact" / SINGLE_FILE)[f"{UP}.weight"].float()
    torch.testing.assert_close(product(torch.eye(256)).T, torch.cat([exact[128:], exact[:128]]), rtol=1e-6, atol=1e-6)
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("scheme", ["fp8-float32", "float-8"])
def test_float8_weights_whose_scales_the_config_forgets_are_refused(scheme: str, tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, scheme)
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"is quantized, by '.*weight_scale.*no quantization_config: put it back"):
        logprobs(quantized, "float32")


def test_experts_in_one_float8_tensor_are_refused(tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, "fp8-float32")
    stacked = "model.layers.0.mlp.experts.gate_up_proj"
    more = {stacked: torch.ones(2, 8, 8).to(torch.float8_e4m3fn), f"{stacked}_scale_inv": torch.ones(2, 1, 1)}
    save_file(load_file(quantized / SINGLE_FILE) | more, quantized / SINGLE_FILE)
    with pytest.raises(
        CheckpointError, match=rf"'{stacked}' has the experts of a layer in float8, .*take the original"
    ):
        logprobs(quantized, "float32")


def test_scaled_activations_are_refused(tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, "nvfp4-modelopt")
    tensors = load_file(quantized / SINGLE_FILE)
    save_file(tensors | {f"{UP}.pre_quant_scale": torch.ones(256)}, quantized / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=rf"{UP}.pre_quant_scale': it scales activations; take the original"):
        logprobs(quantized, "bfloat16")


def test_some_matrices_of_a_layer_may_be_plain(tmp_path: Path) -> None:
    quantized, exact = make(tmp_path, "awq-128")
    module = "model.layers.0.self_attn.k_proj"
    tensors = load_file(quantized / SINGLE_FILE)
    plain = load_file(exact / SINGLE_FILE)[f"{module}.weight"]
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(module)}
    save_file(kept | {f"{module}.weight": plain}, quantized / SINGLE_FILE)
    np.testing.assert_allclose(logprobs(quantized, "float32")[0], logprobs(exact, "float32")[0], atol=1e-4)


@pytest.mark.parametrize("scheme", WRITERS)
def test_memory_is_that_of_the_file(scheme: str, tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, scheme)
    tensors = load_file(quantized / SINGLE_FILE)
    not_needed = sum(each.nbytes for name, each in tensors.items() if name.endswith((".g_idx", ".weight_shape")))
    file_bytes = sum(each.nbytes for each in tensors.values()) - not_needed
    _, nbytes = logprobs(quantized, "bfloat16")
    plan = check_up(WorkerConfig(quantized, "model", dtype="bfloat16", device="cpu"))
    assert nbytes <= 1.05 * file_bytes
    assert plan.choice is not None
    assert plan.shape is not None
    assert nbytes <= plan.choice.weight_bytes <= 1.07 * file_bytes
    plain = check_up(WorkerConfig(tmp_path / "exact", "model", dtype="bfloat16", device="cpu"))
    assert plain.shape is not None
    assert (plan.shape.parameters, bool(plan.shape.scheme)) == (plain.shape.parameters, True)
    assert {size.quantization for size in plan.shape.weights} == {"none"}


def change(name: str, how: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / SINGLE_FILE)
        changed = how(tensors.pop(name))
        save_file(tensors if changed is None else tensors | {name: changed}, folder / SINGLE_FILE)

    return apply


def bits(code: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Changes a scale of 8 bits to the one with this code."""

    def apply(scales: torch.Tensor) -> torch.Tensor:
        scales.view(torch.uint8)[1, 1] = code
        return scales

    return apply


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.index_fill(0, torch.tensor([0]), value)


@pytest.mark.parametrize(
    ("scheme", "how", "message"),
    [
        ("fp8-float32", change(f"{DOWN}.weight_scale_inv", filled(0)), rf"{DOWN}.weight_scale_inv.*a scale is 0"),
        ("awq-32", change(f"{UP}.scales", filled(float("nan"))), rf"{UP}.scales.*a scale is 0 or not a number"),
        ("int-8", change(f"{UP}.weight_scale", lambda _: None), rf"weight_scale of {UP} is missing"),
        ("gptq-4-128", change(f"{UP}.scales", lambda scales: None), rf"scales of {UP} is missing"),
        ("gptq-4-128", change(f"{UP}.qweight", lambda words: words[:-1].clone()), rf"{UP}.qweight' has shape"),
        ("gptq-4-64-act-order", change(f"{UP}.g_idx", filled(99)), rf"{UP}.g_idx.*groups are not of 64"),
        ("packed-4-128", change(f"{UP}.weight_packed", torch.Tensor.float), rf"{UP}.weight_packed' is stored as F32"),
        ("fp8-float32", change(f"{UP}.weight_scale_inv", lambda _: None), rf"weight_scale_inv of {UP} is missing"),
        ("fp8-float32", change(f"{DOWN}.weight_scale_inv", lambda _: None), rf"weight_scale_inv of {DOWN} is missing"),
        ("nvfp4", change(f"{UP}.weight_global_scale", lambda _: None), rf"weight_global_scale of {UP} is missing"),
        ("nvfp4", change(f"{UP}.weight_global_scale", filled(0)), rf"{UP}.weight_global_scale.*a scale is 0"),
        ("nvfp4", change(f"{DOWN}.weight_scale", bits(0x80)), rf"{DOWN}.weight_scale': a scale is 0 or not a number"),
        ("nvfp4", change(f"{DOWN}.weight_scale", bits(0x7F)), rf"{DOWN}.weight_scale': a scale is 0 or not a number"),
        ("nvfp4", change(f"{UP}.weight_packed", lambda words: words[:, 8:].clone()), rf"{UP}.weight_packed' has shape"),
        ("nvfp4-modelopt", change(f"{UP}.weight_scale_2", lambda _: None), rf"weight_scale_2 of {UP} is missing"),
        ("nvfp4-modelopt", change(f"{UP}.weight_scale", lambda _: None), rf"weight_scale of {UP} is missing"),
        ("mxfp4", change(f"{UP}.weight_scale", bits(0xFF)), rf"{UP}.weight_scale': a scale is 0 or not a number"),
        ("mxfp4", change(f"{UP}.weight_scale", lambda _: None), rf"weight_scale of {UP} is missing"),
        ("mxfp4", change(f"{UP}.weight_packed", torch.Tensor.float), rf"{UP}.weight_packed' is stored as F32"),
    ],
)
def test_broken_checkpoints_are_refused_by_the_name_of_the_tensor(
    scheme: str, how: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    quantized, _ = make(tmp_path, scheme)
    how(quantized)
    with pytest.raises(CheckpointError, match=message):
        logprobs(quantized, "bfloat16")
    problem = check_up(WorkerConfig(quantized, "model", dtype="bfloat16", device="cpu")).problem
    assert (problem is not None) == ("scale" in message)  # those are found before a weight is read


def test_scales_of_activations_and_keys_are_left_alone(tmp_path: Path) -> None:
    """They say how these would be rounded, which is not done."""
    quantized, exact = make(tmp_path, "float-8-tensor")
    config = json.loads((quantized / "config.json").read_text())
    rounded = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config["quantization_config"]["kv_cache_scheme"] = rounded
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = rounded
    (quantized / "config.json").write_text(json.dumps(config))
    names = [f"{UP}.input_scale", "model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale"]
    scales = {name: torch.tensor(7.0) for name in names}
    save_file(load_file(quantized / SINGLE_FILE) | scales, quantized / SINGLE_FILE)
    np.testing.assert_allclose(logprobs(quantized, "float32")[0], logprobs(exact, "float32")[0], atol=1e-4)
    plain, found = (check_up(WorkerConfig(each, "model", device="cpu")).shape for each in (exact, quantized))
    assert plain is not None
    assert found is not None
    assert found.parameters == plain.parameters


def groups_with(scheme: str, **changes: Any) -> dict[str, Any]:
    """The config_groups of a scheme with other settings of weights."""
    group = WRITERS[scheme].config["config_groups"]["group_0"]
    return {"group_0": {**group, "weights": {**group["weights"], **changes}}}


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        ("fp8-float32", {"activation_scheme": "static"}, r"quantization_config.activation_scheme: 'static' is not"),
        ("fp8-float32", {"weight_block_size": [64, 64]}, r"weight_block_size: \[64, 64\] is not supported"),
        ("gptq-4-128", {"bits": 3}, r"bits: 3 is not supported, only 4, 8; take the original"),
        ("gptq-4-128", {"group_size": 48}, r"group_size: 48 is not"),
        ("awq-32", {"version": "marlin"}, r"version: 'marlin'"),
        ("auto-round-gptq", {"packing_format": "auto_round"}, r"packing_format: 'auto_round' is not"),
        ("fp8-whole", {"fmt": "e5m2"}, r"fmt: 'e5m2' is not supported, only 'e4m3'"),
        (
            "nvfp4",
            {"config_groups": groups_with("nvfp4", group_size=32)},
            r"weights.group_size: 32 is not supported, only 16",
        ),
        (
            "nvfp4",
            {"config_groups": groups_with("nvfp4", symmetric=False)},
            r"weights.symmetric: False is not supported",
        ),
        (
            "mxfp4",
            {"config_groups": groups_with("mxfp4", scale_dtype="torch.bfloat16")},
            r"scale_dtype: 'torch.bfloat16'",
        ),
        ("int-8", {"config_groups": {}}, r"config_groups: it names no group"),
        (
            "int-8",
            {"config_groups": {**groups_with("int-8"), "other": groups_with("int-8", num_bits=4)["group_0"]}},
            r"config_groups: groups with different weights",
        ),
        ("int-8", {"config_groups": groups_with("int-8", symmetric=False)}, r"weights.symmetric: False is not"),
        ("float-8", {"config_groups": groups_with("float-8", symmetric=False)}, r"weights.symmetric: False is not"),
        (
            "packed-4-128",
            {"config_groups": groups_with("packed-4-128", strategy="tensor", symmetric=False)},
            r"weights.symmetric: False is not",
        ),
        ("int-8", {"config_groups": groups_with("int-8", strategy="block")}, r"weights.strategy: 'block' is not"),
        ("int-8", {"quant_method": "aqlm"}, r"'aqlm' is not supported"),
        ("nvfp4-modelopt", {"quant_algo": "NVFP4_AWQ"}, r"quant_algo: 'NVFP4_AWQ' is not supported, only 'NVFP4'"),
        ("int-8", {"quant_method": ["fp8"]}, r"\['fp8'\] is not supported"),
    ],
)
def test_other_schemes_are_refused_with_what_to_take(scheme: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refused:
        read_scheme({"quantization_config": {**WRITERS[scheme].config, **changes}})
    assert str(refused.value).endswith(TAKE_THE_ORIGINAL)


def test_checkpoints_of_mlx_are_refused_by_its_name() -> None:
    with pytest.raises(CheckpointError, match="what MLX has quantized is not supported") as refused:
        read_scheme({"quantization": {"group_size": 64, "bits": 4}})
    assert str(refused.value).endswith(TAKE_THE_ORIGINAL)


@pytest.mark.parametrize(
    ("file", "instead"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "int4-32, which is of nearest size"),
        ("qwen3.q8_0.gguf", "int8, which"),
        ("model-IQ2_XXS-00001-of-00002.gguf", "int4, which"),
        ("Qwen3-8B-F16.gguf", "with --quantization$"),
    ],
)
def test_gguf_is_refused_with_the_quantization_of_nearest_size(file: str, instead: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    for model in (tmp_path, tmp_path / file):
        with pytest.raises(CheckpointError, match=f"{file}: GGUF is not .*take the original checkpoint.*{instead}"):
            find_folder(model)


@pytest.mark.parametrize("scheme", WRITERS)
def test_values_of_any_type_raise_nothing_else(scheme: str) -> None:
    config = json.loads(json.dumps(WRITERS[scheme].config))
    others: list[Any] = [None, True, -1, 7.5, "x", [], {}, {"a": {"weights": {}}}, [[1]]]
    for key in config:
        for value in others:
            with suppress(CheckpointError):  # a key that is not needed may have any value
                read_scheme({"quantization_config": {**config, key: value}})


def test_a_checkpoint_is_not_quantized_twice(tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, "awq-128")
    with pytest.raises(ConfigError, match=r"--quantization int8: the checkpoint is quantized already \(AWQ, 4 bits"):
        logprobs(quantized, "bfloat16", quantization="int8")


@pytest.mark.parametrize("scheme", READ_AS_PLAIN)
def test_what_bitsandbytes_has_quantized_is_read_as_what_it_stands_for(scheme: str, tmp_path: Path) -> None:
    quantized, exact = tmp_path / "quantized", tmp_path / "exact"
    make_checkpoint(quantized, hidden_size=256, intermediate_size=384, dtype=torch.bfloat16)
    write(quantized, exact, READ_AS_PLAIN[scheme])
    plain, checkpoint = load_file(exact / SINGLE_FILE), Checkpoint(quantized)
    assert set(checkpoint.names()) == plain.keys()
    for name, tensor in plain.items():
        assert torch.equal(checkpoint.read(name, tensor.shape).float(), tensor.float())
    for options in ({}, {"quantization": "int8"}, {"model_code": "transformers"}):
        expected, nbytes = logprobs(exact, "bfloat16", **options)
        found = logprobs(quantized, "bfloat16", **options)
        assert (found[0].tolist(), found[1]) == (expected.tolist(), nbytes)


@pytest.mark.parametrize(
    ("ending", "how", "message"),
    [
        ("absmax", lambda scales: scales[1:].clone(), "does not fit the tensors beside it; the checkpoint is broken"),
        ("absmax", filled(float("nan")), "a scale is not a number"),
        ("quant_map", lambda _: None, "quant_map' is missing"),
        ("quant_state.bitsandbytes__nf4", lambda state: state[:-1].clone(), "bitsandbytes__nf4': .*is broken"),
    ],
)
def test_a_broken_weight_of_bitsandbytes_is_named(
    ending: str, how: Callable[[torch.Tensor], torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "quantized", hidden_size=256, intermediate_size=384, dtype=torch.bfloat16)
    write(tmp_path / "quantized", tmp_path / "exact", READ_AS_PLAIN["nf4"])
    change(f"{UP}.weight.{ending}", how)(tmp_path / "quantized")
    with pytest.raises(CheckpointError, match=rf"tensor '{UP}.weight.*{message}"):
        logprobs(tmp_path / "quantized", "bfloat16")
