"""The most probable next tokens at output embeds: mostly at one, as steps read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_inference.protocol import GetNextDist, GetNextDistResult, Result

from ..arrays import as_int32, packed
from ..kind import Call, Stage
from ..outputs import RowsBatch, RowsCommand, check_outputs, note_reading

DEFAULT_K = 256
"""The paper's truncation of distributions."""


DIST_BYTES = 8
"""Memory of a token of a distribution."""
MOST_ROWS = 1 << 12
MOST_TOKENS = 1 << 14
"""Embeds of one command, and tokens of one distribution, that a worker may allow; more are refused anyway."""


class Dists(NamedTuple):
    """What the future gives: of R embeds, k tokens each."""

    tokens: NDArray[np.int32]  # [R * k], most probable first at each embed
    probabilities: NDArray[np.float32]  # [R * k]
    rest: NDArray[np.float32]  # [R], probability mass left out

    def packed(self) -> tuple[str, str, NDArray[np.float32]]:
        """Tokens and probabilities as base64."""
        return packed(self.tokens, "<i4"), packed(self.probabilities, "<f4"), self.rest  # a token has no sign


class DistCommand(RowsCommand, frozen=True):
    k: Int32
    temperature: float


def issue(space: AddressSpace, queue: int, embeds: Sequence[int], k: int, temperature: float, future: int) -> None:
    """`embeds` are ranges, at most as many embeds as a batch of the model has rows. `k` 0: 256, or as many as the model
    gives. Raises InvalidArgument, NotFound, InvalidState (embed never filled, or an input)."""
    ranges = check_outputs(space, queue, embeds)
    chosen = check(space, k, temperature)
    seq, after = note_reading(space, queue, ranges)
    space.issue(DistCommand(space.owner, queue, seq, after, future, (), ranges, chosen, temperature))


def check(space: AddressSpace, k: int, temperature: float) -> int:
    """How many tokens `k` asks for. Raises InvalidArgument."""
    largest = min(space.model.max_dist, space.model.vocab_size)
    if not 0 <= k <= largest:
        raise InvalidArgument(f"k is {k}; it must lie between 0 and {largest}")
    if not 0.0 < temperature < math.inf:
        raise InvalidArgument(f"temperature is {temperature}; it must be above 0 and finite")
    return k or min(DEFAULT_K, largest)


class DistBatch(RowsBatch[DistCommand]):
    """Steps are in it, too."""

    def build(self) -> GetNextDist:
        return GetNextDist(
            embeds=as_int32(self._embeds),
            k=as_int32([command.k for command in self.commands]),
            temperature=np.array([command.temperature for command in self.commands], np.float32),
            embed_indptr=self.ends_if_several(),
        )

    def values(self, result: Result) -> Sequence[Dists]:
        if not isinstance(result, GetNextDistResult):
            raise self.misfit(result)
        rests = range(len(result.rest) + 1) if result.rest_indptr is None else result.rest_indptr.tolist()
        if not len(result.indptr) == len(rests) == len(self.commands) + 1:
            raise self.misfit(result)
        tokens = result.tokens.astype(np.int32, copy=False)
        probabilities = result.probabilities.astype(np.float32, copy=False)
        rest = result.rest.astype(np.float32, copy=False)
        ranges = zip(pairwise(result.indptr.tolist()), pairwise(rests), strict=True)
        return [  # copies: a view keeps those of the whole wave
            Dists(tokens[begin:end].copy(), probabilities[begin:end].copy(), rest[first:last].copy())
            for (begin, end), (first, last) in ranges
        ]


def result_bytes(embeds: Sequence[int], k: int, temperature: float) -> int:
    """At most."""
    return (DIST_BYTES * min(k or DEFAULT_K, MOST_TOKENS) + 4) * min(sum(embeds[1::2]), MOST_ROWS)


CALL = DistCommand.call = Call(
    __name__, issue, value=Dists, result_bytes=result_bytes, stage=Stage.OUTPUT, new_batch=DistBatch
)
