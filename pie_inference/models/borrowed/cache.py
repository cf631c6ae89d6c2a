"""States of layers by transformers' code: its `Cache` is filled from slots before a forward, and read after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from ...device.ranks import Ranks
from ...recurrence.states import States
from .ours.shared_states import share_channels
from .survey import StatePart


def new_cache(config: Any, tokens: int = 0) -> Any:
    """A cache without states. Attention gets its own keys and values back from it, for pages keep them; `tokens` is
    what it says of their number."""
    cache: Any = DynamicCache(config=config)
    if config.model_type == "minimax":
        cache = _of_minimax(cache.layers)
    for layer in cache.layers:
        if isinstance(layer, CacheLayerMixin):
            layer.__dict__.update(update=lambda key, value, *_, **__: (key, value), get_seq_length=lambda: tokens)
    return cache


def _of_minimax(layers: list[Any]) -> Any:
    """A cache of the class that the code of this type asks for, over layers as other types have them."""
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    kind: Any = MiniMaxCache
    cache = kind()
    cache.layers = layers
    cache.get_linear_cache = lambda layer: layers[layer].recurrent_states[0]
    cache.set_linear_cache = lambda layer, state: layers[layer].recurrent_states.__setitem__(0, state)
    return cache


def parts_of(cache: Any) -> tuple[StatePart, ...]:
    """The states that a forward of one text has left in a cache."""
    found = []
    for index, layer in _stateful(cache):
        for number in range(layer.number_of_states):
            for recurrent, states in ((False, layer.conv_states), (True, layer.recurrent_states)):
                if (state := states[number]) is not None:
                    wide = state.dtype == torch.float32
                    found.append(StatePart(index, number, recurrent, tuple(state.shape[1:]), wide))
    return tuple(found)


class SlotCache:
    """Makes caches of the states in slots, [slots, 1, numbers]: all layers stand one behind the other."""

    def __init__(
        self, config: Any, parts: Sequence[StatePart], states: States, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        self._config, self._states, self._dtype, self._ranks = config, states, dtype, ranks
        self._shapes = [part.shape_on(ranks.size) for part in parts]
        ends = list(accumulate(map(math.prod, self._shapes)))
        self._places = [(part, slice(*place)) for part, place in zip(parts, pairwise([0, *ends]), strict=True)]
        shares = (part.layer for part in parts if not part.recurrent and part.shared is not None)
        self._shared = sorted(set(shares)) if ranks.size > 1 else []

    def load(self, tokens: int) -> Any:
        """The cache for the sequences of the batch that runs: one, or several of one row each. A sequence of several
        rows that begins a text has none in it, as the code of transformers tells by that."""
        cache, runs = new_cache(self._config, tokens), self._states.runs
        for layer in self._shared:
            share_channels(cache.layers[layer], self._ranks)
        if runs.longest > 1 and int(runs.reads[0]) < 0:
            return cache
        begins, reads, slots = (runs.reads < 0).unsqueeze(1), runs.reads.clamp(min=0), self._states.layer(0)
        some_begin = bool(begins.any())
        for (part, place), shape in zip(self._places, self._shapes, strict=True):
            state = slots[:, place][reads]  # one copy: states are large
            if some_begin:
                state.masked_fill_(begins, 0.0)
            self._put(cache.layers[part.layer], part, state.view(-1, *shape))
        return cache

    def _put(self, layer: Any, part: StatePart, state: Tensor) -> None:
        state = state if part.wide else state.to(self._dtype)
        layer.has_previous_state[part.number] = True
        if part.recurrent:
            layer.recurrent_states[part.number] = state
            layer.is_recurrent_states_initialized[part.number] = True
        else:
            layer.conv_states[part.number] = state
            layer.conv_kernel_size[part.number] = state.shape[-1]
            layer.is_conv_states_initialized[part.number] = True

    def save(self, cache: Any) -> None:
        """Leaves the states behind the last rows in the slots of these."""
        runs = self._states.runs
        writes, slots = runs.writes[runs.starts[1:] - 1], self._states.layer(0)
        kept = writes >= 0
        some = None if bool(kept.all()) else kept.nonzero()[:, 0]
        writes = writes if some is None else writes[some]
        for part, place in self._places:
            layer = cache.layers[part.layer]
            state = (layer.recurrent_states if part.recurrent else layer.conv_states)[part.number]
            state = state.flatten(1).to(self._states.dtype)
            slots[:, place][writes] = state if some is None else state[some]


def _stateful(cache: Any) -> list[tuple[int, Any]]:
    return [
        (index, layer) for index, layer in enumerate(cache.layers) if isinstance(layer, LinearAttentionCacheLayerMixin)
    ]
