"""A loaded model with its memory, on which the handlers work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..adapters.adapters import Adapters
from ..cpu_kernels.sampling import SamplingKernels
from ..device.ranks import Ranks
from ..device.tensors import index_tensor, upload_together
from ..grammars.rows import Constraints
from ..kv_cache.host_pages import HostPages, HostStates
from ..kv_cache.pages import KvCache
from ..models.interface import Model
from ..protocol import Array, ModelDescription
from ..recurrence.states import States
from .direct import Executor
from .embeds import Embeds
from .image_encoder import ImageEncoder


@dataclass(frozen=True)
class ServedModel:
    """A model, its pools, and its description for the control layer."""

    model: Model
    cache: KvCache
    host_pages: HostPages
    host_states: HostStates
    executor: Executor
    adapters: Adapters
    states: States  # what layers keep beside keys and values, in slots of their own
    ranks: Ranks
    embeds: Embeds
    tokens: Tensor  # int64 [num_token_slots]
    description: ModelDescription
    constraints: Constraints | None = None  # grammars; None on ranks that follow, which get tokens from the leader
    sampling: SamplingKernels | None = None  # None: without the compiled kernels
    images: ImageEncoder | None = None  # None: the model takes none

    @property
    def device(self) -> torch.device:
        return self.embeds.vectors.device

    def next_logits(self, embeds: Array, *beside: Tensor) -> list[Tensor]:
        """Logits of the next token at each embed, float32 [N, vocab_size], in new memory; then the tensors `beside`,
        int64 on the CPU, on the model's device, because each copy to it costs time. Raises BatchError."""
        rows, *others = upload_together([index_tensor(embeds, len(self.embeds), "embed"), *beside], self.device)
        return [self.model.logits(self.embeds.vectors.index_select(0, rows)), *others]

    def token_ids(self, tokens: Array, *beside: Tensor) -> list[Tensor]:
        """Token ids, int64 on the model's device; -(s + 1) stands for the token that `Sample` wrote to token slot s.
        Then the tensors `beside`, as of `next_logits`. Raises BatchError."""
        references = np.flatnonzero(tokens < 0)
        slots = index_tensor(-1 - tokens[references], len(self.tokens), "token slot")
        if len(references) == len(tokens):
            slots, *others = upload_together([slots, *beside], self.device)
            return [self.tokens.index_select(0, slots), *others]
        literal = tokens.copy()
        literal[references] = 0
        ids = index_tensor(literal, self.description.vocab_size, "token")
        if not len(references):
            return upload_together([ids, *beside], self.device)
        parts = [ids, slots, torch.from_numpy(references), *beside]
        ids, slots, places, *others = upload_together(parts, self.device)
        return [ids.index_copy_(0, places, self.tokens.index_select(0, slots)), *others]
