"""A model that runs by the code of transformers, with its keys and values on our pages."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ...attention.interface import AttentionPlan
from ...errors import ConfigError
from ...layers.rotary import rotation
from ...loading.quantized.layers import QuantizedTensors
from ...loading.weights import TensorSource, WeightLoader
from ...ops.interface import Rotation
from ..config import ModelConfig
from ..vision import VisionTower
from .base import Base, Head
from .cache import SlotCache
from .code import attending, make, read
from .config import BorrowedConfig
from .filling.weights import Renamed, fill
from .ours.routers import take_routers
from .ours.scans import begin_scans_with_states
from .ours.shared_states import share_states
from .ours.take import find
from .pages import Calls, Pages
from .parts import can_record_experts, freeze_positions, hold_time_steps, list_layers, stop_scaling, take_norms
from .survey import Heads


class BorrowedModel:
    """Implements `Model`."""

    def __init__(self, config: BorrowedConfig, module: Any, weights: WeightLoader) -> None:
        self.config: ModelConfig = config
        self.vision: VisionTower | None = None
        self.capturable = not config.survey.no_graphs and can_record_experts(module, weights)
        self._calls, self._states = Calls(config.survey, weights.ranks), weights.states
        self._slots: SlotCache | None = None
        if config.survey.state:
            self._slots = SlotCache(module.config, config.survey.state, weights.states, weights.dtype, weights.ranks)
        self._embedding = module.get_input_embeddings()
        self._base = Base(module)
        self._head = Head(module)
        self._turning = None if config.fixed_positions else _Turning(module, config.survey.layers)

    def embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self._embedding(tokens)
        return vectors if self._base.factor == 1 else vectors * self._base.factor

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: AttentionPlan,
        keep: Tensor,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Like `Model.forward`. A model with a state runs one text at a time, or several by one token each."""
        with attending(Pages(self._calls, attention)):
            if self._slots is not None:
                found = self._with_states(self._slots, hidden, positions)
            else:
                own = None if tokens is None else tokens[None]
                found = self._base(hidden[None], positions[None], None, own)[0]
            return found.index_select(0, keep).to(hidden.dtype)  # some code leaves float32

    def _with_states(self, slots: SlotCache, hidden: Tensor, positions: Tensor) -> Tensor:
        runs = self._states.runs
        count = len(runs.reads)
        assert count == 1 or runs.longest == 1
        cache = slots.load(int(positions.max()) - (runs.longest - 1))
        found = self._base(hidden.view(count, -1, hidden.shape[-1]), positions.view(count, -1), cache)
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
    config.heads_of(weights.ranks)
    with _filling:
        module = make(read(config.raw, config.architecture), weights.dtype, "meta")
        ours = find(module)
        products = fill(module, weights, config.survey.irregular, ours.modules, config.survey.whole)
    take_norms(module, weights.ops)
    hold_time_steps(module)
    stop_scaling(module)
    list_layers(module)
    begin_scans_with_states(module)
    if weights.ranks.size > 1 and any(part.shared is not None for part in config.survey.state):
        share_states(module, weights.ranks)
    freeze_positions(module, config.max_context, weights.device)
    ours.take(module, products, weights.ops)
    take_routers(module, weights.ops)
    return BorrowedModel(config, module, weights)


def check_tensors(
    config: BorrowedConfig, stored: TensorSource, as_stored: QuantizedTensors | None, dtype: torch.dtype
) -> None:
    """Raises CheckpointError for a tensor that is missing or has another shape, before one is read, as `build` does.
    Imports transformers."""
    with _filling:
        Renamed(make(read(config.raw, config.architecture), dtype, "meta"), stored, as_stored)


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
