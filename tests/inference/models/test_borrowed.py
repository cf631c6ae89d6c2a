"""Models without a family of ours, by transformers' code over pages, equal transformers' own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.assembly.plan import read_model
from pie_inference.attention.interface import AttentionSpec
from pie_inference.config import WorkerConfig
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.models.borrowed import config as borrowed
from pie_inference.models.borrowed.survey import Heads
from pie_inference.protocol import CopyEmb, EmbedTxt, ForwardWithScores, ForwardWithScoresResult
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Extend, Keys, ints
from tests.helpers.families import WINDOW, save_reference
from tests.helpers.oracle import (
    VOCAB,
    Oracle,
    assert_close,
    assert_forks_share_pages,
    assert_keys_move,
    assert_ragged_batch_equals,
    random_tokens,
)

BY_TOKEN: dict[str, Any] = {
    "head_dim": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "sliding_window": WINDOW,
}
"""Settings of a model whose layers have embeddings of tokens, and whose last ones have no keys of their own."""

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "cohere": ("CohereForCausalLM", {"logit_scale": 0.25, "use_qk_norm": True}),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": WINDOW, "use_bias": True}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 16, "partial_rotary_factor": 0.5}),
    "qwen2 moe": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "gpt oss": (
        "GptOssForCausalLM",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "gpt2": ("GPT2LMHeadModel", {"n_positions": 512, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "roberta": (
        "RobertaForCausalLM",
        {"is_decoder": True, "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 514},
    ),
    "gemma4": ("Gemma4ForCausalLM", {**BY_TOKEN, "global_head_dim": 32}),
    "gemma4 moe": (
        "Gemma4ForCausalLM",
        {"head_dim": 16, "global_head_dim": 32, "layer_types": BY_TOKEN["layer_types"], "num_hidden_layers": 4}
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
        | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    ),
    "gemma3n": ("Gemma3nForCausalLM", {**BY_TOKEN, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]}),
}


@pytest.fixture(scope="module", params=MODELS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    architecture, config = MODELS[request.param]
    folder = tmp_path_factory.mktemp("model")
    return Oracle(folder, save_reference(folder, architecture, **config))


def test_batches_of_texts(oracle: Oracle) -> None:
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 80, 20, 25, 33], new=[70, 5, 1, 1, 6, 1, 2])


def test_forks_share_pages(oracle: Oracle) -> None:
    assert_forks_share_pages(oracle)


@pytest.mark.parametrize("oracle", ["gemma4", "gemma4 moe", "gemma3n"], indirect=True)
def test_a_greedy_text_is_that_of_transformers(oracle: Oracle) -> None:
    prompt = random_tokens(30, 7)
    with torch.inference_mode():
        whole = oracle.reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
    assert oracle.driver().generate(Keys(), prompt, 12)[: len(whole) - 30] == whole[30:]


@pytest.mark.parametrize("oracle", ["gemma4", "olmo3"], indirect=True)
def test_embeds_are_copied_with_their_tokens(oracle: Oracle) -> None:
    tokens, driver = random_tokens(20, 9), oracle.driver()
    embed, forward = driver.forward_batch([Extend(Keys(), tokens)])
    elsewhere = msgspec.structs.replace(forward, q_embeds=forward.q_embeds + 1000)
    driver.run(embed, CopyEmb(forward.q_embeds, elsewhere.q_embeds, forward.q_indptr))
    driver.run(EmbedTxt(embed.embeds, ints(random_tokens(20, 10)), embed.indptr), elsewhere)
    hidden = oracle.worker._served.embeds.vectors[torch.from_numpy(forward.out_embeds).long()]
    with torch.inference_mode():
        found = oracle.worker._served.model.logits(hidden).log_softmax(-1).numpy()
    assert_close(found, oracle.expected(tokens))


@pytest.mark.parametrize("oracle", ["roberta"], indirect=True)
def test_positions_before_the_first_one_are_no_part_of_the_context(oracle: Oracle) -> None:
    assert oracle.worker.describe()[0].max_context == 512
    assert_ragged_batch_equals(oracle, before=[505], new=[7])


@pytest.mark.parametrize("oracle", ["gemma4", "gemma4 moe"], indirect=True)
def test_the_model_says_whether_its_layers_ask_for_tokens(oracle: Oracle) -> None:
    asks = oracle.reference.config.hidden_size_per_layer_input > 0
    assert oracle.worker.describe()[0].by_token == asks


@pytest.mark.parametrize("oracle", ["olmo3", "starcoder2", "gpt oss"], indirect=True)
def test_keys_that_are_moved(oracle: Oracle) -> None:
    assert_keys_move(oracle)


def test_keys_of_layers_without_positions_stay_as_they_are(tmp_path: Path) -> None:
    assert_keys_move(Oracle(tmp_path, save_reference(tmp_path, LLAMA[0], **LLAMA[1])))


@pytest.mark.parametrize("oracle", ["cohere", "gpt2"], indirect=True)
def test_keys_that_cannot_be_moved(oracle: Oracle) -> None:
    """One turns neighbours, the other none: its embeddings have the positions."""
    assert "does not turn its keys by halves" in oracle.worker.describe()[0].fixed_positions


@pytest.mark.parametrize(("oracle", "layers"), [("gemma4", 2), ("gemma3n", 2), ("gemma4 moe", 4)], indirect=["oracle"])
def test_attentions_over_the_same_keys_have_one_layer_of_the_cache(oracle: Oracle, layers: int) -> None:
    assert oracle.worker._served.cache.shape.num_layers == layers


@pytest.mark.parametrize("kind", ["gpt oss", "gemma4"])
def test_scores_leave_out_what_sinks_take(kind: str, tmp_path: Path) -> None:
    reference = save_reference(tmp_path, MODELS[kind][0], **MODELS[kind][1])
    driver, tokens = Oracle(tmp_path, reference).driver(), random_tokens(30)
    embed, forward = driver.forward_batch([Extend(Keys(), tokens)])
    found = driver.ask(ForwardWithScoresResult, embed, ForwardWithScores(**msgspec.structs.asdict(forward))).scores
    with torch.no_grad():
        weights = reference(torch.tensor([tokens]), output_attentions=True).attentions
    assert found.sum() < 29.0 or kind == "gemma4"
    np.testing.assert_allclose(found, torch.stack([layer[0].sum(1) for layer in weights]).mean((0, 1)), atol=1e-4)


@pytest.mark.parametrize(
    ("heads", "options"), [(4, {}), (4, {"quantization": "int8"}), (2, {})], ids=["plain", "int8", "two heads"]
)
def test_a_family_of_ours_by_either_code(heads: int, options: dict[str, Any], tmp_path: Path) -> None:
    folder, tokens = make_checkpoint(tmp_path, num_heads=heads, tie_embeddings=True), random_tokens(60)
    own, other = (
        Oracle(folder, torch.nn.Identity(), model_code=code, **options).driver() for code in ("own", "transformers")
    )
    results = [driver.logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)[0] for driver in (own, other)]
    assert_close(*results)


LLAMA = ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]})


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises((CheckpointError, ConfigError)) as found:
        Worker(WorkerConfig(folder, "model", pages=64, embeds=512, **options))
    return str(found.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10_000},
            "config.json: num_hidden_layers must be a whole number from 1 to 512, not 10000",
        ),
        ({"num_hidden_layers": "2"}, "config.json: num_hidden_layers must be a whole number from 1 to 512, not '2'"),
        ({"layer_types": ["full_attention"]}, "config.json: .*layer_types"),
        ({"layer_types": ["full_attention", "spiral"]}, "config.json: .*layer_types"),
        ({"hidden_size": 65}, "shape|divisible|multiple"),
        ({"vocab_size": 271}, r"tensor 'model.embed_tokens.weight' has shape \[272, 64\], expected \[271, 64\]"),
        ({"hidden_act": "spiral"}, "config.json: .*spiral"),
        ({"model_type": "nothing"}, "transformers .* has no causal model for model_type 'nothing'"),
        ({"model_type": None, "auto_map": {"AutoModel": "x.Y"}}, r"\(auto_map\) is never run"),
        ({"architectures": ["SmolLM3Model"]}, "has SmolLM3ForCausalLM for model_type 'smollm3'"),
        ({"quantization_config": {"quant_method": "spiral"}}, "quantization_config"),
    ],
    ids=str,
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, saved: Path, tmp_path: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    for file in saved.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    assert_matches(message, refusal(tmp_path))


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_reference(folder, LLAMA[0], **LLAMA[1])
    return folder


def without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def swapped(tensors: dict[str, torch.Tensor]) -> None:
    names = ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight")
    tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [(without, "up_proj.weight' is missing"), (swapped, r"has shape \[64, 96\], expected \[96, 64\]|\[96, 64\], ex")],
)
def test_tensors_that_do_not_fit(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, saved: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (saved / name).exists():
            (tmp_path / name).symlink_to(saved / name)
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert_matches(message, refusal(tmp_path))


def test_objects_that_are_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert "nested too deeply" in refusal(tmp_path)


def test_code_that_differs_over_pages_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scores of another scale stand for whatever transformers' code may do."""
    monkeypatch.setattr(Heads, "spec", property(lambda heads: AttentionSpec(heads.scale * 1.1)))
    assert "over pages its logits differ by" in refusal(saved, cache_dir=tmp_path)


def test_a_proof_is_kept(saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = WorkerConfig(saved, "model", cache_dir=tmp_path)
    first = read_model(config).config
    monkeypatch.setattr(borrowed, "_prove", None)
    assert read_model(config).config == first
    assert "its small form over pages is within" in first.code
    [file] = (tmp_path / "proofs").iterdir()
    file.write_bytes(b"{")
    with pytest.raises(TypeError):  # it would be proved again
        read_model(config)
