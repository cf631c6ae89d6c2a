"""Gated feed-forward layers with one product for gates and what they gate, and one kernel behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ....ops.interface import Activation, Linear, Ops
from ....ops.torch_ops import TorchOps
from .trial import Given, Random, assert_equal, names_of, with_parts

ACTIVATIONS: Sequence[Activation] = get_args(Activation)


@dataclass(frozen=True)
class MlpParts:
    """The parts of a module that ours stands for, by their names."""

    joined: tuple[str, ...]
    last: str
    activation: Activation
    whole = False

    def install(self, module: Any, gate_up: Linear, down: Linear, ops: Ops) -> None:
        """Makes the module run by our code."""
        for name in self.joined:
            del module._modules[name]
        module.forward = OwnMlp(self, gate_up, down, ops)


class OwnMlp:
    """The forward of such a module."""

    def __init__(self, parts: MlpParts, gate_up: Linear, down: Linear, ops: Ops) -> None:
        self._gate_up, self._down, self._ops, self._activation = gate_up, down, ops, parts.activation

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., hidden_size] to the same."""
        return self.flat(rows.reshape(-1, rows.shape[-1])).view(rows.shape)

    def flat(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        return self._down(self._ops.gated(self._gate_up(rows), self._activation))


def mlp_parts(module: Any) -> MlpParts | None:
    """How ours stands for a module; None: it is another function."""
    linear = {name: child for name, child in module._modules.items() if type(child) is nn.Linear}
    if len(linear) not in (2, 3) or len(names_of(module)) != 1:
        return None
    for names in permutations(linear):
        for activation in ACTIVATIONS:
            parts = MlpParts(names[:-1], names[-1], activation)
            if _fits(linear, parts) and _is_equal(module, parts):
                return parts
    return None


def _fits(linear: dict[str, nn.Linear], parts: MlpParts) -> bool:
    first, last = [linear[name] for name in parts.joined], linear[parts.last]
    outs = {one.out_features * len(first) for one in first}
    return outs == {2 * last.in_features} and {one.in_features for one in first} == {last.out_features}


@torch.no_grad()
def _is_equal(module: Any, parts: MlpParts) -> bool:
    random = Random()
    try:
        linear: dict[str, nn.Linear] = {name: module._modules[name] for name in (*parts.joined, parts.last)}
        given = {name: Given(random.rows(one.out_features)) for name, one in linear.items()}
        others = {name: random.copy_of(one) for name, one in module._modules.items() if name not in given}
        rows = random.rows(linear[parts.last].out_features)
        found = with_parts(module, {**module._modules, **others, **given})(rows.clone())
        joined = torch.cat([given[name].result for name in parts.joined], -1).flatten(0, 1)
        down = Given(given[parts.last].result.flatten(0, 1))
        assert_equal(found, OwnMlp(parts, lambda _: joined, down, TorchOps(rows.device, rows.dtype))(rows))
        assert_equal(given[parts.last].seen[0].flatten(0, 1), down.seen[0])
        for name in parts.joined:
            assert_equal(given[name].seen[0], rows)
        return all(len(one.seen) == 1 for one in given.values())
    except Exception:  # Unlike; and code of transformers may ask its parts for anything
        return False
