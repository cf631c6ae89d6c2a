"""What the code of transformers asks of pages and kernels: the result of `census`, kept with the proof."""

from __future__ import annotations

import math

import msgspec

from ...attention.interface import AttentionSpec


class Heads(msgspec.Struct, frozen=True):
    """One call of attention in a forward."""

    num_heads: int
    num_kv_heads: int
    key_width: int  # numbers of a query and of a key
    value_width: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: bool
    frequencies: tuple[str, ...] = ()  # buffers of the model by which its keys are turned
    layer: int = 0  # of the cache: an attention over the keys and values of an earlier one has that one's

    @property
    def spec(self) -> AttentionSpec:
        """How it attends."""
        return AttentionSpec(self.scale, self.window, self.soft_cap, self.sinks)


class StatePart(msgspec.Struct, frozen=True):
    """One tensor of the state of a text."""

    layer: int
    number: int  # of the states of this layer
    recurrent: bool  # False: the last inputs of a convolution
    shape: tuple[int, ...]
    wide: bool  # whether it is float32 in any model
    shared: int | None = None  # the dimension of which each rank has a part, if they divide it; None: each has all

    def shape_on(self, ranks: int) -> tuple[int, ...]:
        """The shape of what each of so many ranks keeps."""
        place = self.shared
        if place is None or self.shape[place] % ranks:
            return self.shape
        return (*self.shape[:place], self.shape[place] // ranks, *self.shape[place + 1 :])


class Survey(msgspec.Struct, frozen=True):
    """What one forward of a model asks for."""

    attentions: tuple[Heads, ...]  # in the order of the calls
    hidden_size: int
    vocab_size: int
    irregular: tuple[str, ...]  # linear layers that run on other rows than those of the batch, or not once
    context: int  # most tokens of a text, unless the operator asks for more
    longest_context: int
    state: tuple[StatePart, ...] = ()
    fixed_positions: str = ""  # why keys cannot be moved to other positions; "": they can
    by_token: bool = False  # whether layers have embeddings of their own
    no_graphs: str = ""  # why a CUDA graph cannot record its decode steps; "": it can
    one_rank: str = ""  # why ranks cannot share the model; "": they can
    whole: bool = False  # whether code must see all features on each rank, though transformers' plan splits them

    def state_numbers(self, ranks: int = 1) -> int:
        """How many numbers of the state of a text each of so many ranks keeps."""
        return sum(math.prod(part.shape_on(ranks)) for part in self.state)

    @property
    def num_heads(self) -> int:
        return self.attentions[0].num_heads if self.attentions else 1

    @property
    def num_kv_heads(self) -> int:
        """Heads of the cache: attentions with fewer repeat theirs."""
        return max((one.num_kv_heads for one in self.attentions), default=1)

    @property
    def head_dim(self) -> int:
        """Width of a head in the cache: narrower keys and values are filled up with zeros."""
        return max((max(one.key_width, one.value_width) for one in self.attentions), default=64)

    @property
    def layers(self) -> tuple[Heads, ...]:
        """The first attention over each layer of the cache, in the order of these."""
        first = {one.layer: one for one in reversed(self.attentions)}
        return tuple(first[layer] for layer in sorted(first))

    @property
    def specs(self) -> tuple[AttentionSpec, ...]:
        """How each layer of the cache is attended to; one that nothing calls where there is none, as pages have a layer
        at least."""
        return tuple(one.spec for one in self.layers) or (AttentionSpec(1.0),)


class Proof(msgspec.Struct, frozen=True):
    """What was found out about a config.json: why it is refused, or how far its small form was from transformers."""

    refusal: str  # "": it serves
    survey: Survey | None
    difference: float  # largest one of a logit, relative to 1 plus its size
