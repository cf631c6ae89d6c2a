"""Broken checkpoints are refused before memory is taken, by the name of the tensor or the key."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.assembly.plan import read_model
from pie_inference.config import WorkerConfig
from pie_inference.errors import CheckpointError
from pie_inference.inspection.checkup import check_up
from pie_inference.loading.checkpoint import SINGLE_FILE
from pie_inference.loading.tokenizer_files import check_vocabulary
from pie_inference.models.registry import read_architecture
from testing.checkpoints import make_checkpoint
from tests.helpers.families import FAMILIES, save_reference
from tests.helpers.tiers import corpus
from tests.inference.models.test_config import old_config

Tensors = dict[str, torch.Tensor]
UP, DOWN = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
KEY, QUERY = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.weight"
EXPERT = "model.layers.1.mlp.experts.5.down_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints as transformers writes them, by the names of `FAMILIES`."""
    made: dict[str, Path] = {}

    def save(family: str) -> Path:
        if family not in made:
            architecture, settings = FAMILIES[family]
            made[family] = tmp_path_factory.mktemp("model")
            save_reference(made[family], architecture, **settings)
        return made[family]

    return save


def linked(saved: Path, folder: Path, *without: str) -> None:
    for path in saved.iterdir():
        if path.name not in without:
            (folder / path.name).symlink_to(path)


def missing(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def swapped(one: str, other: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return change


def of_integers(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].to(torch.int32)

    return change


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", missing(DOWN), f"'{DOWN}' is missing"),
        ("gemma2", missing("model.norm.weight"), "'model.norm.weight' is missing"),
        ("qwen3", swapped(QUERY, KEY), f"'{QUERY}' has shape [32, 64], expected [64, 64]"),
        ("olmo2", swapped(UP, DOWN), f"'{UP}' has shape [64, 96], expected [96, 64]"),
        ("qwen3 moe", missing(EXPERT), f"'{EXPERT}' is missing"),
        ("phi3", of_integers("model.layers.1.mlp.gate_up_proj.weight"), "gate_up_proj.weight' is stored as I32"),
        ("qwen2", missing("model.layers.0.self_attn.v_proj.bias"), "v_proj.bias' is missing"),
    ],
)
def test_tensors_that_do_not_fit_are_found_in_the_headers(
    family: str, change: Callable[[Tensors], None], message: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    linked(saved(family), tmp_path, SINGLE_FILE)
    tensors = load_file(saved(family) / SINGLE_FILE)
    change(tensors)
    save_file(tensors, tmp_path / SINGLE_FILE)
    problem = check_up(WorkerConfig(tmp_path, "model", device="cpu")).problem
    assert problem is not None
    assert message in problem


@pytest.mark.parametrize("code", ["own", "transformers"])
def test_names_that_a_trainer_has_put_something_in_front_of(code: str, tmp_path: Path) -> None:
    tensors = load_file(make_checkpoint(tmp_path) / SINGLE_FILE)
    save_file({f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, tmp_path / SINGLE_FILE)
    problem = check_up(WorkerConfig(tmp_path, "model", device="cpu", model_code=code)).problem
    assert "embed_tokens.weight' is missing, and '_orig_mod.model.embed_tokens.weight' is there" in str(problem)
    assert str(problem).endswith("save it without '_orig_mod.' in front")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (missing(DOWN), f"'{DOWN}' is missing"),
        (swapped(QUERY, KEY), f"'{QUERY}' has shape [32, 64], expected [64, 64]"),
        (swapped(UP, UP), None),
    ],
    ids=["missing", "swapped", "whole"],
)
def test_headers_of_models_by_the_code_of_transformers(
    change: Callable[[Tensors], None], message: str | None, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    linked(saved("qwen3"), tmp_path, SINGLE_FILE)
    tensors = load_file(saved("qwen3") / SINGLE_FILE)
    change(tensors)
    save_file(tensors, tmp_path / SINGLE_FILE)
    problem = check_up(WorkerConfig(tmp_path, "model", device="cpu", model_code="transformers")).problem
    assert (problem is None) == (message is None)
    assert message is None or message in str(problem)


def test_many_experts_that_no_file_has_take_no_memory(saved: Callable[[str], Path], tmp_path: Path) -> None:
    linked(saved("mixtral"), tmp_path, "config.json")
    config = json.loads((saved("mixtral") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 10**6}))
    serving = WorkerConfig(tmp_path, "model", device="cpu", model_code="transformers")
    check_up(serving)  # imports, and proves
    tracemalloc.start()
    try:
        problem = check_up(serving).problem
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert "is missing, of which 'model.layers.0.mlp.experts" in str(problem)


@pytest.mark.parametrize(
    ("config", "message"),
    [({"vocab_size": 200}, "vocab_size is 200, and tokenizer.json has a token 255"), ({"head_dim": 0}, "head_dim")],
)
def test_what_is_wrong_in_a_folder_is_told_with_its_file(
    config: dict[str, Any], message: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    linked(saved("llama"), tmp_path, "config.json", SINGLE_FILE)
    raw = json.loads((saved("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, **config}))
    words = {"model.embed_tokens.weight", "lm_head.weight"}
    tensors = load_file(saved("llama") / SINGLE_FILE)
    save_file({name: one[:200] if name in words else one for name, one in tensors.items()}, tmp_path / SINGLE_FILE)
    problem = str(check_up(WorkerConfig(tmp_path, "model", device="cpu")).problem)
    assert problem.startswith(f"{tmp_path / 'config.json'}: "), problem
    assert message in problem


@pytest.mark.parametrize("added", [0, 1])
def test_a_model_may_lack_tokens_that_were_added(added: int, tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": ["a", "b", "c"]}, "added_tokens": [{"id": 2}][:added]}
    with nullcontext() if added else pytest.raises(CheckpointError, match=r"vocab_size is 2, and .* a token 2"):
        check_vocabulary(tmp_path, json.dumps(tokenizer).encode(), 2)


def test_a_tokenizer_that_was_not_fetched_is_found_before_the_start(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    problem = str(check_up(WorkerConfig(tmp_path, "model", device="cpu")).problem)
    assert problem.startswith(f"{tmp_path / 'tokenizer.json'}: unreadable: ")
    assert problem.endswith("it is a pointer of Git LFS: `git lfs pull` gets the file")


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral"])
def test_whole_checkpoints_are_not_refused(family: str, saved: Callable[[str], Path]) -> None:
    assert check_up(WorkerConfig(saved(family), "model", device="cpu")).problem is None


@pytest.mark.parametrize("levels", [70, 400, 900, 3000])
@pytest.mark.parametrize("key", ["text_config", "rope_scaling", "quantization_config", "anything"])
def test_objects_within_each_other(key: str, levels: int, saved: Callable[[str], Path], tmp_path: Path) -> None:
    linked(saved("llama"), tmp_path, "config.json")
    config = (saved("llama") / "config.json").read_text().rstrip().removesuffix("}")
    (tmp_path / "config.json").write_text(f'{config}, "{key}": ' + '{"a": [' * levels + "]}" * levels + "}")
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_model(WorkerConfig(tmp_path, "model"))


def test_code_in_a_checkpoint_of_a_family_of_ours_is_not_run() -> None:
    with_code = {**old_config("Llama 3.1"), "auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    assert read_architecture(with_code) == read_architecture(old_config("Llama 3.1"))


SMALL: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "max_position_embeddings": 512,
    "layer_types": ["full_attention"] * 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
MUCH = 10**12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10_000}, "num_hidden_layers must be a whole number from 1 to 512, not 10000"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number from 1 to 512, not True"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["full_attention", "spiral"]}, "layer_types"),
        ({"num_attention_heads": -1}, "num_attention_heads must be a whole number from 1 to 2147483647, not -1"),
        ({"num_experts_per_tok": MUCH}, "num_experts_per_tok must be a whole number from 0"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type must be a name that transformers "),
        ({"rope_parameters": {"rope_type": 2}}, "rope_type must be a string, not 2"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}, "rope_parameters": None}, "factor of rotary positions"),
        ({"mlp_only_layers": "text"}, "mlp_only_layers"),
        ({"vocab_size": []}, "vocab_size"),
    ],
    ids=str,
)
def test_configs_of_transformers_code_are_refused_by_key(changes: dict[str, Any], message: str) -> None:
    refused = refusal({**SMALL, **changes})
    assert refused.startswith("config.json: ")
    assert message in refused


def test_what_transformers_does_not_accept_is_told_without_its_classes() -> None:
    llama = {**SMALL, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 15}
    assert " does not accept it: RoPE requires an even rotary dimension" in refusal(llama, "transformers")


def refusal(config: dict[str, Any], code: str = "auto") -> str:
    """What is said of a config.json; "": it serves."""
    import transformers  # noqa: F401  # its code reads the values: no fast test does

    try:
        read_architecture(config, code=code)
    except CheckpointError as error:
        return str(error)
    return ""


MOE = {"num_key_value_heads": 2, "sliding_window": 24, "use_sliding_window": True, "norm_topk_prob": True}
SENSELESS: tuple[dict[str, Any], ...] = (
    {"num_attention_heads": 3},
    {"head_dim": 16.5},
    {"num_experts": -8},
    {"num_experts_per_tok": 9},
    {"max_position_embeddings": 10**15},
    {"sliding_window": -3},
    {"sliding_window": 10**15},
    {"vocab_size": 10**12},
    {"vocab_size": None},
    {"hidden_size": ""},
    {"hidden_act": ""},
    {"rms_norm_eps": math.nan},
    {"architectures": [""]},
    {"architectures": None},
    {"decoder_sparse_step": 0},
)


@pytest.mark.parametrize("code", ["own", "transformers"])
@pytest.mark.parametrize("changes", SENSELESS, ids=str)
def test_a_senseless_value_is_refused_by_its_key_whoever_runs_the_model(changes: dict[str, Any], code: str) -> None:
    moe = {**SMALL, **MOE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 16}
    assert not refusal(moe, code)
    [(key, value)] = changes.items()
    refused = refusal({**moe, **changes}, code)
    assert re.match(f"config.json: '?{key}", refused), refused
    assert repr(value) in refused or "missing or null" in refused
    assert "get the checkpoint's files again" in refused or "not supported, only" in refused, refused


OTHERS: tuple[Any, ...] = ("text", -1, 0, [], {}, None, True, math.nan, [{}], MUCH, 10_000, ["spiral"] * 2)
"""Values that do not belong where they stand."""


@pytest.mark.parametrize("key", corpus([*SMALL, "rope_type", "rope_theta"], lambda key: key == "layer_types"))
def test_whatever_a_config_of_transformers_code_says_it_is_read_or_refused(key: str) -> None:
    where = SMALL if key in SMALL else SMALL["rope_parameters"]
    changed = [{**where, key: other} for other in OTHERS]
    if where is not SMALL:
        changed = [{**SMALL, "rope_parameters": one} for one in changed]
    refused = [message for config in changed if (message := refusal(config))]
    for message in refused:
        assert message.startswith("config.json: "), message
        assert "memory" not in message, message
