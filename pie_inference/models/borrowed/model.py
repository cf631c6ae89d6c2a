"""A model that runs by the code of transformers, with its keys and values on our pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention.interface import AttentionPlan, PlanWithSinks
from ...device.ranks import Ranks, share
from ...errors import ConfigError
from ...layers.rotary import rotation
from ...loading.weights import WeightLoader
from ...ops.interface import Rotation
from ..config import ModelConfig
from ..vision import VisionTower
from .base import Head, base_of, run, sinks_of
from .cache import SlotCache
from .code import attending, make, read
from .config import BorrowedConfig
from .filling.weights import fill
from .parts import can_group_experts, freeze_positions, hold_time_steps, take_norms
from .survey import Heads, Survey


@dataclass
class _Pages:
    """Attention of one forward. The calls are numbered: layers may be repeated, or share a module. Those that share
    keys and values write the same ones again."""

    plan: AttentionPlan
    survey: Survey
    ranks: Ranks
    number: int = 0

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Tensor:
        """Attention as `code.Attend` describes it."""
        survey, heads = self.survey, self.survey.attentions[self.number]
        self.number += 1
        width, layer = survey.head_dim, heads.layer
        batch, _, length, _ = query.shape
        if heads.num_kv_heads != survey.num_kv_heads:
            times = survey.num_kv_heads // heads.num_kv_heads
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        whole = query.shape[1] == heads.num_heads
        query = self._own(query, heads.num_heads)
        key, value = (self._own(each, survey.num_kv_heads) for each in (key, value))
        query, key = (_widened(each, width) for each in (query, key))
        key_value = torch.cat((key.transpose(1, 2), _widened(value, width).transpose(1, 2)), 2)
        rows = query.transpose(1, 2).reshape(batch * length, -1, width)
        key_value = key_value.view(batch * length, -1, width)
        sinks = sinks_of(module, more) if heads.sinks else None
        if sinks is None:
            output = self.plan.attend(layer, rows, key_value)
        else:
            assert isinstance(self.plan, PlanWithSinks)
            own_sinks = self._own(sinks[None], heads.num_heads)[0].contiguous()
            output = self.plan.attend_with_sinks(layer, rows, key_value, own_sinks)
        output = output.view(batch, length, -1, width)[..., : heads.value_width]
        if whole and self.ranks.size > 1:
            output = self.ranks.all_gather(output.flatten(2)).view(batch, length, heads.num_heads, -1)
        return output

    def _own(self, vectors: Tensor, heads: int) -> Tensor:
        """This rank's heads of [batch, heads, ...], where code computes them all on each rank."""
        if self.ranks.size == 1 or vectors.shape[1] != heads:
            return vectors
        count = heads // self.ranks.size
        return vectors.narrow(1, self.ranks.rank * count, count)


def _widened(vectors: Tensor, width: int) -> Tensor:
    missing = width - vectors.shape[-1]
    return F.pad(vectors, (0, missing)) if missing else vectors


class BorrowedModel:
    """Implements `Model`."""

    def __init__(self, config: BorrowedConfig, module: Any, weights: WeightLoader) -> None:
        self.config: ModelConfig = config
        self.vision: VisionTower | None = None
        self.capturable = not config.survey.no_graphs and can_group_experts(module, weights)
        self._survey, self._states, self._ranks = config.survey, weights.states, weights.ranks
        self._slots: SlotCache | None = None
        if config.survey.state:
            self._slots = SlotCache(module.config, config.survey.state, weights.states, weights.dtype)
        self._embedding = module.get_input_embeddings()
        self._base = base_of(module)
        self._head = Head(module)
        self._turning = None if config.fixed_positions else _Turning(module, config.survey.layers)

    def embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self._embedding(tokens)
        return vectors

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: AttentionPlan,
        keep: Tensor,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Like `Model.forward`. A model with a state runs one text at a time, or several by one token each."""
        with attending(_Pages(attention, self._survey, self._ranks)):
            if self._slots is not None:
                return self._with_states(self._slots, hidden, positions).index_select(0, keep)
            own = None if tokens is None else tokens[None]
            return run(self._base, hidden[None], positions[None], None, own)[0].index_select(0, keep)

    def _with_states(self, slots: SlotCache, hidden: Tensor, positions: Tensor) -> Tensor:
        runs = self._states.runs
        count = len(runs.reads)
        assert count == 1 or runs.longest == 1
        cache = slots.load(int(positions.max()) - (runs.longest - 1))
        found = run(self._base, hidden.view(count, -1, hidden.shape[-1]), positions.view(count, -1), cache)
        slots.save(cache)
        return found.flatten(0, 1)

    def moves(self, distances: Tensor, dtype: torch.dtype) -> Sequence[Rotation]:
        assert self._turning is not None, self.config.fixed_positions
        return self._turning.by(distances, dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)


_filling = Lock()
"""While transformers makes and fills a module, functions of torch that all threads share do nothing."""


def build(config: BorrowedConfig, weights: WeightLoader) -> BorrowedModel:
    """The model with its weights. Raises CheckpointError; ConfigError for more than one rank where it cannot be
    split."""
    if weights.ranks.size > 1 and config.survey.one_rank:
        raise ConfigError(
            f"--tensor-parallel: {config.architecture} by transformers' code runs on one rank only: "
            f"{config.survey.one_rank}; leave the option out"
        )
    for heads in config.survey.attentions:
        share(weights.ranks, heads.num_heads, "attention heads")
        share(weights.ranks, heads.num_kv_heads, "key-value heads")
    with _filling:
        module = make(read(config.raw, config.architecture), weights.dtype, "meta")
        fill(module, weights, config.survey.irregular, config.survey.whole)
    take_norms(module, weights.ops)
    hold_time_steps(module)
    freeze_positions(module, config.max_context, weights.device)
    return BorrowedModel(config, module, weights)


class _Turning:
    """Moves keys to other positions, layer by layer."""

    def __init__(self, module: Any, attentions: Sequence[Heads]) -> None:
        found = [module.get_buffer(*one.frequencies) if one.frequencies else None for one in attentions]
        still = next((torch.zeros_like(each) for each in found if each is not None), None)
        still = torch.zeros(1, device=module.device) if still is None else still
        self._frequencies: list[Tensor] = [still if each is None else each for each in found]

    def by(self, distances: Tensor, dtype: torch.dtype) -> list[Rotation]:
        """Like `Model.moves`."""
        made = {id(each): rotation(each, distances, dtype) for each in self._frequencies}
        return [made[id(each)] for each in self._frequencies]
