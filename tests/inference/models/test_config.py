"""config.json in the dialects that transformers wrote over time, and what is refused before weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pie_inference.errors import CheckpointError
from pie_inference.layers.rotary import Rotary
from pie_inference.models.config import ModelConfig
from pie_inference.models.registry import read_architecture

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5], "long_factor": [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]}
LONGROPE: dict[str, Any] = {
    "max_position_embeddings": 16384,
    "original_max_position_embeddings": 1024,
    "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0,
}
OLD: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3.1": (
        "LlamaForCausalLM",
        {"rope_theta": 500000.0, "tie_word_embeddings": True}
        | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}
        | {"rope_scaling.original_max_position_embeddings": 1024},
    ),
    "Llama 2, all heads with keys": ("LlamaForCausalLM", {"num_key_value_heads": None, "rope_scaling": None}),
    "linear": ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "Mistral": ("MistralForCausalLM", {"sliding_window": 512, "head_dim": 32}),
    "Mistral without its window": ("MistralForCausalLM", {"sliding_window": None, "head_dim": None}),
    "Mistral that says nothing of it": ("MistralForCausalLM", {}),
    "Qwen2.5": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": False, "sliding_window": 512, "max_window_layers": 4, "rope_theta": 1e6},
    ),
    "Qwen2 with windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 4},
    ),
    "Qwen2 with windows that are null": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 4},
    ),
    "Qwen2 with windows everywhere": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
    ),
    "Qwen2.5, stretched": (
        "Qwen2ForCausalLM",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
    ),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 32, "attention_bias": False, "rope_scaling": None}),
    "Gemma 2": ("Gemma2ForCausalLM", {"sliding_window": 512, "query_pre_attn_scalar": 20, "head_dim": 32}),
    "Gemma 3": (
        "Gemma3ForCausalLM",
        {"sliding_window": 512, "sliding_window_pattern": 3, "rope_theta": 500000.0, "rope_local_base_freq": 5000.0}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "Gemma 3 with one base": (
        "Gemma3ForCausalLM",
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_type": "default"}}},
    ),
    "Phi-3": ("Phi3ForCausalLM", {"sliding_window": 2047, "original_max_position_embeddings": 4096}),
    "Phi-3 long": ("Phi3ForCausalLM", LONGROPE | {"rope_scaling": {"type": "longrope", **FACTORS}}),
    "Granite": (
        "GraniteForCausalLM",
        {"embedding_multiplier": 12, "attention_multiplier": 0.02, "logits_scaling": 8, "residual_multiplier": 0.2},
    ),
    "OLMo 2": ("Olmo2ForCausalLM", {"rope_theta": 500000}),
    "Mixtral": ("MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "Qwen3-MoE": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": True}
        | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "head_dim": 32},
    ),
    "Qwen3-MoE with windows": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "use_sliding_window": True},
    ),
}


def old_config(name: str) -> dict[str, Any]:
    """A config.json as transformers 4 wrote it."""
    architecture, changes = OLD[name]
    config = {**SIZES, **changes, "architectures": [architecture]}
    for key in [key for key in config if "." in key]:
        outer, inner = key.split(".")
        config[outer] = {**config[outer], inner: config.pop(key)}
    return config


def as_written_today(config: dict[str, Any]) -> dict[str, Any]:
    """The same as transformers writes it now."""
    import transformers

    kind = getattr(transformers, config["architectures"][0]).config_class
    written: dict[str, Any] = kind.from_dict(config).to_dict()
    return written


def angles(model: ModelConfig) -> torch.Tensor:
    """Of each layer's rotation at some positions."""
    positions = torch.tensor([1, 100, 1000])
    rotations = [Rotary(rope, torch.device("cpu")).at(positions, torch.float32) for rope in model.rope]
    return torch.stack([torch.cat([each.cos, each.sin]) for each in rotations])


@pytest.mark.parametrize("name", OLD)
def test_old_and_new_dialects_mean_the_same(name: str) -> None:
    old = read_architecture(old_config(name))
    new = read_architecture(as_written_today(old_config(name)))
    assert replace(old, rope=()) == replace(new, rope=())
    torch.testing.assert_close(angles(old), angles(new))


@pytest.mark.parametrize("name", OLD)
def test_norms_are_those_of_transformers_by_default(name: str) -> None:
    config = old_config(name)
    del config["rms_norm_eps"]
    assert read_architecture(config).norm_eps == as_written_today(config)["rms_norm_eps"]


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_early_names_of_longrope(kind: str) -> None:
    config = old_config("Phi-3 long")
    early = read_architecture({**config, "rope_scaling": {**FACTORS, "type": kind}})
    torch.testing.assert_close(angles(early), angles(read_architecture(config)), rtol=0, atol=0)
    assert early.context == read_architecture(config).context


def test_windows_are_those_of_the_family() -> None:
    def windows(name: str) -> list[int | None]:
        return [spec.window for spec in read_architecture(old_config(name)).attention]

    assert windows("Mistral") == [512] * 8
    assert windows("Mistral without its window") == [None] * 8
    assert windows("Mistral that says nothing of it") == [4096] * 8
    assert windows("Qwen2.5") == [None] * 8
    assert windows("Qwen2 with windows") == [None] * 4 + [512] * 4
    assert windows("Qwen2 with windows that are null") == [None] * 8
    assert windows("Qwen2 with windows everywhere") == [512] * 8
    assert windows("Qwen3-MoE with windows") == [4096] * 8
    assert windows("Gemma 2") == [512, None] * 4
    assert windows("Gemma 3") == [512, 512, None, 512, 512, None, 512, 512]


def test_layers_with_experts_are_those_of_the_config() -> None:
    model: Any = read_architecture(old_config("Qwen3-MoE"))
    assert model.sparse == (False, True, False, False, False, True, False, True)
    assert (model.moe.num_experts, model.moe.experts_per_token, model.moe.renormalize) == (16, 4, True)


def test_a_mixture_in_all_layers_needs_no_size_of_others() -> None:
    """As transformers takes it: the key is of older versions."""
    config = {**old_config("Qwen3-MoE"), "architectures": ["Qwen3_5MoeForCausalLM"], "intermediate_size": None}
    assert read_architecture(config).intermediate_size == 512


def test_gemma_3_with_images_leaves_out_what_is_usual() -> None:
    """The config.json of Gemma 3 4B, as it is published, without its vision part."""
    text: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "model_type": "gemma3"}
    model = read_architecture(raw)
    assert (model.num_heads, model.num_kv_heads, model.head_dim, model.vocab_size) == (8, 4, 256, 262208)
    assert (model.max_context, model.tie_embeddings, model.activation) == (131072, True, "gelu_tanh")
    assert [model.rope[layer].theta for layer in (0, 5)] == [1e4, 1e6]
    assert [model.attention[layer].window for layer in (4, 5, 6)] == [1024, None, 1024]


@pytest.mark.parametrize("family", ["Gemma3", "Qwen3_5", "Qwen3_5Moe"])
@pytest.mark.parametrize("inner", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}], ids=str)
@pytest.mark.parametrize("outer", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}], ids=str)
def test_a_model_with_images_ties_its_head_as_transformers_does(
    outer: dict[str, bool], inner: dict[str, bool], family: str
) -> None:
    import transformers

    kind = getattr(transformers, f"{family}ForConditionalGeneration")
    text = {**SIZES, "head_dim": 16, "num_hidden_layers": 4, "num_experts": 8, "moe_intermediate_size": 8, **inner}
    raw = {"architectures": [kind.__name__], "text_config": text, **outer}
    with torch.device("meta"):
        reference = kind(kind.config_class.from_dict(raw))
    assert read_architecture(raw).tie_embeddings == ("lm_head.weight" in reference.all_tied_weights_keys)


@pytest.mark.parametrize(
    ("name", "wanted", "served"),
    [
        ("Llama 3.1", None, 4096),
        ("Llama 3.1", 1000, 1000),
        ("Llama 3.1", 10**6, 4096),
        ("linear", None, 4096),
        ("linear", 10**6, 8192),
        ("Qwen2.5, stretched", None, 16384),
        ("Phi-3 long", None, 1024),
        ("Phi-3 long", 500, 500),
        ("Phi-3 long", 8000, 8000),
        ("Phi-3 long", 10**6, 16384),
    ],
)
def test_the_context_can_be_chosen(name: str, wanted: int | None, served: int) -> None:
    assert read_architecture(old_config(name), wanted).max_context == served


@pytest.mark.parametrize("name", ["Qwen2.5", "Gemma 3"])
def test_a_model_whose_tokens_see_those_behind_them_is_refused(name: str) -> None:
    """As transformers takes it, whatever the type: some models for embeddings are such."""
    config = old_config(name)
    for raw in (config | {"is_causal": False}, config | {"text_config": config | {"is_causal": False}}):
        with pytest.raises(CheckpointError, match="is_causal false is not supported: its tokens see those behind"):
            read_architecture(raw)
    read_architecture(config | {"is_causal": True})


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("name", [name for name in OLD if not name.startswith("Phi-3")])
def test_heads_that_are_rotated_in_part_are_refused_where_transformers_rotates_all(name: str, within: bool) -> None:
    config, factor = old_config(name), {"partial_rotary_factor": 0.5}
    parameters = {"rope_type": "default", **(config.get("rope_scaling") or {}), **factor}
    changed = {**config, "rope_parameters": None, "rope_scaling": parameters} if within else config | factor
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor 0.5 is not supported"):
        read_architecture(changed)
    read_architecture({**config, "partial_rotary_factor": 1.0})


def test_long_factors_are_used_only_for_a_long_context() -> None:
    short, long = (read_architecture(old_config("Phi-3 long"), wanted) for wanted in (1024, 1025))
    inverse = 10000.0 ** -(torch.arange(0, 12, 2) / 12)
    scale = (1 + torch.tensor(16.0).log() / torch.tensor(1024.0).log()).sqrt()
    for model, factors in ((short, FACTORS["short_factor"]), (long, FACTORS["long_factor"])):
        expected = (inverse / torch.tensor(factors) * 3).cos() * scale
        rotation = Rotary(model.rope[0], torch.device("cpu")).at(torch.tensor([3]), torch.float32)
        torch.testing.assert_close(rotation.cos[0, 0, :6], expected)


def test_dynamic_frequencies_are_those_of_the_served_context() -> None:
    """As transformers computes them for a sequence of that length."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 1024}  # which it leaves alone
    raw = {**SIZES, "architectures": ["LlamaForCausalLM"], "rope_scaling": scaling}
    assert read_architecture(raw).fixed_positions == ""
    for wanted, length in ((None, 4096), (10000, 10000), (10**6, 16384)):
        config = LlamaConfig.from_dict(as_written_today(raw))
        inverse, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=length)
        rotation = Rotary(read_architecture(raw, wanted).rope[0], torch.device("cpu"))
        torch.testing.assert_close(rotation.at(torch.tensor([5]), torch.float32).cos[0, 0, :8], (inverse * 5).cos())


@pytest.mark.parametrize(("wanted", "kind"), [(None, ""), (5000, "dynamic"), (None, "longrope"), (5000, "longrope")])
def test_tokens_are_not_moved_where_the_rotation_follows_the_length_of_the_text(wanted: int | None, kind: str) -> None:
    raw = {**SIZES, **LONGROPE, "architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "longrope", **FACTORS}}
    if kind != "longrope":
        raw = {**SIZES, "architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    model = read_architecture(raw, wanted)
    if wanted is None:
        assert model.fixed_positions == "", "the positions that it was trained for"
    else:
        assert f"its rotary positions ({kind!r}) depend on the length of the text beyond the" in model.fixed_positions
        assert model.fixed_positions.endswith(" and 5000 are served")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Llama 3.1", {"architectures": []}, r"architectures must be a list of names, not \[\]"),
        ("Llama 3.1", {"architectures": "LlamaForCausalLM"}, r"architectures must be a list"),
        ("Gemma 2", {"use_bidirectional_attention": True}, r"use_bidirectional_attention True is not supported"),
        ("Gemma 3", {"use_bidirectional_attention": True}, r"use_bidirectional_attention True is not supported"),
        ("Gemma 3", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping 50.0 is not supported"),
        ("Gemma 3", {"rope_scaling": {"type": "linear", "factor": 8.0}}, r"'type', .* ignores: call it rope_type"),
        ("Gemma 3", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False}}, r"truncate false"),
        ("Llama 3.1", {"rope_scaling": {"type": "spiral"}}, r"rope type 'spiral' is not supported, only default, "),
        (
            "Llama 3.1",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            r"rope_parameters and rope_scaling contradict each other: keep one of them",
        ),
        (
            "Gemma 3",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {}}},
            r"rope_parameters and rope_scaling contradict each other: keep one of them",
        ),
        ("Gemma 3 with one base", {"rope_parameters": {"rope_theta": 5e5}}, r"has 'rope_theta', .*: move it into full"),
        ("Gemma 3", {"original_max_position_embeddings": 64}, r"original_max_position_embeddings 64 is not supported"),
        ("OLMo 2", {"rope_parameters": {"full_attention": {}}}, r"has 'full_attention', .*: move what it has one"),
        (
            "linear",
            {"rope_scaling": {"type": "linear"}},
            r"rope type 'linear' needs a 'factor' of at least 1, not None",
        ),
        ("Llama 3.1", {"head_dim": 15}, r"head_dim must be even, also times partial_rotary_factor, which is 1, not 15"),
        ("Phi-3 long", {"head_dim": 18}, r"head_dim must be even, .*, which is 0.75, not 18"),
        ("Llama 3.1", {"num_attention_heads": 6}, r"hidden_size must be a multiple of num_attention_heads, which is 6"),
        ("linear", {"rope_scaling": "linear"}, r"rope_scaling must be an object, not 'linear'"),
        (
            "Qwen3",
            {"layer_types": ["full_attention"] * 7 + ["linear_attention"], "use_sliding_window": True},
            r"layer type 'linear_attention'",
        ),
        (
            "Qwen3",
            {"layer_types": ["full_attention"] * 3, "use_sliding_window": True},
            r"layer_types has 3 entries for 8 layers",
        ),
        ("Qwen3", {"num_hidden_layers": None}, r"'num_hidden_layers' is missing"),
        ("Qwen3", {"num_hidden_layers": 10_000}, r"num_hidden_layers must be a whole number from 1 to 512, not 10000"),
        (
            "Gemma 3",
            {"num_hidden_layers": 10_000},
            r"num_hidden_layers must be a whole number from 1 to 512, not 10000",
        ),
        ("Qwen3", {"hidden_size": "big"}, r"hidden_size must be a whole number from 1 to 2147483647, not 'big'"),
        (
            "Qwen3",
            {"num_key_value_heads": 3},
            r"num_attention_heads must be a multiple of num_key_value_heads, which is 3, not ",
        ),
        ("Qwen3", {"rms_norm_eps": -1}, r"rms_norm_eps must be a number that is at least 0, not -1"),
        ("Qwen3", {"tie_word_embeddings": "yes"}, r"tie_word_embeddings must be true or false, not 'yes'"),
        (
            "Qwen3-MoE",
            {"num_experts_per_tok": 17},
            r"num_experts_per_tok must be a whole number from 1 to 16, the number of experts, not 17",
        ),
        ("Qwen3-MoE", {"num_experts": None}, r"'num_experts' is missing"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_architecture({**old_config(name), **changes})


@pytest.mark.parametrize(
    ("name", "kind", "key"), [("Llama 3.1", "llama", "hidden_act"), ("Gemma 2", "gemma2", "hidden_activation")]
)
def test_an_activation_that_only_transformers_has_is_left_to_its_code(name: str, kind: str, key: str) -> None:
    import transformers  # noqa: F401  # its code proves that it is exact: no fast test does

    config = {**old_config(name), "model_type": kind}
    assert read_architecture({**config, key: "relu"}).code.startswith("transformers ")
    for refused, code in (("relu", "own"), ("spiral", "auto")):
        with pytest.raises(CheckpointError, match=f"{key} {refused!r} is not supported, only silu"):
            read_architecture({**config, key: refused}, code=code)


def variations(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With each value, at any depth, replaced by others that do not belong there."""
    for key, value in config.items():
        others: tuple[Any, ...] = ("text", -1, [], {}, None, True, float("nan"), [{}], 10**12)
        for other in others:
            yield {**config, key: other}
        if isinstance(value, dict):
            yield from ({**config, key: inner} for inner in variations(value))


@pytest.mark.parametrize("name", OLD)
def test_whatever_a_config_says_it_is_read_or_refused(name: str) -> None:
    refused = [message for config in variations(old_config(name)) if (message := refusal(config))]
    assert len(refused) > 20
    assert all(message.startswith("config.json: ") for message in refused)


def refusal(config: dict[str, Any]) -> str | None:
    try:
        read_architecture(config, code="own")
    except CheckpointError as error:
        return str(error)
    return None


def test_wrong_rotary_parameters_are_named() -> None:
    raw = {
        **old_config("Phi-3 long"),
        "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    }
    with pytest.raises(CheckpointError, match=r"long_factor and short_factor must have 6 numbers each"):
        read_architecture(raw)
    raw = {**old_config("Llama 3.1"), "rope_scaling": {"type": "llama3", "factor": 8.0}}
    with pytest.raises(CheckpointError, match=r"rope type 'llama3' needs 'low_freq_factor'"):
        read_architecture(raw)
