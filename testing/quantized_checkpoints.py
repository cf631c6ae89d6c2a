"""Writes checkpoints with weights that are quantized as in the files of others, each by its scheme's own definition."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pie_inference.loading.checkpoint import SINGLE_FILE

Tensors = dict[str, Tensor]
LAYERS = ("_proj.weight", "_proj_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight")


@dataclass(frozen=True)
class Writer:
    """A scheme: `quantize(weight)` gives the tensors of a module, and the weight that they stand for, in float32."""

    config: Mapping[str, Any]
    quantize: Callable[[Tensor], tuple[Tensors, Tensor]]


def write(folder: Path, exact: Path, writer: Writer) -> None:
    """Quantizes the layers of the checkpoint in `folder`, and writes what they stand for, in float32, to `exact`."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / SINGLE_FILE)
    quantized: Tensors = {}
    plain: Tensors = {}
    for name, tensor in tensors.items():
        plain[name] = tensor
        if not name.endswith(LAYERS):
            quantized[name] = tensor
            continue
        module = name.removesuffix(".weight")
        made, weight = writer.quantize(tensor.float())
        quantized |= {f"{module}.{ending}": each.contiguous() for ending, each in made.items()}
        plain[name] = weight.contiguous()
    exact.mkdir()
    for path in folder.glob("*.json"):
        (exact / path.name).write_bytes(path.read_bytes())
    save_file(plain, exact / SINGLE_FILE)
    save_file(quantized, folder / SINGLE_FILE)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": dict(writer.config)}))


def _fp8(scale_type: torch.dtype) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = weight.shape
        scales = torch.empty(-(-rows // 128), -(-columns // 128))
        values, exact = torch.empty_like(weight), torch.empty_like(weight)
        for i in range(len(scales)):
            for j in range(scales.shape[1]):
                block = slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128)
                scales[i, j] = (weight[block].abs().max() / 448).to(scale_type)
                values[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn).float()
                exact[block] = values[block] * scales[i, j]
        return {"weight": values.to(torch.float8_e4m3fn), "weight_scale_inv": scales.to(scale_type)}, exact

    return quantize


def _whole(scale: str, unused: str) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    """Float8 numbers with one scale, beside one of activations."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        factor = weight.abs().max() / 448
        values = (weight / factor).to(torch.float8_e4m3fn)
        return {"weight": values, scale: factor, unused: torch.tensor(0.3)}, values.float() * factor

    return quantize


def _integers(weight: Tensor, bits: int, group: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned values [N, K], zeros [N, G], and float16 scales [N, G]."""
    grouped = weight.view(len(weight), -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = (grouped.abs().amax(-1) / (most // 2)).half()
        zeros = torch.full_like(scales, 2 ** (bits - 1)).int()
    else:
        scales = ((grouped.amax(-1) - grouped.amin(-1)) / most).half()
        zeros = (-grouped.amin(-1) / scales.float()).round().clamp(1, most).int()
    values = ((grouped / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, most).int()
    return values.view(weight.shape), zeros, scales


def _exact(values: Tensor, zeros: Tensor, scales: Tensor, group: int) -> Tensor:
    grouped = values.view(len(values), -1, group) - zeros[..., None]
    return (grouped * scales.float()[..., None]).view(values.shape)


def _words(values: Tensor, bits: int) -> Tensor:
    """int [N, K] to int32 [N, K * bits / 32], the first value in the lowest bits."""
    per_word = 32 // bits
    padded = torch.nn.functional.pad(values.long(), (0, -values.shape[1] % per_word))
    parts = padded.view(len(values), -1, per_word)
    words = sum(parts[..., i] << (bits * i) for i in range(per_word))
    assert isinstance(words, Tensor)
    return (words - ((words >> 31) << 32)).to(torch.int32)


def gptq(bits: int, group: int, *, symmetric: bool = True, act_order: bool = False, version: str = "gptq") -> Writer:
    """`act_order`: the groups are not of neighbours."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        columns = weight.shape[1]
        size = columns if group == -1 else group
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns)) if act_order else None
        sorted_weight = weight if order is None else weight[:, order]
        values, zeros, scales = _integers(sorted_weight, bits, size, symmetric)
        exact = _exact(values, zeros, scales, size)
        group_of = torch.arange(columns) // size
        if order is not None:
            back = torch.argsort(order)
            values, exact, group_of = values[:, back], exact[:, back], group_of[back]
        stored = zeros - 1 if version == "gptq" else zeros
        return {
            "qweight": _words(values, bits).t(),
            "qzeros": _words(stored.t(), bits),
            "scales": scales.t(),
            "g_idx": group_of.int(),
        }, exact

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": symmetric}
    return Writer(config | {"checkpoint_format": version}, quantize)


def awq(group: int) -> Writer:
    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        values, zeros, scales = _integers(weight, 4, group, False)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

        def words(numbers: Tensor) -> Tensor:
            return _words(numbers.reshape(len(numbers), -1, 8)[..., order].flatten(1), 4)

        tensors = {"qweight": words(values.t()), "qzeros": words(zeros.t()), "scales": scales.t()}
        return tensors, _exact(values, zeros, scales, group)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Writer(config, quantize)


def auto_round(packing: str, like: Writer) -> Writer:
    """What AutoRound writes in the format of another one."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        tensors, exact = like.quantize(weight)
        return {name: tensor for name, tensor in tensors.items() if name != "g_idx"}, exact

    told = {key: like.config[key] for key in ("bits", "group_size")}
    return Writer(told | {"quant_method": "auto-round", "packing_format": packing, "sym": True}, quantize)


def _compressed(format: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": dict(weights), "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


def packed(bits: int, group: int | None, symmetric: bool) -> Writer:
    """pack-quantized of compressed-tensors."""

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        size = group or weight.shape[1]
        values, zeros, scales = _integers(weight, bits, size, symmetric)
        scales = scales.bfloat16()
        tensors = {
            "weight_packed": _words(values, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = _words(zeros.t(), bits).t()
        return tensors, _exact(values, zeros, scales, size)

    strategy = "channel" if group is None else "group"
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "group_size": group, "symmetric": symmetric}
    return Writer(_compressed("pack-quantized", weights), quantize)


def by_row(kind: str) -> Writer:
    """int-quantized, float-quantized and, by whole tensors, float-quantized of compressed-tensors."""
    floating, whole = kind != "int", kind == "float-tensor"

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        most = 448 if floating else 127
        largest = weight.abs().amax().view(1, 1) if whole else weight.abs().amax(1, keepdim=True)
        scales = largest / most
        scaled = weight / scales
        values = scaled.to(torch.float8_e4m3fn) if floating else scaled.round().to(torch.int8)
        return {"weight": values, "weight_scale": scales.view(-1) if whole else scales}, values.float() * scales

    weights = {
        "num_bits": 8,
        "type": "float" if floating else "int",
        "strategy": "tensor" if whole else "channel",
        "symmetric": True,
    }
    return Writer(_compressed("float-quantized" if floating else "int-quantized", weights), quantize)


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e2m1(scaled: Tensor) -> Tensor:
    """The codes of the nearest numbers of 4 bits."""
    between = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1)])
    return torch.bucketize(scaled.abs(), between) + 8 * (scaled < 0)


def _fp4_exact(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes and scales [N, G, group], in float32, as the file's users multiply them."""
    numbers = torch.tensor([*E2M1, *(-each for each in E2M1)])[codes]
    return (numbers * scales).flatten(1)


def _bytes(codes: Tensor) -> Tensor:
    return (codes[..., 0::2] | codes[..., 1::2] << 4).flatten(1).to(torch.uint8)


def _nvfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, G, 16], scales float8_e4m3fn [N, G], and what takes the largest of these to 448."""
    grouped = weight.view(len(weight), -1, 16)
    factor = weight.abs().max() / (6 * 448)
    scales = (grouped.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    return _e2m1(grouped / (scales.float() * factor)[..., None]), scales, factor


def _compressed_nvfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scales, factor = _nvfp4(weight)
    divisor = (1 / factor).view(1)
    tensors = {
        "weight_packed": _bytes(codes),
        "weight_scale": scales,
        "weight_global_scale": divisor,
        "input_global_scale": torch.tensor([3.0]),
    }
    return tensors, _fp4_exact(codes, (scales.float() / divisor)[..., None])


def _modelopt(weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scales, factor = _nvfp4(weight)
    tensors = {
        "weight": _bytes(codes),
        "weight_scale": scales,
        "weight_scale_2": factor,
        "input_scale": torch.tensor(0.3),
    }
    return tensors, _fp4_exact(codes, (scales.float() * factor)[..., None])


def _mxfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    grouped = weight.view(len(weight), -1, 32)
    powers = grouped.abs().amax(-1).log2().floor() - 2
    codes = _e2m1(grouped / powers.exp2()[..., None])
    tensors = {"weight_packed": _bytes(codes), "weight_scale": (powers + 127).to(torch.uint8)}
    return tensors, _fp4_exact(codes, powers.exp2()[..., None])


def write_experts(folder: Path, exact: Path, *, inputs_last: bool) -> None:
    """Stores the experts of the checkpoint in `folder` as gpt-oss has them, NAME_blocks and NAME_scales, and writes
    what they stand for to `exact`. `inputs_last`: whether plain experts are [experts, outputs, inputs]."""
    tensors = load_file(folder / SINGLE_FILE)
    shutil.copytree(folder, exact)
    quantized: Tensors = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            quantized[name] = tensor
            continue
        experts = tensor.float() if inputs_last else tensor.float().transpose(1, 2)
        made, weight = _mxfp4(experts.flatten(0, 1))
        quantized[f"{name}_blocks"] = made["weight_packed"].view(*experts.shape[:2], -1, 16)
        quantized[f"{name}_scales"] = made["weight_scale"].view(*experts.shape[:2], -1)
        plain = weight.view(experts.shape)
        tensors[name] = (plain if inputs_last else plain.transpose(1, 2)).contiguous()
    save_file(tensors, exact / SINGLE_FILE)
    save_file(quantized, folder / SINGLE_FILE)
    config = json.loads((folder / "config.json").read_text())
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    told = {"quant_method": "mxfp4", "modules_to_not_convert": left}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": told}))


def _fp4_config(kind: str, strategy: str, group: int) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "float", "strategy": strategy, "group_size": group, "symmetric": True}
    config = _compressed(f"{kind}-pack-quantized", weights)
    config["config_groups"]["group_0"]["input_activations"] = {
        **weights,
        "dynamic": "local" if kind == "nvfp4" else True,
    }
    return config


MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {"group_0": {"weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}},
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": ["lm_head"],
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
WRITERS: Mapping[str, Writer] = {
    "fp8-float32": Writer(FP8, _fp8(torch.float32)),
    "fp8-bfloat16": Writer(FP8, _fp8(torch.bfloat16)),
    "fp8-whole": Writer(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        _whole("weight_scale_inv", "activation_scale"),
    ),
    "fp8-autofp8": Writer(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        _whole("weight_scale", "input_scale"),
    ),
    "fp8-modelopt": Writer({"quant_method": "modelopt", "quant_algo": "FP8"}, _whole("weight_scale", "input_scale")),
    "gptq-4-128": gptq(4, 128),
    "gptq-4-32-asymmetric": gptq(4, 32, symmetric=False),
    "gptq-4-64-act-order": gptq(4, 64, act_order=True),
    "gptq-4-rows-v2": gptq(4, -1, symmetric=False, version="gptq_v2"),
    "gptq-8-128-asymmetric": gptq(8, 128, symmetric=False),
    "gptq-8-rows": gptq(8, -1),
    "awq-128": awq(128),
    "awq-32": awq(32),
    "auto-round-gptq": auto_round("auto_round:auto_gptq", gptq(4, 128)),
    "auto-round-awq": auto_round("auto_round:auto_awq", awq(128)),
    "packed-4-128": packed(4, 128, True),
    "packed-4-32-asymmetric": packed(4, 32, False),
    "packed-8-rows": packed(8, None, True),
    "int-8": by_row("int"),
    "float-8": by_row("float"),
    "float-8-tensor": by_row("float-tensor"),
    "nvfp4": Writer(_fp4_config("nvfp4", "tensor_group", 16), _compressed_nvfp4),
    "nvfp4-modelopt": Writer(MODELOPT, _modelopt),
    "mxfp4": Writer(_fp4_config("mxfp4", "group", 32), _mxfp4),
}

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def bits_and_bytes(dtype: torch.dtype, nested: bool = False) -> Writer:
    """4 bits of bitsandbytes, with the numbers of NF4. `nested`: its scales have 8 bits."""
    block, outer = 64, 256

    def quantize(weight: Tensor) -> tuple[Tensors, Tensor]:
        blocks, numbers = weight.reshape(-1, block), torch.tensor(NF4)
        scales = blocks.abs().amax(1)
        told: dict[str, Any] = {"blocksize": block, "dtype": str(dtype)[6:], "shape": list(weight.shape)}
        tensors = {"absmax": scales, "quant_map": numbers}
        if nested:
            offset, steps = float(scales.mean()), torch.linspace(-1, 1, 256)
            factors = torch.stack([(part - offset).abs().max() for part in torch.split(scales, outer)])
            spread = factors.repeat_interleave(outer)[: len(scales)]
            codes = ((scales - offset) / spread).sub(steps[:, None]).abs().argmin(0)
            scales = steps[codes] * spread + offset
            told |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": offset}
            tensors |= {"absmax": codes.to(torch.uint8), "nested_absmax": factors, "nested_quant_map": steps}
        codes = (blocks / scales[:, None])[..., None].sub(numbers).abs().argmin(-1)
        exact = (numbers[codes] * scales[:, None]).to(dtype).float().view(weight.shape)
        flat = codes.flatten()
        packed = (flat[0::2] << 4 | flat[1::2]).to(torch.uint8)[:, None]
        state = torch.tensor(list(json.dumps({"quant_type": "nf4", **told}).encode()), dtype=torch.uint8)
        made = {f"weight.{name}": tensor for name, tensor in tensors.items()}
        return {"weight": packed, "weight.quant_state.bitsandbytes__nf4": state, **made}, exact

    return Writer({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, quantize)


def _llm_int8(weight: Tensor) -> tuple[Tensors, Tensor]:
    scales = weight.abs().amax(1)
    values = (weight * (127 / scales)[:, None]).round().to(torch.int8)
    tensors = {"weight": values, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, values * (scales / 127)[:, None]


READ_AS_PLAIN: Mapping[str, Writer] = {
    "nf4": bits_and_bytes(torch.bfloat16),
    "nf4-nested": bits_and_bytes(torch.bfloat16, nested=True),
    "nf4-float16": bits_and_bytes(torch.float16),
    "llm-int8": Writer({"load_in_8bit": True}, _llm_int8),
}
"""Those of which the numbers are read that they stand for."""
