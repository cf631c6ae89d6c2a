"""Attention of transformers' code, and of what is made ours in it, over pages."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention.interface import AttentionPlan, PlanWithSinks
from ...device.ranks import Ranks
from ...ops.interface import Rotation
from .base import sinks_of
from .survey import Survey


class Calls:
    """The calls of attention in each forward of a model."""

    def __init__(self, survey: Survey, ranks: Ranks) -> None:
        self.heads, self.ranks = survey.attentions, ranks
        self.width, self.num_kv_heads = survey.head_dim, survey.num_kv_heads  # of the cache, over all ranks
        cached = (self.width, self.width, self.num_kv_heads, False)
        self.as_cached = [(one.key_width, one.value_width, one.num_kv_heads, one.sinks) == cached for one in self.heads]
        """For each call, whether its keys and values have the form that the cache has."""


class Pages:
    """Attention of one forward. The calls are numbered: layers may be repeated, or share a module. Those that share
    keys and values write the same ones again."""

    def __init__(self, calls: Calls, plan: AttentionPlan) -> None:
        self._calls, self._plan, self._number = calls, plan, 0
        self._rotations: dict[int, tuple[Any, Rotation]] = {}

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Tensor:
        """Attention as `code.Attend` describes it."""
        calls, heads = self._calls, self._calls.heads[self._number]
        self._number += 1
        width, most = calls.width, calls.num_kv_heads
        batch, _, length, _ = query.shape
        if heads.num_kv_heads != most:
            times = most // heads.num_kv_heads
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        whole = query.shape[1] == heads.num_heads
        query = self._own(query, heads.num_heads)
        key, value = (self._own(each, most) for each in (key, value))
        query, key = (_widened(each, width) for each in (query, key))
        key_value = torch.cat((key.transpose(1, 2), _widened(value, width).transpose(1, 2)), 2)
        rows = query.transpose(1, 2).reshape(batch * length, -1, width)
        key_value = key_value.view(batch * length, -1, width)
        sinks = sinks_of(module, more) if heads.sinks else None
        if sinks is None:
            output = self._plan.attend(heads.layer, rows, key_value)
        else:
            assert isinstance(self._plan, PlanWithSinks)
            own_sinks = self._own(sinks[None], heads.num_heads)[0].contiguous()
            output = self._plan.attend_with_sinks(heads.layer, rows, key_value, own_sinks)
        output = output.view(batch, length, -1, width)[..., : heads.value_width]
        if whole and calls.ranks.size > 1:
            output = calls.ranks.all_gather(output.flatten(2)).view(batch, length, heads.num_heads, -1)
        return output

    def attend(self, module: Any, query: Tensor, key_value: Tensor) -> Tensor:
        """Attention of flat rows, as `AttentionPlan.attend` has it, with all heads or those of this rank."""
        calls, number = self._calls, self._number
        heads = calls.heads[number]
        if calls.as_cached[number] and query.shape[1] * calls.ranks.size == heads.num_heads:
            self._number += 1
            return self._plan.attend(heads.layer, query, key_value)
        key, value = (each.transpose(0, 1)[None] for each in key_value.chunk(2, 1))
        return self(module, query.transpose(0, 1)[None], key, value, None)[0].flatten(1)

    def rotation(self, angles: tuple[Tensor, Tensor], rows: Tensor) -> Rotation:
        """The rotation of rows [T, ...] by cosines and sines [batch, rows, dim] of transformers' code."""
        known = self._rotations.get(id(angles))
        if known is None:
            known = self._rotations[id(angles)] = (angles, rotation_of(angles, rows))
        return known[1]

    def _own(self, vectors: Tensor, heads: int) -> Tensor:
        """This rank's heads of [batch, heads, ...], where code computes them all on each rank."""
        ranks = self._calls.ranks
        if ranks.size == 1 or vectors.shape[1] != heads:
            return vectors
        count = heads // ranks.size
        return vectors.narrow(1, ranks.rank * count, count)


def rotation_of(angles: tuple[Tensor, Tensor], rows: Tensor) -> Rotation:
    """Cosines and sines [batch, rows, dim], as the kernels take them for rows [T, ...]."""
    cos, sin = (each.to(rows.dtype).flatten(0, 1).expand(len(rows), -1).unsqueeze(1) for each in angles)
    first, second = sin.chunk(2, -1)
    return Rotation(cos.contiguous(), torch.cat((-first, second), -1))


def _widened(vectors: Tensor, width: int) -> Tensor:
    missing = width - vectors.shape[-1]
    return F.pad(vectors, (0, missing)) if missing else vectors
