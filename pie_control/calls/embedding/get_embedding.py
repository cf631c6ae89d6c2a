"""One vector of the hidden states at output embeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_inference.protocol import GetEmbedding, GetEmbeddingResult, ModelDescription, Result

from ..arrays import as_int32, packed
from ..kind import Call, Stage, WaveContext
from ..outputs import RowsBatch, RowsCommand, check_outputs, note_reading

POOLINGS = ("last", "mean")
MOST_DIMENSIONS = 1 << 14
"""Numbers of a hidden state, in any model."""


class Vector(NamedTuple):
    """What the future gives: float32, little-endian, as base64."""

    text: str


class EmbeddingCommand(RowsCommand, frozen=True):
    mean: bool
    dimensions: Int32
    normalize: bool

    def most(self, model: ModelDescription) -> int:
        return model.max_batch_tokens


def issue(
    space: AddressSpace, queue: int, embeds: Sequence[int], pooling: str, dimensions: int, normalize: bool, future: int
) -> None:
    """`embeds` are ranges, at most as many embeds as a batch of the model has tokens. `dimensions` 0: all. Raises
    InvalidArgument, NotFound, InvalidState (embed never filled, or an input)."""
    ranges = check_outputs(space, queue, embeds, space.model.max_batch_tokens)
    if pooling not in POOLINGS:
        raise InvalidArgument(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
    size = space.model.hidden_size
    if not 0 <= dimensions <= size:
        raise InvalidArgument(f"dimensions is {dimensions}; it must lie between 0 and {size}")
    seq, after = note_reading(space, queue, ranges)
    rest = pooling == "mean", dimensions or size, normalize
    space.issue(EmbeddingCommand(space.owner, queue, seq, after, future, (), ranges, *rest))


class EmbeddingBatch(RowsBatch[EmbeddingCommand]):
    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self.most = context.model.max_batch_tokens

    def build(self) -> GetEmbedding:
        return GetEmbedding(
            embeds=as_int32(self._embeds),
            indptr=self.ends(),
            mean=np.array([command.mean for command in self.commands], np.bool_),
            dimensions=as_int32([command.dimensions for command in self.commands]),
            normalize=np.array([command.normalize for command in self.commands], np.bool_),
        )

    def values(self, result: Result) -> Sequence[Vector]:
        if not isinstance(result, GetEmbeddingResult) or len(result.indptr) != len(self.commands) + 1:
            raise self.misfit(result)
        ends = pairwise(result.indptr.tolist())
        return [Vector(packed(result.vectors[begin:end], "<f4")) for begin, end in ends]


def _result_bytes(embeds: Sequence[int], pooling: str, dimensions: int, normalize: bool) -> int:
    """Each number takes 16/3 characters."""
    return 6 * (dimensions or MOST_DIMENSIONS)


CALL = EmbeddingCommand.call = Call(
    __name__, issue, value=Vector, result_bytes=_result_bytes, stage=Stage.OUTPUT, new_batch=EmbeddingBatch
)
