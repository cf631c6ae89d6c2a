"""Models of more than text, by transformers' code: what makes text serves, and equals transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.errors import ConfigError
from testing.checkpoints import write_tokenizer
from testing.worker_batches import Extend, Keys
from tests.helpers.families import SMALL, WINDOW
from tests.helpers.oracle import VOCAB, Oracle, assert_close, assert_ragged_batch_equals, random_tokens

TEXT = {**SMALL, "head_dim": 16, "pad_token_id": 0}
TURNED = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BLOCKS = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
EARS = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "output_dim": 64}
BY_TOKEN = {
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "sliding_window": WINDOW,
    "global_head_dim": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "Gemma4ForConditionalGeneration": {
        "text_config": {**TEXT, **BY_TOKEN},
        "vision_config": {**TOWER, "num_key_value_heads": 2, "head_dim": 16},
        "audio_config": None,
    },
    "Gemma3ForConditionalGeneration": {"text_config": {**TEXT, "sliding_window": WINDOW}, "vision_config": TOWER},
    "LlavaForConditionalGeneration": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**TOWER, "model_type": "clip_vision_model", "image_size": 32, "patch_size": 16},
    },
    "Llama4ForConditionalGeneration": {
        "text_config": {**TEXT, "num_local_experts": 2, "intermediate_size_mlp": 96, "attention_chunk_size": 64}
        | {"no_rope_layers": [1, 0], "floor_scale": 62},  # from there on it scales queries
        "vision_config": TOWER,
    },
    "Qwen2_5_VLForConditionalGeneration": {"text_config": TURNED, "vision_config": BLOCKS},
    "Qwen3VLForConditionalGeneration": {
        "text_config": TURNED,
        "vision_config": {**BLOCKS, "deepstack_visual_indexes": [0]},
    },
    "Qwen3OmniMoeThinkerForConditionalGeneration": {
        "text_config": {**TURNED, **EXPERTS},
        "vision_config": {**BLOCKS, "deepstack_visual_indexes": [0]},
        "audio_config": EARS,
        "vision_start_token_id": 265,
    },
}


def saved(folder: Path, architecture: str, **more: Any) -> Any:
    """`more`: of the text model."""
    import transformers

    kind, settings = getattr(transformers, architecture), MODELS[architecture]
    settings = {**settings, "text_config": settings["text_config"] | more}
    torch.manual_seed(0)
    model = kind._from_config(kind.config_class(**settings), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if (weight.dim() > 1 and "language_model" in name) or "lm_head" in name:
                weight.mul_(5)  # transformers' own are so small that logits hardly differ
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCAB)
    return model


def assert_equal(oracle: Oracle) -> None:
    tokens, driver, keys = random_tokens(60), oracle.driver(), Keys()
    first = driver.logprobs(Extend(keys, tokens[:40]), vocab_size=VOCAB)
    second = driver.logprobs(Extend(keys, tokens[40:]), vocab_size=VOCAB)
    assert_close(first[0], oracle.expected(tokens)[:40])
    assert_close(second[0], oracle.expected(tokens)[40:])


@pytest.mark.parametrize("architecture", MODELS)
def test_its_text_is_that_of_transformers(architecture: str, tmp_path: Path) -> None:
    oracle, prompt = Oracle(tmp_path, saved(tmp_path, architecture), model_code="transformers"), random_tokens(30, 7)
    assert_equal(oracle)
    with torch.inference_mode():
        whole = oracle.reference.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0].tolist()
    assert oracle.driver().generate(Keys(), prompt, 8)[: len(whole) - 30] == whole[30:]
    about = oracle.worker.describe()[0]
    assert about.vision is None
    assert "embed_img" not in about.calls


@pytest.mark.parametrize(
    "architecture", ["Gemma4ForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"]
)
def test_groups_of_weights_are_those_of_the_part_that_makes_text(architecture: str, tmp_path: Path) -> None:
    model = saved(tmp_path, architecture)
    oracle, tokens = Oracle(tmp_path, model, quantization="int8"), random_tokens(30)
    [found] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert np.abs(found - oracle.expected(tokens)).max() < 1.5
    with pytest.raises(ConfigError, match=r"--quantization int4: model\.(language_model|layers)\."):
        Oracle(tmp_path, model, quantization="int4")


@pytest.mark.parametrize(("chunk", "context"), [(64, 61), (56, 56)])
def test_a_text_is_one_chunk_at_most_and_ends_where_queries_would_be_scaled(
    chunk: int, context: int, tmp_path: Path
) -> None:
    oracle = Oracle(tmp_path, saved(tmp_path, "Llama4ForConditionalGeneration", attention_chunk_size=chunk))
    assert oracle.worker.describe()[0].max_context == context
    assert_ragged_batch_equals(oracle, before=[3, 0], new=[40, 40])


def test_of_a_model_that_speaks_the_part_that_thinks_serves(tmp_path: Path) -> None:
    thinker = saved(tmp_path, "Qwen3OmniMoeThinkerForConditionalGeneration")
    own, names = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    save_file({f"thinker.{name}": tensor for name, tensor in names.items()}, tmp_path / "model.safetensors")
    whole = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe"}
    (tmp_path / "config.json").write_text(json.dumps({**whole, "thinker_config": own}))
    assert_equal(Oracle(tmp_path, thinker))


@pytest.mark.parametrize("old_names", [False, True])
def test_the_text_model_of_a_model_that_sees(old_names: bool, tmp_path: Path) -> None:
    import transformers

    text = {**SMALL, "head_dim": 16, "model_type": "mistral", "sliding_window": None}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    torch.manual_seed(0)
    reference: Any = transformers.Mistral3ForConditionalGeneration(config)
    reference.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, VOCAB)
    names = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("language_model.model.") for name in names)
    if not old_names:
        names = {name.replace("language_model.model.", "model.language_model."): each for name, each in names.items()}
        names = {name.replace("language_model.lm_head", "lm_head"): each for name, each in names.items()}
        save_file(names, tmp_path / "model.safetensors")
    oracle, tokens = Oracle(tmp_path, reference), random_tokens(50)
    [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


def test_values_of_the_text_model_may_be_in_the_outer_config(tmp_path: Path) -> None:
    """As in checkpoints of GLM-4.1V of older versions, which transformers reads as one of its default shape."""
    import transformers

    text = {**TURNED, "rope_parameters": {**TURNED["rope_parameters"], "partial_rotary_factor": 0.5}}
    text["rope_parameters"]["mrope_section"] = [1, 1, 2]
    torch.manual_seed(0)
    config = transformers.Glm4vConfig(text_config=text, vision_config={**BLOCKS, "intermediate_size": 64})
    reference: Any = transformers.Glm4vForConditionalGeneration(config)
    reference.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, VOCAB)
    nested = json.loads((tmp_path / "config.json").read_text())
    inner = nested.pop("text_config")
    (tmp_path / "config.json").write_text(json.dumps({**inner, **nested}))
    assert_equal(Oracle(tmp_path, reference))
