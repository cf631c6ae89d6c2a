"""What config.json of published models says, and default configurations do not, in small forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pie_inference.errors import CheckpointError
from pie_inference.models.registry import read_architecture
from testing.worker_batches import Extend, Keys
from tests.helpers.families import save_reference
from tests.helpers.oracle import VOCAB, Oracle, assert_close, random_tokens

SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LONGROPE = {"type": "longrope", "long_factor": [1.1] * 16, "short_factor": [1.0] * 16}
SCALES = {"short_mscale": 1.1, "long_mscale": 1.3, "original_max_position_embeddings": 64}
PHI_MOE = {"model_type": "phimoe", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
MULTIPLIERS = {"embedding_multiplier": 5.65, "key_multiplier": 0.39, "ssm_in_multiplier": 1.25}

PUBLISHED: dict[str, dict[str, Any]] = {
    "InternLM3ForCausalLM": {"model_type": "internlm3", "head_dim": 16},
    "IQuestCoderForCausalLM": {"model_type": "iquestcoder", "head_dim": 16},
    "PhiMoEForCausalLM": PHI_MOE | {"sliding_window": 512},
    "GraniteMoeHybridForCausalLM": {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 2}
    | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96, "mamba_n_heads": 8},
    "FalconH1ForCausalLM": {"model_type": "falcon_h1", "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128}
    | {"mamba_d_state": 16, "head_dim": 16, **MULTIPLIERS},
    "MiniCPM3ForCausalLM": {"model_type": "minicpm3", "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16}
    | {"qk_rope_head_dim": 32, "num_key_value_heads": 4}
    | {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 512}},
}


def context_of(config: dict[str, Any], wanted: int | None = None) -> int:
    """The context that a config.json serves."""
    import transformers  # noqa: F401  # its code proves that it does: no fast test does

    return read_architecture(config, wanted).context.served


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_a_published_form_is_exact(architecture: str) -> None:
    assert context_of({**SIZES, **PUBLISHED[architecture], "architectures": [architecture]}) == 512


def test_code_of_a_checkpoint_that_borrows_the_name_of_a_type_is_not_taken_for_it() -> None:
    with pytest.raises(CheckpointError, match="has LlamaForCausalLM for model_type 'llama'"):
        context_of({**SIZES, "architectures": ["BitnetForCausalLM"], "model_type": "llama"})


def test_a_type_of_another_name_is_told_the_one_that_transformers_knows() -> None:
    with pytest.raises(CheckpointError, match="DeepseekV3ForCausalLM of transformers, set model_type to 'deepseek_v3'"):
        context_of({**SIZES, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"})


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "BertModel"), ("mpnet", "MPNetModel"), ("stablelm", "StableLmModel")]
)
def test_a_model_for_embeddings_that_does_not_serve_is_told_which_do(kind: str, name: str) -> None:
    with pytest.raises(
        CheckpointError, match="of models for embeddings, those of Pie's own families serve, such as Qwen3"
    ):
        context_of({**SIZES, "architectures": [name], "model_type": kind})


def test_scales_of_rotations_are_those_of_the_served_context(tmp_path: Path) -> None:
    rotation = {**LONGROPE, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, **SCALES}
    settings = PHI_MOE | {"max_position_embeddings": 256, "rope_scaling": rotation, "sliding_window": 24}
    reference = save_reference(tmp_path, "PhimoeForCausalLM", **settings)
    for context, tokens in ((64, random_tokens(60)), (256, random_tokens(80))):
        oracle = Oracle(tmp_path, reference, max_context=context)
        [found] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
        assert_close(found, oracle.expected(tokens))


def test_a_model_of_states_alone_has_no_longest_text_of_its_own() -> None:
    config = {**SIZES, "architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    del config["max_position_embeddings"]
    assert [context_of(config), context_of(config, 100_000)] == [8192, 100_000]
