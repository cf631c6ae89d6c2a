"""Quantized mixtures of experts, and quantized checkpoints of models by transformers' code: their weights are those of
transformers' model with the weights that the scheme stands for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import Ranks, run_ranks
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.inspection.checkup import check_up
from pie_inference.loading.checkpoint import SINGLE_FILE
from pie_inference.quantization.formats import quantize
from pie_inference.quantization.names import FORMATS
from pie_inference.serving.worker import Worker
from testing.quantized_checkpoints import LAYERS, WRITERS, write, write_experts
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.families import WINDOW, save_reference
from tests.helpers.oracle import VOCAB, Oracle, load_reference, random_tokens
from tests.helpers.tiers import WHOLE

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "norm_topk_prob": True}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4}),
    "qwen2 moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "deepseek v3": (
        "DeepseekV3ForCausalLM",
        {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
        | {"moe_intermediate_size": 64, "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 16}
        | {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32},
    ),
    "gpt oss": (
        "GptOssForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "olmo3": ("Olmo3ForCausalLM", {}),
}
TOKENS = random_tokens(40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints as transformers writes them, by the names above."""
    made: dict[str, Path] = {}

    def save(model: str) -> Path:
        if model not in made:
            architecture, settings = MODELS[model]
            made[model] = tmp_path_factory.mktemp("model")
            save_reference(made[model], architecture, **{**SIZES, **settings})
        return made[model]

    return save


def make(folder: Path, saved: Path, scheme: str) -> tuple[Path, Path]:
    """A quantized checkpoint, and the plain one with the weights that it stands for."""
    quantized, exact = folder / "quantized", folder / "exact"
    shutil.copytree(saved, quantized)
    write(quantized, exact, WRITERS[scheme])
    return quantized, exact


def logprobs(folder: Path, dtype: str, **options: Any) -> np.ndarray:
    driver = Oracle(folder, torch.nn.Identity(), dtype=dtype, **options).driver()
    [found] = driver.logprobs(Extend(Keys(), TOKENS), vocab_size=VOCAB)
    return found


@pytest.mark.parametrize(
    ("model", "scheme"),
    [
        ("qwen3 moe", "gptq-4-64-act-order"),
        ("mixtral", "awq-32"),
        ("deepseek v3", "fp8-float32"),
        ("olmo3", "awq-32"),
        pytest.param("qwen3 moe", "fp8-float32", marks=WHOLE),
        pytest.param("qwen2 moe", "gptq-4-64-act-order", marks=WHOLE),
        pytest.param("deepseek v3", "packed-4-32-asymmetric", marks=WHOLE),
    ],
)
def test_a_quantized_checkpoint_is_the_model_with_the_weights_of_its_scheme(
    model: str, scheme: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, exact = make(tmp_path, saved(model), scheme)
    expected = Oracle(exact, load_reference(exact, torch.float32)).expected(TOKENS)
    np.testing.assert_allclose(logprobs(quantized, "float32"), expected, atol=1e-4)
    rounding = np.abs(logprobs(exact, "bfloat16") - expected).mean()
    assert np.abs(logprobs(quantized, "bfloat16") - expected).mean() < 2 * rounding  # by kernels; experts may change
    plan = check_up(WorkerConfig(quantized, "model", device="cpu", dtype="bfloat16"))
    assert plan.shape is not None
    assert plan.shape.scheme


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


def shorter(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


@pytest.fixture(scope="module", params=["gpt oss", "qwen3 moe"])
def stacked(
    request: pytest.FixtureRequest, saved: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A checkpoint with the experts of a layer in one tensor of MXFP4, and the plain one that it stands for."""
    folder = tmp_path_factory.mktemp("stacked")
    shutil.copytree(saved(request.param), folder / "quantized")
    if request.param == "qwen3 moe":
        side_by_side(folder / "quantized", EXPERTS["num_experts"])
    write_experts(folder / "quantized", folder / "exact", inputs_last=request.param != "gpt oss")
    return folder / "quantized", folder / "exact"


def side_by_side(folder: Path, count: int) -> None:
    """Puts the experts of each layer into two tensors."""
    tensors = load_file(folder / SINGLE_FILE)
    for prefix in {name.partition("experts.")[0] + "experts" for name in tensors if ".experts." in name}:
        each = [
            [tensors.pop(f"{prefix}.{expert}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for expert in range(count)
        ]
        tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in each])
        tensors[f"{prefix}.down_proj"] = torch.stack([down for *_, down in each])
    save_file(tensors, folder / SINGLE_FILE)


def test_stacked_experts_are_those_of_transformers_own_definition(stacked: tuple[Path, Path]) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    quantized, exact = (load_file(folder / SINGLE_FILE) for folder in stacked)
    names = [name.removesuffix("_blocks") for name in quantized if name.endswith("_blocks")]
    assert names
    for name in names:
        theirs = convert_moe_packed_tensors(quantized[f"{name}_blocks"], quantized[f"{name}_scales"])
        assert any(torch.equal(each, exact[name].bfloat16()) for each in (theirs, theirs.transpose(1, 2)))


def test_stacked_experts_serve_as_the_model_that_they_stand_for(stacked: tuple[Path, Path]) -> None:
    quantized, exact = stacked
    expected = logprobs(exact, "float32")
    np.testing.assert_allclose(logprobs(quantized, "float32"), expected, atol=1e-4)
    rounding = np.abs(logprobs(exact, "bfloat16") - expected).mean()
    assert np.abs(logprobs(quantized, "bfloat16") - expected).mean() < 2 * rounding
    assert greedy(quantized) == greedy(exact)


def test_two_ranks_share_stacked_experts(stacked: tuple[Path, Path]) -> None:
    quantized, _ = stacked
    alone = logprobs(quantized, "float32")

    def run(ranks: Ranks) -> np.ndarray:
        driver = Driver(Worker(WorkerConfig(quantized, "model", dtype="float32", pages=64), ranks).run, "model")
        [found] = driver.logprobs(Extend(Keys(), TOKENS), vocab_size=VOCAB)
        return found

    for together in run_ranks(2, run):
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_stacked_experts_take_the_memory_of_their_file(stacked: tuple[Path, Path]) -> None:
    quantized, _ = stacked
    worker = Worker(WorkerConfig(quantized, "model", dtype="bfloat16", device="cpu", pages=16))
    file_bytes = sum(each.nbytes for each in load_file(quantized / SINGLE_FILE).values())
    assert worker.describe()[0].weight_bytes <= 1.05 * file_bytes
    plan = check_up(WorkerConfig(quantized, "model", dtype="bfloat16", device="cpu"))
    assert plan.shape is not None
    assert plan.shape.scheme == "MXFP4, 4 bits in groups of 32, only weights"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("model.layers.0.mlp.experts.down_proj_scales"),
            r"scales of model.layers.0.mlp.experts.down_proj is missing",
        ),
        (without("model.layers.0.mlp.experts.down_proj_blocks"), r"0.mlp.experts.down_proj.* is missing"),
        (
            shorter("model.layers.0.mlp.experts.down_proj_blocks"),
            r"down_proj_blocks' has shape \[3, 128, .*, expected 512 rows",
        ),
        (shorter("model.layers.1.mlp.experts.gate_up_proj_scales"), r"gate_up_proj_scales' has shape \[3, "),
    ],
)
def test_broken_stacks_are_refused_by_the_name_of_the_tensor(
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
    stacked: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    broken = shutil.copytree(stacked[0], tmp_path / "broken")
    tensors = load_file(broken / SINGLE_FILE)
    change(tensors)
    save_file(tensors, broken / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=message):
        logprobs(broken, "bfloat16")


def greedy(folder: Path) -> list[int]:
    """The text that a model of this folder goes on with."""
    driver = Oracle(folder, torch.nn.Identity()).driver()
    keys, text, new = Keys(), TOKENS[:8], TOKENS[:8]
    for _ in range(16):
        [found] = driver.logprobs(Extend(keys, new), vocab_size=VOCAB)
        new = [int(found[-1].argmax())]
        text = text + new
    return text


def exactly(folder: Path, exact: Path, form: str) -> None:
    """Writes to `exact` the weights that `form` makes of the layers in `folder`; stacked experts as what they are."""
    tensors = load_file(folder / SINGLE_FILE)
    shutil.copytree(folder, exact)
    for name, tensor in tensors.items():
        layer = name.endswith(LAYERS)
        if not layer and not (name.endswith("_proj") and tensor.dim() == 3):
            continue
        inputs_last = tensor if layer else tensor.transpose(1, 2)  # of the models above gpt-oss alone has them stacked
        flat = inputs_last.reshape(-1, inputs_last.shape[-1])
        made = quantize([flat], FORMATS[form], torch.float32, torch.device("cpu")).dequantize(torch.float32)
        made = made.view(inputs_last.shape)
        tensors[name] = (made if layer else made.transpose(1, 2)).contiguous()
    save_file(tensors, exact / SINGLE_FILE)


@pytest.mark.parametrize("model", ["mixtral", "deepseek v3", "gpt oss"])
@pytest.mark.parametrize("form", ["int8", "int4-32"])
def test_experts_are_quantized_while_they_are_loaded(
    model: str, form: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = saved(model)
    exactly(folder, tmp_path / "exact", form)
    plain = load_file(folder / SINGLE_FILE)["lm_head.weight"]
    head = quantize([plain], FORMATS["int8"], torch.float32, torch.device("cpu")).dequantize(torch.float32)
    tensors = load_file(tmp_path / "exact" / SINGLE_FILE)
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "exact" / SINGLE_FILE)
    found = logprobs(folder, "float32", quantization=form, model_code="transformers")
    np.testing.assert_allclose(found, logprobs(tmp_path / "exact", "float32", model_code="transformers"), atol=1e-3)


EXPERT = "model.layers.1.mlp.experts.2"


@pytest.mark.parametrize("model", ["qwen3 moe", "deepseek v3"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(f"{EXPERT}.up_proj.weight_scale_inv"), f"weight_scale_inv of {EXPERT}.up_proj is missing"),
        (shorter(f"{EXPERT}.down_proj.weight_scale_inv"), rf"{EXPERT}.down_proj.weight_scale_inv' has shape \[0, 1\]"),
        (shorter(f"{EXPERT}.down_proj.weight"), rf"{EXPERT}.down_proj.weight' has shape \[127, 64\]"),
    ],
)
def test_broken_experts_are_refused_by_the_name_of_the_tensor(
    model: str,
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
    saved: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    quantized, _ = make(tmp_path, saved(model), "fp8-float32")
    tensors = load_file(quantized / SINGLE_FILE)
    change(tensors)
    save_file(tensors, quantized / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=message):
        logprobs(quantized, "bfloat16")


@pytest.mark.parametrize("scheme", [None, "fp8-float32"])
def test_an_expert_that_is_missing_has_its_name_in_the_refusal(
    scheme: str | None, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = saved("deepseek v3")
    quantized = make(tmp_path, folder, scheme)[0] if scheme else shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(quantized / SINGLE_FILE)
    kept = {name: each for name, each in tensors.items() if not name.startswith(f"{EXPERT}.up_proj")}
    save_file(kept, quantized / SINGLE_FILE)
    with pytest.raises(
        CheckpointError, match=r"'...mlp.experts.2.up_proj.weight' is missing, of which 'model.layers.1"
    ):
        logprobs(quantized, "bfloat16")


def test_what_transformers_code_cannot_take_quantized_is_refused_by_name(tmp_path: Path) -> None:
    save_reference(tmp_path / "gpt2", "GPT2LMHeadModel", n_positions=512, n_embd=128, n_layer=2, n_head=4)
    tensors = load_file(tmp_path / "gpt2" / SINGLE_FILE)
    name = next(name for name in tensors if name.endswith("h.0.mlp.c_fc.weight"))
    made, _ = WRITERS["gptq-4-64-act-order"].quantize(tensors.pop(name).float().t().contiguous())
    module = name.removesuffix(".weight")
    tensors |= {f"{module}.{ending}": each.contiguous() for ending, each in made.items()}
    save_file(tensors, tmp_path / "gpt2" / SINGLE_FILE)
    config = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    quantization = dict(WRITERS["gptq-4-64-act-order"].config)
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    with pytest.raises(CheckpointError, match=f"{module} is quantized, .* no linear layer; take the original"):
        logprobs(tmp_path / "gpt2", "bfloat16")


def test_a_checkpoint_by_transformers_code_is_not_quantized_twice(saved: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, _ = make(tmp_path, saved("olmo3"), "awq-32")
    with pytest.raises(ConfigError, match=r"--quantization int8: the checkpoint is quantized already \(AWQ, 4 bits"):
        logprobs(quantized, "bfloat16", quantization="int8")
