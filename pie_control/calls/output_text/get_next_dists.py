"""A `get_next_dist` of several output embeds, as a command."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import GetNextDistResult, GetNextDists, GetNextDistsResult, Result

from ..arrays import as_int32, ends_of, packed
from ..kind import Stage, define
from ..outputs import RowsBatch, RowsCommand


class Dists(NamedTuple):
    """What the future gives: of R embeds, k tokens each."""

    tokens: NDArray[np.int32]  # [R * k], most probable first at each embed
    probabilities: NDArray[np.float32]  # [R * k]
    rest: NDArray[np.float32]  # [R], probability mass left out

    def packed(self) -> tuple[str, str, NDArray[np.float32]]:
        """Tokens and probabilities as base64."""
        return packed(self.tokens, "<i4"), packed(self.probabilities, "<f4"), self.rest  # a token has no sign


def dists_of(result: GetNextDistResult | GetNextDistsResult, rests: Sequence[int]) -> Sequence[Dists]:
    """Those of each command; `rests`: where its embeds begin, and where those of the last one end."""
    tokens = result.tokens.astype(np.int32, copy=False)
    probabilities = result.probabilities.astype(np.float32, copy=False)
    rest = result.rest.astype(np.float32, copy=False)
    ranges = zip(pairwise(result.indptr.tolist()), pairwise(rests), strict=True)
    return [  # copies: a view keeps those of the whole wave
        Dists(tokens[begin:end].copy(), probabilities[begin:end].copy(), rest[first:last].copy())
        for (begin, end), (first, last) in ranges
    ]


class DistsCommand(RowsCommand, frozen=True):
    k: int
    temperature: float


class DistsBatch(RowsBatch[DistsCommand]):
    def build(self) -> GetNextDists:
        return GetNextDists(
            embeds=as_int32(self._embeds),
            indptr=ends_of(command.count for command in self.commands),
            k=as_int32([command.k for command in self.commands]),
            temperature=np.array([command.temperature for command in self.commands], np.float32),
        )

    def values(self, result: Result) -> Sequence[Dists]:
        if not isinstance(result, GetNextDistsResult) or not (
            len(result.indptr) == len(result.rest_indptr) == len(self.commands) + 1
        ):
            raise self.misfit(result)
        return dists_of(result, result.rest_indptr.tolist())


CALL = DistsCommand.call = define(__name__, stage=Stage.OUTPUT, new_batch=DistsBatch)
