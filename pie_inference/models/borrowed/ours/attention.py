"""Attention with one product for queries, keys and values, which are turned as the flat rows that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ....ops.interface import Linear, Ops, Rotation
from ....ops.torch_ops import TorchOps
from ..code import attending, running
from ..pages import rotation_of
from .trial import ANGLES, ROWS, Given, Random, Unlike, arguments, assert_equal, names_of, with_parts


@dataclass(frozen=True)
class AttentionParts:
    """The parts of a module that ours stands for, by their names."""

    joined: tuple[str, ...]
    last: str
    norms: tuple[str, ...]  # of queries and of keys; none, or both
    by_head: bool  # whether these norms see each head alone
    turns: bool  # by the angles, where it is given any
    dim: int  # of a head
    heads: int
    kv_heads: int
    place: int  # of the angles among the other arguments of its forward
    returns: int  # numbers of results, of which all but the first are None; 0: it is no tuple

    @property
    def whole(self) -> bool:
        """Whether it needs the outputs of all ranks."""
        return not self.by_head

    def install(self, module: Any, qkv: Linear, out: Linear, ops: Ops) -> None:
        """Makes the module run by our code. Its norms are those that it has by now."""
        for name in self.joined:
            del module._modules[name]
        norms = [module._modules[name] for name in self.norms]
        module.forward = OwnAttention(self, module, qkv, out, norms, ops)


class OwnAttention:
    """The forward of such a module."""

    def __init__(
        self, parts: AttentionParts, module: Any, qkv: Linear, out: Linear, norms: Sequence[nn.Module], ops: Ops
    ) -> None:
        self._parts, self._module, self._qkv, self._out, self._norms, self._ops = parts, module, qkv, out, norms, ops
        self._dim, self._heads, self._all = parts.dim, parts.heads, parts.heads + 2 * parts.kv_heads
        self._more = (None,) * (parts.returns - 1)

    def __call__(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        """[batch, rows, hidden_size] to the same, and what the code of transformers returns with it."""
        angles = angles_of(self._parts.place, others, named)
        found = self.flat(hidden_states.reshape(-1, hidden_states.shape[-1]), angles)
        found = found.view(*hidden_states.shape[:-1], found.shape[-1])
        return (found, *self._more) if self._parts.returns else found

    def flat(self, rows: Tensor, angles: Any) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        pages = running()
        qkv = self._qkv(rows)
        own = qkv.shape[1] // self._dim  # heads of this rank
        heads = own * self._heads // self._all
        qkv = qkv.view(-1, own, self._dim)
        query_key = qkv[:, : (own + heads) // 2]
        if self._norms:
            self._normalize(query_key[:, :heads], query_key[:, heads:])
        if self._parts.turns and angles is not None:
            rotation: Rotation = pages.rotation(angles, rows)
            self._ops.rotate_(query_key if rotation.dim == self._dim else query_key[..., : rotation.dim], rotation)
        return self._out(pages.attend(self._module, qkv[:, :heads], qkv[:, heads:]))

    def _normalize(self, *both: Tensor) -> None:
        for rows, norm in zip(both, self._norms, strict=True):
            rows.copy_(norm(rows) if self._parts.by_head else norm(rows.reshape(len(rows), -1)).view(rows.shape))


def attention_parts(module: Any) -> AttentionParts | None:
    """How ours stands for a module; None: it is another function."""
    linear = [name for name, child in module._modules.items() if type(child) is nn.Linear]
    norms = tuple(name for name, child in module._modules.items() if any(True for _ in child.parameters(False)))
    norms = tuple(name for name in norms if name not in linear)
    if len(linear) not in (2, 4) or len(norms) not in (0, 2) or names_of(module)[:1] != ["hidden_states"]:
        return None
    lasts = linear[-1:] if len(linear) == 4 else linear
    for turned, last in product(_turned(module), lasts):
        parts = _equal(module, tuple(name for name in linear if name != last), last, norms, turned)
        if parts is not None:
            return parts
    return None


def _turned(module: Any) -> Iterator[int]:
    """How many numbers of a head may be turned."""
    dim = getattr(module, "head_dim", 0)
    if ANGLES not in names_of(module) or not isinstance(dim, int) or dim < 8:
        return
    yield from (dim, dim // 2, dim // 4, dim // 4 * 3)


def angles_of(place: int, others: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The angles among the arguments behind the first one; None: there are none."""
    return others[place] if len(others) > place else named.get(ANGLES)


class _Watched:
    """An attention that keeps what it is given; its results are random."""

    def __init__(self, heads: int, dim: int, random: Random) -> None:
        self._result = random.rows(heads, dim)
        self.seen: list[Tensor] = []

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> Tensor:
        self.seen += (each.transpose(1, 2).flatten(0, 1).clone() for each in (query, key, value))
        return self._result.clone()

    def attend(self, module: Any, query: Tensor, key_value: Tensor) -> Tensor:
        """Like `Pages.attend`."""
        self.seen += (query, *key_value.chunk(2, 1))
        return self._result.flatten(0, 1).flatten(1)

    def rotation(self, angles: tuple[Tensor, Tensor], rows: Tensor) -> Rotation:
        """Like `Pages.rotation`."""
        return rotation_of(angles, rows)


class _Trial:
    """The code of a module on random rows, and ours on the same ones."""

    def __init__(self, module: Any, joined: Sequence[str], last: str, turned: int | None) -> None:
        """`turned`: how many numbers of a head the angles are for; None: there are none. Raises whatever the code of
        transformers does, which may ask its parts for anything."""
        random, dim = Random(), module.head_dim
        linear: dict[str, nn.Linear] = {name: module._modules[name] for name in (*joined, last)}
        self._given = {name: Given(random.rows(one.out_features)) for name, one in linear.items()}
        self._others = {name: random.copy_of(one) for name, one in module._modules.items() if name not in linear}
        self._hidden = random.rows(linear[last].out_features)
        self._angles = None if turned is None else (random.plain(*ROWS, turned), random.plain(*ROWS, turned))
        self._module, self._last, self.dim, self.heads = module, last, dim, linear[last].in_features // dim
        self._theirs, self._ours = (_Watched(self.heads, dim, Random()) for _ in range(2))
        with attending(self._theirs):
            trial = with_parts(module, {**module._modules, **self._others, **self._given})
            self._found = trial(self._hidden.clone(), **arguments(module, self._angles))
        self._rows = torch.cat([self._given[name].result for name in joined], -1).flatten(0, 1)
        self.kv_heads = self._theirs.seen[1].shape[1]
        self._check(joined)

    def _check(self, joined: Sequence[str]) -> None:
        """Raises Unlike where ours could not even run."""
        query, key, value = self._theirs.seen
        seen = [self._given[name].seen for name in joined]
        if any(len(each) != 1 or not torch.equal(each[0], self._hidden) for each in seen):
            raise Unlike
        if query.shape[1:] != (self.heads, self.dim) or key.shape != value.shape or key.shape[2] != self.dim:
            raise Unlike
        if self._rows.shape[1] != (self.heads + 2 * self.kv_heads) * self.dim:
            raise Unlike
        if isinstance(self._found, tuple) and any(one is not None for one in self._found[1:]):
            raise Unlike

    @property
    def returns(self) -> int:
        """What `AttentionParts.returns` tells."""
        return len(self._found) if isinstance(self._found, tuple) else 0

    def compare(self, parts: AttentionParts) -> None:
        """Raises Unlike, or what torch does about shapes."""
        out, self._ours.seen = Given(self._given[self._last].result.flatten(0, 1)), []
        norms, ops = [self._others[name] for name in parts.norms], TorchOps(self._rows.device, self._rows.dtype)
        own = OwnAttention(parts, self._module, lambda _: self._rows.clone(), out, norms, ops)
        with attending(self._ours):
            result = own(self._hidden, position_embeddings=self._angles)
        expected = self._found[0] if parts.returns else self._found
        assert_equal(result[0] if parts.returns else result, expected)
        assert_equal(self._given[self._last].seen[0].flatten(0, 1), out.seen[0])
        for each, expected in zip(self._ours.seen, self._theirs.seen, strict=True):
            assert_equal(each, expected)


@torch.no_grad()
def _equal(
    module: Any, joined: tuple[str, ...], last: str, norms: tuple[str, ...], turned: int
) -> AttentionParts | None:
    trial = _tried(module, joined, last, turned)
    if trial is None:
        return None
    without = _tried(module, joined, last, None)
    place = names_of(module).index(ANGLES) - 1
    for by_head, turns in product((True, False) if norms else (True,), (True, False)):
        sizes = (trial.dim, trial.heads, trial.kv_heads)
        parts = AttentionParts(joined, last, norms, by_head, turns, *sizes, place, trial.returns)
        try:
            trial.compare(parts)
            if without is not None:
                without.compare(parts)
        except (Unlike, RuntimeError):
            continue
        return parts
    return None


def _tried(module: Any, joined: Sequence[str], last: str, turned: int | None) -> _Trial | None:
    try:
        return _Trial(module, joined, last, turned)
    except Exception:  # code of transformers may ask its parts for anything
        return None
