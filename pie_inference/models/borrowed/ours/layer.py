"""Layers that normalize before attention and before what follows it, without a call of the module between the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....ops.interface import Linear
from .attention import OwnAttention, angles_of
from .mlp import OwnMlp
from .trial import ANGLES, ROWS, Given, Random, arguments, assert_equal, names_of, with_parts

AfterAdding = Callable[[Tensor, Tensor], Tensor]
"""Adds rows to others in place, and normalizes the sum."""


@dataclass(frozen=True)
class LayerParts:
    """The parts of a module that ours stands for, by their names."""

    first: str  # the norm before attention
    attention: str
    second: str  # the norm before what follows
    following: str
    place: int  # of the angles among the other arguments of its forward

    def install(self, module: Any) -> None:
        """Makes the module run by our code. Its parts are those that it has by now."""
        parts = module._modules
        attention, following = parts[self.attention].forward, parts[self.following]
        assert isinstance(attention, OwnAttention)
        flat = following.forward.flat if isinstance(following.forward, OwnMlp) else None
        norms = (parts[self.first], parts[self.second])
        module.forward = OwnLayer(self.place, norms, attention.flat, following, flat)


def after_adding(norm: Any) -> AfterAdding:
    """A norm behind an addition."""
    found: AfterAdding | None = getattr(norm, "after_adding", None)
    return (lambda residual, rows: norm(residual.add_(rows))) if found is None else found


class OwnLayer:
    """The forward of such a module."""

    def __init__(
        self,
        place: int,
        norms: tuple[nn.Module, nn.Module],
        attention: Callable[[Tensor, Any], Tensor],
        following: nn.Module,
        flat: Linear | None,
    ) -> None:
        """`flat` is what follows on flat rows, if it is ours."""
        first, second = norms
        self._place, self._first, self._attention = place, first.forward, attention
        self._following, self._flat = following, flat
        self._after_adding, self._second = after_adding(first), after_adding(second)
        self.next: OwnLayer | None = None
        """The one that runs behind this one, most likely: its first norm shares a kernel with the last addition."""
        self._begun: tuple[Tensor, Tensor, Tensor] | None = None  # what it is given, the same as flat rows, their norm

    def __call__(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        """[batch, rows, hidden_size] to the same."""
        shape, begun, self._begun = hidden_states.shape, self._begun, None
        if begun is not None and begun[0] is hidden_states:
            _, rows, normed = begun
        else:
            rows = hidden_states.reshape(-1, shape[-1])
            normed = self._first(rows)
        added = self._attention(normed, angles_of(self._place, others, named))
        normed = self._second(added, rows)
        change = self._following(normed.view(shape)).view(added.shape) if self._flat is None else self._flat(normed)
        if self.next is None:
            return added.add_(change).view(shape)
        ahead = self.next._after_adding(added, change)
        found = added.view(shape)
        self.next._begun = (found, added, ahead)
        return found


class _Attention(nn.Module):
    """Stands for an attention: it remembers what it was given, and has its results in advance."""

    def __init__(self, result: Tensor) -> None:
        super().__init__()
        self.result, self.seen = result, list[tuple[Tensor, Any]]()

    def forward(self, hidden_states: Tensor, *_: Any, position_embeddings: Any = None, **__: Any) -> Any:
        self.seen.append((hidden_states.flatten(0, -2).clone(), position_embeddings))
        return self.result.clone(), None

    def flat(self, rows: Tensor, angles: Any) -> Tensor:
        """Like `OwnAttention.flat`."""
        self.seen.append((rows.clone(), angles))
        return self.result.flatten(0, 1)


def layer_parts(module: Any, attentions: set[nn.Module]) -> LayerParts | None:
    """How ours stands for a module whose attention is one of those that ours stand for; None: it is another
    function."""
    children = {name: child for name, child in module._modules.items() if any(True for _ in child.parameters())}
    own = [name for name, child in children.items() if child in attentions]
    norms = [name for name, child in children.items() if not child._modules]
    others, names = children.keys() - {*own, *norms}, names_of(module)
    if len(own) != 1 or len(norms) != 2 or len(others) != 1 or names[:1] != ["hidden_states"] or ANGLES not in names:
        return None
    place = names.index(ANGLES) - 1
    for first, second in (norms, norms[::-1]):
        parts = LayerParts(first, own[0], second, next(iter(others)), place)
        if _is_equal(module, parts):
            return parts
    return None


@torch.no_grad()
def _is_equal(module: Any, parts: LayerParts) -> bool:
    random = Random()
    try:
        size = next(module._modules[parts.first].parameters()).shape[-1]
        attention, following = _Attention(random.rows(size)), Given(random.rows(size))
        given = {parts.attention: attention, parts.following: following}
        others = {name: random.copy_of(one) for name, one in module._modules.items() if name not in given}
        hidden, angles = random.rows(size), (random.plain(*ROWS, 8), random.plain(*ROWS, 8))
        found = with_parts(module, {**module._modules, **others, **given})(hidden.clone(), **arguments(module, angles))
        norms = (others[parts.first], others[parts.second])
        own = OwnLayer(parts.place, norms, attention.flat, following, None)
        assert_equal(found, own(hidden, position_embeddings=angles))
        (theirs, turned), (ours, also_turned) = attention.seen
        assert_equal(theirs, ours)
        assert_equal(*following.seen)
        return turned is angles and also_turned is angles
    except Exception:  # code of transformers may ask its parts for anything
        return False
