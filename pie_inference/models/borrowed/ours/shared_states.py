"""How ranks share the states of layers by transformers' code. Each rank runs convolutions for some of the channels and
recurrences for some of the heads, with its part of their states, and gathers what all ranks find: so code around them,
norms over all heads among it, is as on one rank."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from ....device.ranks import Ranks
from ..survey import StatePart
from .scans import keeps_state, names_of


@dataclass(frozen=True)
class _Rule:
    """Where the heads, or channels, of a function's tensors are. Tensors that have groups of heads in that place have a
    group for neighbouring heads."""

    places: Mapping[str, int]  # a dimension for each parameter that has some
    counted: str  # the parameter that has all heads
    found: int  # the dimension in the result, which may be the first of several
    kept: int  # the dimension in the state, from its end


_DELTA = _Rule(dict.fromkeys(("query", "key", "value", "g", "beta"), 2), "value", 2, -3)
_SCAN = {"hidden_states": 1, "dt": 1, "A": 0, "D": 0, "z": 1}
_GROUPED = {"D": 0, "A": 0, "dt_bias": 0}
CONVOLUTIONS: Mapping[str, _Rule] = {
    "causal_conv1d_fn": _Rule({"weight": 0, "bias": 0}, "weight", 1, -2),  # its rows come from the cache
    "causal_conv1d_update": _Rule({"hidden_states": 1, "weight": 0, "bias": 0}, "weight", 1, -2),
}
RECURRENCES: Mapping[str, _Rule] = {
    "mamba_selective_scan": _Rule(_SCAN | {"delta_bias": 0}, "hidden_states", 1, -2),
    "mamba_selective_state_update": _Rule(_SCAN | {"dt_bias": 0}, "hidden_states", 1, -2),
    "mamba2_chunk_scan": _Rule(_GROUPED | dict.fromkeys(("hidden_states", "dt", "B", "C"), 2), "hidden_states", 2, -3),
    "mamba2_selective_state_update": _Rule(
        _GROUPED | dict.fromkeys(("hidden_states", "dt", "B", "C", "z"), 1), "hidden_states", 1, -3
    ),
    "torch_chunk_gated_delta_rule": _DELTA,
    "torch_recurrent_gated_delta_rule": _DELTA,
    "chunk_kimi_delta_attention": _DELTA,
    "recurrent_kimi_delta_attention": _DELTA,
}
"""The functions by which code of transformers goes on from a state."""

_ranks: ContextVar[Ranks | None] = ContextVar("_ranks", default=None)
"""Who shares what runs now; None: nobody."""


def shared_parts(model: Any, parts: Sequence[StatePart]) -> tuple[StatePart, ...]:
    """The parts of a state, with what ranks can share of them: what is only used by the functions above."""
    used: dict[int, set[str]] = {}
    for module in filter(keeps_state, model.modules()):
        used.setdefault(module.layer_idx, set()).update(names_of(module))

    def shared(part: StatePart) -> StatePart:
        rules = RECURRENCES if part.recurrent else CONVOLUTIONS
        places = {len(part.shape) + rule.kept for name, rule in rules.items() if name in used.get(part.layer, ())}
        return msgspec.structs.replace(part, shared=places.pop()) if len(places) == 1 else part

    return tuple(map(shared, parts))


def share_states(model: Any, ranks: Ranks) -> None:
    """Makes layers run with this rank's parts of their states."""
    for module in filter(keeps_state, model.modules()):
        code = sys.modules[type(module).__module__]
        for name, rule in {**CONVOLUTIONS, **RECURRENCES}.items():
            function = getattr(code, name, None)
            if function is not None and not isinstance(function, _Shared):
                setattr(code, name, _Shared(function, rule))
        module.forward = partial(_sharing, ranks, module.forward)


def share_channels(layer: Any, ranks: Ranks) -> None:
    """Makes a layer of a cache keep this rank's channels of the inputs of its convolution."""
    layer.update_conv_state = partial(_keep_own, layer.update_conv_state, ranks)


def _keep_own(update: Callable[..., Tensor], ranks: Ranks, rows: Tensor, *given: Any, **more: Any) -> Tensor:
    count = rows.shape[1]
    own = rows if count % ranks.size else _own(rows, 1, count, ranks)
    return update(own, *given, **more)


def _sharing(ranks: Ranks, forward: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The forward of a layer."""
    with _shared_by(ranks):
        return forward(*given, **more)


@contextmanager
def _shared_by(ranks: Ranks) -> Iterator[None]:
    before = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(before)


class _Shared:
    """A function of transformers' code, of which each rank runs its part, if they divide it."""

    def __init__(self, whole: Callable[..., Any], rule: _Rule) -> None:
        self.whole, self._rule = whole, rule
        self._names = tuple(inspect.signature(whole).parameters)

    def __call__(self, *given: Any, **more: Any) -> Any:
        ranks, rule = _ranks.get(), self._rule
        if ranks is None:
            return self.whole(*given, **more)
        placed = self._names[: len(given)]
        named = {**dict(zip(placed, given, strict=True)), **more}
        count = named[rule.counted].shape[rule.places[rule.counted]]
        if count % ranks.size:
            return self.whole(*given, **more)
        for name, place in rule.places.items():
            if named.get(name) is not None:
                named[name] = _own(named[name], place, count, ranks)
        first = [named.pop(name) for name in placed]
        found = self.whole(*first, **named)
        if isinstance(found, tuple):
            return (_gathered(found[0], rule.found, ranks), *found[1:])
        return _gathered(found, rule.found, ranks)


def _own(vectors: Tensor, place: int, count: int, ranks: Ranks) -> Tensor:
    """This rank's part of `count` heads, or of their groups, which are in one dimension."""
    own = count // ranks.size
    first, together = ranks.rank * own, count // vectors.shape[place]
    if own % together and together % own:  # a group for some heads of two ranks
        vectors, together = vectors.repeat_interleave(together, place), 1
    return vectors.narrow(place, first // together, max(1, own // together))


def _gathered(found: Tensor, place: int, ranks: Ranks) -> Tensor:
    """What all ranks have found, of which each has a part of one dimension."""
    rest = found.shape[place + 1 :]
    return torch.unflatten(ranks.all_gather(found.flatten(place)), -1, (-1, *rest))
