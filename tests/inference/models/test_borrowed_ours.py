"""Which parts of transformers' modules become ours: those that are equal on random rows, and no others."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from pie_inference.cpu_kernels.library import Library
from pie_inference.device.ranks import SingleRank
from pie_inference.models.borrowed.config import read_borrowed
from pie_inference.models.borrowed.ours.mlp import MlpParts, OwnMlp
from pie_inference.models.borrowed.ours.routers import take_routers
from pie_inference.models.borrowed.ours.trial import arguments
from pie_inference.models.borrowed.survey import Heads, Survey
from pie_inference.ops.cpu_ops import CpuOps
from tests.helpers.borrowed import SETTINGS
from tests.helpers.families import SMALL, WINDOW, save_reference
from tests.helpers.late import Late
from tests.helpers.oracle import Oracle, assert_ragged_batch_equals

if TYPE_CHECKING:
    from pie_inference.models.borrowed.ours.take import OwnModules

code, pages = Late("pie_inference.models.borrowed.code"), Late("pie_inference.models.borrowed.pages")
attention = Late("pie_inference.models.borrowed.ours.attention")
layer, take = Late("pie_inference.models.borrowed.ours.layer"), Late("pie_inference.models.borrowed.ours.take")


def found(architecture: str, **settings: Any) -> OwnModules:
    import transformers

    config = getattr(transformers, architecture).config_class(**{**SMALL, **settings})
    config = code.read(config.to_dict(), architecture)
    assert code.class_of(config).__name__ == architecture
    modules: OwnModules = take.find(code.make(config, torch.bfloat16, "meta"))
    return modules


def counts(ours: OwnModules) -> tuple[int, int, int]:
    """Attentions, feed-forward layers and whole layers of two."""
    kinds = [type(own.parts) for own in ours.modules]
    return kinds.count(attention.AttentionParts), kinds.count(MlpParts), len(ours.layers)


HEADS = {"head_dim": 16}
FAR_SCALE: dict[str, Any] = {
    "max_position_embeddings": 1 << 18,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "llama_4_scaling_beta": 0.1}
    | {"original_max_position_embeddings": 1 << 17},  # from there on queries are scaled
}


@pytest.mark.parametrize(
    ("architecture", "settings", "expected"),
    [
        ("LlamaForCausalLM", {}, (2, 2, 2)),
        ("LlamaForCausalLM", {"hidden_act": "gelu_pytorch_tanh", "attention_bias": True}, (2, 2, 2)),
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, (2, 0, 2)),  # not by the tangent
        ("Qwen3ForCausalLM", HEADS, (2, 2, 2)),
        ("Phi3ForCausalLM", {"num_key_value_heads": 4}, (2, 2, 2)),
        ("Olmo2ForCausalLM", {}, (2, 2, 0)),  # it normalizes what is added
        ("Gemma2ForCausalLM", {**HEADS, "sliding_window": WINDOW}, (2, 2, 0)),
        ("OlmoForCausalLM", {}, (2, 2, 0)),  # its norms have no weights
        ("OlmoForCausalLM", {"clip_qkv": 8.0}, (0, 2, 0)),
        ("GraniteForCausalLM", {}, (2, 2, 2)),
        ("GraniteForCausalLM", {"residual_multiplier": 0.5}, (2, 2, 0)),
        ("StableLmForCausalLM", {"partial_rotary_factor": 0.5}, (2, 2, 2)),
        ("StableLmForCausalLM", {"use_parallel_residual": True}, (2, 2, 0)),
        ("GlmForCausalLM", {**HEADS, "partial_rotary_factor": 0.5}, (0, 2, 0)),  # it turns neighbours
        ("Starcoder2ForCausalLM", {}, (2, 0, 2)),  # its feed-forward layer has no gate
        ("MixtralForCausalLM", {"num_local_experts": 4}, (2, 0, 2)),
        ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4}, (0, 0, 0)),
        ("Ministral3ForCausalLM", FAR_SCALE, (0, 2, 0)),
    ],
    ids=str,
)
def test_what_is_equal_becomes_ours(architecture: str, settings: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert counts(found(architecture, **settings)) == expected


def test_layers_say_whether_they_turn() -> None:
    ours = found("SmolLM3ForCausalLM", no_rope_layers=[1, 0]).modules
    assert [own.parts.turns for own in ours if isinstance(own.parts, attention.AttentionParts)] == [True, False]


def test_layers_turn_only_where_they_are_given_angles() -> None:
    """The code of this type has a rotation, and its model hands no angles on."""
    from transformers import CONFIG_MAPPING

    raw = CONFIG_MAPPING["granitemoehybrid"](**SETTINGS["granitemoehybrid"]).to_dict()
    ours = take.find(code.make(code.read(raw, "GraniteMoeHybridForCausalLM"), torch.bfloat16, "meta")).modules
    assert [own.parts.turns for own in ours if isinstance(own.parts, attention.AttentionParts)] == [True]
    assert read_borrowed(raw, "GraniteMoeHybridForCausalLM", None).difference < 5e-4


def old_names(rows: Tensor, past_key_values: object = None, **more: object) -> None: ...
def new_names(rows: Tensor, cache: object = None, **more: object) -> None: ...


@pytest.mark.parametrize(("code", "name"), [(old_names, "past_key_values"), (new_names, "cache")])
def test_a_cache_has_the_name_that_the_code_knows(code: Any, name: str) -> None:
    module = nn.Module()
    module.forward = code
    assert arguments(module, None).keys() & {"cache", "past_key_values"} == {name}


def test_norms_of_all_heads_need_all_features() -> None:
    [olmo2, qwen3] = (found(*each) for each in (("Olmo2ForCausalLM",), ("Qwen3ForCausalLM",)))
    assert {own.parts.whole for own in olmo2.modules} == {True, False}
    assert not any(own.parts.whole for own in qwen3.modules)


@pytest.mark.parametrize(
    ("architecture", "settings", "layers"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, True),
        ("Qwen3ForCausalLM", HEADS, True),
        ("Phi3ForCausalLM", {"num_key_value_heads": 4}, True),
        ("Olmo2ForCausalLM", {}, False),
        ("StableLmForCausalLM", {"partial_rotary_factor": 0.5, "qk_layernorm": False, "use_qkv_bias": True}, True),
        ("MixtralForCausalLM", {"num_local_experts": 4}, True),
    ],
    ids=str,
)
def test_models_of_ours_equal_transformers(
    architecture: str, settings: dict[str, Any], layers: bool, tmp_path: Path
) -> None:
    reference = save_reference(tmp_path, architecture, **settings)
    oracle = Oracle(tmp_path, reference, model_code="transformers")
    base: Any = oracle.worker._served.model
    kinds = {type(module.forward) for module in base._base.module.modules()}
    assert attention.OwnAttention in kinds
    assert (layer.OwnLayer in kinds) == layers
    assert (OwnMlp in kinds) == (architecture != "MixtralForCausalLM")
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 80, 25, 33], new=[30, 5, 1, 1, 1, 2])


@pytest.mark.parametrize("kind", ["deepseek_v3.DeepseekV3TopkRouter", "gpt_oss.GptOssTopKRouter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_router_gives_a_row_the_same_numbers_beside_any_others(
    kind: str, dtype: torch.dtype, library: Library
) -> None:
    """They are those of transformers, but for the last bits. DeepSeek's multiplies in float32 in any model."""
    import transformers

    module, name = kind.split(".")
    code = import_module(f"transformers.models.{module}.modeling_{module}")
    config = transformers.AutoConfig.for_model(module, hidden_size=1536, num_local_experts=32, n_routed_experts=32)
    torch.manual_seed(0)
    model = nn.ModuleList([getattr(code, name)(config)])
    for weight in model.parameters():
        nn.init.normal_(weight, std=1536**-0.5)
    rows, [router] = torch.randn(17, 1536, dtype=dtype), model.to(dtype)
    with torch.inference_mode():
        expected = router(rows)
        take_routers(model, CpuOps(library, dtype))
        found, alone = (
            router(rows),
            [torch.cat(each) for each in zip(*(router(row[None]) for row in rows), strict=True)],
        )
    assert all(torch.equal(*both) for both in zip(found, alone, strict=True))
    torch.testing.assert_close(
        found[0], expected[0], rtol=1e-2 if found[0].dtype == torch.bfloat16 else 1e-4, atol=1e-5
    )
    assert (router.weight.shape, router.weight.dtype) == ((32, 1536), dtype)


def test_a_norm_that_is_worked_out_ahead_counts_for_its_rows_alone() -> None:
    norm = nn.RMSNorm(8, eps=1e-6)
    alone, first, second = (
        layer.OwnLayer(0, (norm, norm), lambda rows, _: rows * 2, nn.Identity(), lambda rows: rows + 1)
        for _ in range(3)
    )
    first.next = second
    rows, others = torch.randn(2, 1, 3, 8)
    with torch.no_grad():
        once = alone(rows)
        torch.testing.assert_close(first(rows), once)
        torch.testing.assert_close(second(first(rows)), alone(once))
        first(rows)
        torch.testing.assert_close(second(others), alone(others))


class Plan:
    """An attention that keeps what it is given."""

    def __init__(self, values: int) -> None:
        self.values, self.seen = values, list[Tensor]()

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """The queries."""
        self.seen += (query, key_value)
        return query.flatten(1)


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("width", [16, 8])
def test_flat_rows_are_those_of_the_interface(kv_heads: int, width: int) -> None:
    """Beside an attention with four heads of 16, by which the cache is made."""
    first = Heads(4, 4, 16, 16, 1.0, None, None, False)
    calls = pages.Calls(
        Survey((Heads(4, kv_heads, width, width, 1.0, None, None, False), first), 64, 272, (), 1, 1), SingleRank()
    )
    query, key_value = torch.randn(5, 4, width), torch.randn(5, 2 * kv_heads, width)
    flat, other = Plan(width), Plan(width)
    found = pages.Pages(calls, flat).attend(None, query, key_value)
    key, value = (each.transpose(0, 1)[None] for each in key_value.chunk(2, 1))
    expected = pages.Pages(calls, other)(None, query.transpose(0, 1)[None], key, value, None)
    assert torch.equal(found, expected.flatten(2)[0])
    assert all(torch.equal(*both) for both in zip(flat.seen, other.seen, strict=True))
    assert flat.seen[1].shape == (5, 8, 16)
