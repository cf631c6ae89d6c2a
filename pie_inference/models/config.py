"""The configuration that several families share, read from a config.json of any dialect.

transformers 5 writes `rope_parameters` and `layer_types`; older versions wrote `rope_theta`, `rope_scaling` and
different window keys for each family. Unsupported models are refused here, before weights are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ..attention.interface import AttentionSpec
from ..device.ranks import Ranks, share
from ..errors import CheckpointError, NotOfFamily
from ..layers.rotary import RopeConfig
from ..layers.shape import AttentionShape
from ..ops.interface import Activation
from ..recurrence.batches import Cut
from ..recurrence.states import StateShape
from .config_json import ConfigJson, check_heads, wrong
from .rope_json import Context, check_dialects, read_context, read_rope
from .vision import VisionConfig

ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activations by their names in transformers."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only Transformer. Fields that only one family has are in a subclass, in that family's
    module."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tie_embeddings: bool
    attention_bias: bool
    activation: Activation
    context: Context
    rope: tuple[RopeConfig, ...]  # of each layer
    attention: tuple[AttentionSpec, ...]  # of each layer that has attention
    has_head: bool = field(default=True, kw_only=True)  # False: the checkpoint has none, and gives vectors of texts

    @property
    def max_context(self) -> int:
        """The most tokens that a sequence may have."""
        return self.context.served

    @property
    def vision(self) -> VisionConfig | None:
        """How it takes images; None: it takes none."""
        return None

    @property
    def state(self) -> StateShape | None:
        """What its layers keep of a text beside keys and values, over all ranks; None: nothing."""
        return None

    def state_of(self, ranks: Ranks) -> StateShape | None:
        """The part of `state` that one rank keeps: every number belongs to a head, and ranks share the heads."""
        whole = self.state
        return None if whole is None else StateShape(whole.layers, whole.numbers // ranks.size)

    @property
    def cut(self) -> Cut:
        """The pieces in which a batch runs."""
        return "none"

    @property
    def token_work(self) -> int:
        """About as many multiplications as one token takes in all layers."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def fixed_positions(self) -> str:
        """Why keys cannot be moved to other positions; "": they can."""
        if self.state is not None:
            return "its layers keep a state of the text before, in which tokens cannot be moved"
        for rope in self.distinct_ropes:
            if rope.follows_length:
                trained = rope.parameters["original_max_position_embeddings"]
                return (
                    f"its rotary positions ({rope.type!r}) depend on the length of the text beyond the {trained} "
                    f"positions that it was trained for, and {rope.context} are served"
                )
        return ""

    @property
    def by_token(self) -> bool:
        """Whether layers have embeddings of their own, so that each input has to be a token."""
        return False

    @property
    def code(self) -> str:
        """Says whose code runs it, and how that is known to be exact."""
        return "Pie's own"

    @property
    def distinct_ropes(self) -> list[RopeConfig]:
        """Each rotation once, in the order of the layers that use it first."""
        found: list[RopeConfig] = []
        for rope in self.rope:
            if rope not in found:
                found.append(rope)
        return found

    def heads_of(self, ranks: Ranks) -> tuple[int, int]:
        """The attention heads and the key-value heads of one rank. Raises CheckpointError if ranks do not divide
        them."""
        return share(ranks, self.num_heads, "attention heads"), share(ranks, self.num_kv_heads, "key-value heads")

    @property
    def heads(self) -> AttentionShape:
        """Sizes of an attention layer."""
        return AttentionShape(self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim)

    @classmethod
    def read(
        cls, config: ConfigJson, *, windows: Sequence[int | None] | None = None, partly: bool = False, **specific: Any
    ) -> Self:
        """Reads the fields that families share. `windows` are those of the layers, if they have any. `partly`: whether
        heads may be rotated in part. `specific` are the fields of a subclass, and fields that replace the ones read
        here."""
        check_dialects(config, by_layer="rope" in specific)
        num_layers, num_heads = config.whole("num_hidden_layers"), config.whole("num_attention_heads")
        head_dim = read_head_dim(config)
        shared: dict[str, Any] = {
            "architecture": config.get("architecture"),
            "vocab_size": config.whole("vocab_size"),
            "hidden_size": config.whole("hidden_size"),
            "intermediate_size": specific.get("intermediate_size") or config.whole("intermediate_size"),
            "num_layers": num_layers,
            "num_heads": num_heads,
            "num_kv_heads": read_kv_heads(config),
            "head_dim": head_dim,
            "norm_eps": config.number("rms_norm_eps", 1e-6),
            "tie_embeddings": config.flag("tie_word_embeddings"),
            "attention_bias": config.flag("attention_bias"),
            "activation": specific.get("activation") or read_activation(config, "hidden_act"),
            "context": read_context(config),
            "rope": (read_rope(config, head_dim, partly=partly),) * num_layers,
            "attention": tuple(AttentionSpec(head_dim**-0.5, window) for window in windows or [None] * num_layers),
        }
        return cls(**{**shared, **specific})

    def serving(self, max_context: int | None) -> Self:
        """The configuration for sequences of up to `max_context` tokens, or the most that this model can serve; None:
        its default context."""
        context = self.context.limited_to(max_context)
        return replace(self, context=context, rope=tuple(replace(rope, context=context.served) for rope in self.rope))


def read_head_dim(config: ConfigJson) -> int:
    """The size of an attention head; by default the heads share the hidden vector. Raises CheckpointError if they
    cannot."""
    size, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.get("head_dim") is None and size % heads:
        wanted = f"a multiple of num_attention_heads, which is {heads}, where head_dim is missing"
        raise wrong("hidden_size", wanted, size)
    return config.whole("head_dim", size // heads)


def read_kv_heads(config: ConfigJson) -> int:
    """The number of key-value heads; by default that of attention heads. Raises CheckpointError if it does not divide
    that."""
    num_heads = config.whole("num_attention_heads")
    num_kv_heads = config.whole("num_key_value_heads", num_heads)
    check_heads(num_heads, num_kv_heads)
    return num_kv_heads


def read_activation(config: ConfigJson, key: str, default: str = "silu") -> Activation:
    """The activation that `key` names. Raises NotOfFamily for an unknown one."""
    name = config.text(key, default)
    if name not in ACTIVATIONS:
        raise NotOfFamily(f"config.json: {key} {name!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def windows_by_type(config: ConfigJson, layer_types: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer, from `layer_types` of config.json. Raises CheckpointError for unknown types."""
    if len(layer_types) != config.whole("num_hidden_layers"):
        count = config.whole("num_hidden_layers")
        raise CheckpointError(f"config.json: layer_types has {len(layer_types)} entries for {count} layers")
    windows = {"full_attention": None, "sliding_attention": window}
    for unknown in (kind for kind in layer_types if kind not in tuple(windows)):
        raise CheckpointError(f"config.json: layer type {unknown!r} is not supported, only {', '.join(windows)}")
    return [windows[kind] for kind in layer_types]
