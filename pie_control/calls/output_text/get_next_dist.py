"""The most probable next tokens at an output embed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_inference.protocol import GetNextDist, GetNextDistResult, Result

from ..arrays import as_int32, packed
from ..kind import Stage, define
from ..outputs import RowBatch, RowCommand, check_output, note_reading

DEFAULT_K = 256
"""The paper's truncation of distributions."""


class Dist(NamedTuple):
    """What the future gives."""

    tokens: NDArray[np.int32]  # [k], most probable first
    probabilities: NDArray[np.float32]  # [k]
    rest: float  # probability mass left out

    def packed(self) -> tuple[str, str, float]:
        """Tokens and probabilities as base64."""
        return packed(self.tokens, "<i4"), packed(self.probabilities, "<f4"), self.rest  # a token has no sign


class DistCommand(RowCommand, frozen=True):
    k: int
    temperature: float


def issue(space: AddressSpace, queue: int, embed: int, k: int, temperature: float, future: int) -> None:
    """`k` 0: 256, or as many as the model gives. Raises InvalidArgument, NotFound, InvalidState (embed never
    filled, or an input)."""
    check_output(space, queue, embed)
    chosen = check(space, k, temperature)
    seq, after = note_reading(space, queue, ((embed, embed + 1),))
    space.issue(DistCommand(space.owner, queue, seq, after, future, (), embed, chosen, temperature))


def check(space: AddressSpace, k: int, temperature: float) -> int:
    """How many tokens `k` asks for. Raises InvalidArgument."""
    largest = min(space.model.max_dist, space.model.vocab_size)
    if not 0 <= k <= largest:
        raise InvalidArgument(f"k is {k}; it must lie between 0 and {largest}")
    if not 0.0 < temperature < math.inf:
        raise InvalidArgument(f"temperature is {temperature}; it must be above 0 and finite")
    return k or min(DEFAULT_K, largest)


class DistBatch(RowBatch[DistCommand]):
    """Steps are in it, too."""

    def build(self) -> GetNextDist:
        return GetNextDist(
            embeds=as_int32(self._embeds),
            k=as_int32([command.k for command in self.commands]),
            temperature=np.array([command.temperature for command in self.commands], np.float32),
        )

    def values(self, result: Result) -> Sequence[Dist]:
        if not isinstance(result, GetNextDistResult) or not (
            len(result.indptr) - 1 == len(result.rest) == len(self.commands)
        ):
            raise self.misfit(result)
        ends = result.indptr.tolist()
        tokens = result.tokens.astype(np.int32, copy=False)
        probabilities = result.probabilities.astype(np.float32, copy=False)
        rows = zip(ends[:-1], ends[1:], result.rest.tolist(), strict=True)
        return [  # copies: a view keeps those of the whole wave
            Dist(tokens[begin:end].copy(), probabilities[begin:end].copy(), rest) for begin, end, rest in rows
        ]


CALL = DistCommand.call = define(__name__, issue, value=Dist, stage=Stage.OUTPUT, new_batch=DistBatch)
