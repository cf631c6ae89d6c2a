"""A loaded model with its memory, on which the handlers work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..adapters.adapters import Adapters
from ..cpu_kernels.masks import MostProbable
from ..device.ranks import Ranks
from ..device.tensors import index_tensor, upload
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
    most_probable: MostProbable | None = None  # among tokens that may come; None: without the compiled kernels
    images: ImageEncoder | None = None  # None: the model takes none

    @property
    def device(self) -> torch.device:
        return self.embeds.vectors.device

    def next_logits(self, embeds: Array) -> Tensor:
        """Logits of the next token at each embed, float32 [N, vocab_size], in new memory. Raises BatchError."""
        rows = upload(index_tensor(embeds, len(self.embeds), "embed"), self.device)
        return self.model.logits(self.embeds.vectors.index_select(0, rows))

    def token_ids(self, tokens: Array) -> Tensor:
        """Token ids, int64 on the model's device; -(s + 1) stands for the token that `Sample` wrote to token slot s.
        Raises BatchError."""
        references = np.flatnonzero(tokens < 0)
        literal = tokens.copy()
        literal[references] = 0
        ids = upload(index_tensor(literal, self.description.vocab_size, "token"), self.device)
        if len(references):
            slots = upload(index_tensor(-1 - tokens[references], len(self.tokens), "token slot"), self.device)
            ids[upload(torch.from_numpy(references), self.device)] = self.tokens[slots]
        return ids
