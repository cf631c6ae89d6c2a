"""The text model of Qwen3.5 with mixtures of experts, and Qwen3-Next (Qwen team 2025), which came before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ...layers.gated_delta import blocks_by_head
from ...layers.mlp import FeedForward, GatedMlp
from ...layers.moe import MixtureOfExperts, MoeShape
from ...loading.weights import Block, WeightLoader
from ..config_json import ConfigJson
from ..decoder import Decoder
from . import qwen3_5, qwen3_moe


class WithSharedExpert:
    """The sum of a mixture and of one more expert, which has a gate for each row. Implements `FeedForward`."""

    def __init__(
        self, weights: WeightLoader, prefix: str, hidden_size: int, inner_size: int, mixture: FeedForward
    ) -> None:
        self._mixture, self.capturable = mixture, mixture.capturable
        self._shared = GatedMlp(weights, f"{prefix}.shared_expert", hidden_size, inner_size)
        self._gate = weights.linear([Block(f"{prefix}.shared_expert_gate", 1)], hidden_size, role="router")

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        share = self._gate(rows).sigmoid()
        return self._mixture(rows).addcmul_(share, self._shared(rows))


DEFAULTS = {
    **qwen3_5.DEFAULTS,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "shared_expert_intermediate_size": 512,
}
NEXT_DEFAULTS = {**DEFAULTS, "norm_topk_prob": True, "num_experts": 512, "num_experts_per_tok": 10}


@dataclass(frozen=True)
class Qwen35MoeConfig(qwen3_5.Qwen35Config):
    """The configuration of a Qwen3.5 with a mixture of experts, and one shared expert, in its sparse layers."""

    moe: MoeShape
    shared_size: int
    sparse: tuple[bool, ...]  # for each layer, whether it has experts


def read(config: ConfigJson) -> Qwen35MoeConfig:
    """Reads a config.json, or its `text_config` if the model takes images. All layers have experts, whose weights are
    made to add up to 1. Whether the head is the table is said outside of `text_config`."""
    tied = config.flag("tie_word_embeddings")
    config = config.within("text_config").with_defaults(**DEFAULTS)
    moe = replace(qwen3_moe.read_moe(config), renormalize=True)
    return replace(_read(config, moe, (True,) * config.whole("num_hidden_layers")), tie_embeddings=tied)


def read_next(config: ConfigJson) -> Qwen35MoeConfig:
    """Reads the config.json of a Qwen3-Next."""
    config = config.with_defaults(**NEXT_DEFAULTS)
    return _read(config, qwen3_moe.read_moe(config), qwen3_moe.sparse_layers(config, config.whole("num_hidden_layers")))


def _read(config: ConfigJson, moe: MoeShape, sparse: tuple[bool, ...]) -> Qwen35MoeConfig:
    shared = config.whole("shared_expert_intermediate_size")
    inner = config.whole("intermediate_size", shared if all(sparse) else None)
    fields = qwen3_5.hybrid_fields(config) | {"intermediate_size": inner, "moe": moe, "shared_size": shared}
    return Qwen35MoeConfig.read(config, partly=True, **fields, sparse=sparse)


def build(config: Qwen35MoeConfig, weights: WeightLoader) -> Decoder:
    """Loads Qwen3_5MoeForCausalLM, or the text model of Qwen3_5MoeForConditionalGeneration."""
    return qwen3_5.hybrid_decoder(config, weights, _feed_forward(config, weights))


def build_next(config: Qwen35MoeConfig, weights: WeightLoader) -> Decoder:
    """Loads Qwen3NextForCausalLM."""
    return qwen3_5.hybrid_decoder(config, weights, _feed_forward(config, weights), blocks_by_head)


def _feed_forward(config: Qwen35MoeConfig, weights: WeightLoader) -> Callable[[int, str], FeedForward]:
    size = config.hidden_size

    def feed_forward(index: int, prefix: str) -> FeedForward:
        if not config.sparse[index]:
            return GatedMlp(weights, prefix, size, config.intermediate_size)
        mixture = MixtureOfExperts(weights, prefix, config.moe, config.activation)
        return WithSharedExpert(weights, prefix, size, config.shared_size, mixture)

    return feed_forward
