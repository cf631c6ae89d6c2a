"""The most probable next tokens at output embeds. Of one embed it is a command of this kind, as most are, and as a pass
reads it; of several, one of the kind `get_next_dists`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_inference.protocol import GetNextDist, GetNextDistResult, Result

from ..arrays import as_int32
from ..kind import Stage, define
from ..outputs import RowBatch, RowCommand, check_output, check_outputs, note_reading
from .get_next_dists import Dists, DistsCommand, dists_of

DEFAULT_K = 256
"""The paper's truncation of distributions."""


DIST_BYTES = 8
"""Memory of a token of a distribution."""
MOST_ROWS = 1 << 12
"""Embeds of one command that a worker may allow; more are refused anyway."""


class DistCommand(RowCommand, frozen=True):
    k: int
    temperature: float


def issue(space: AddressSpace, queue: int, embeds: Sequence[int], k: int, temperature: float, future: int) -> None:
    """`embeds` are ranges, at most as many embeds as a batch of the model has rows. `k` 0: 256, or as many as the model
    gives. Raises InvalidArgument, NotFound, InvalidState (embed never filled, or an input)."""
    if len(embeds) == 2 and embeds[1] == 1:
        issue_one(space, queue, embeds[0], k, temperature, future)
        return
    ranges = check_outputs(space, queue, embeds)
    chosen = check(space, k, temperature)
    seq, after = note_reading(space, queue, ranges)
    space.issue(DistsCommand(space.owner, queue, seq, after, future, (), ranges, chosen, temperature))


def issue_one(space: AddressSpace, queue: int, embed: int, k: int, temperature: float, future: int) -> None:
    """Reads the distribution at one embed. Raises as `issue`."""
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

    def values(self, result: Result) -> Sequence[Dists]:
        if not isinstance(result, GetNextDistResult) or not (
            len(result.indptr) - 1 == len(result.rest) == len(self.commands)
        ):
            raise self.misfit(result)
        return dists_of(result, range(len(self.commands) + 1))


def result_bytes(embeds: Sequence[int], k: int, temperature: float) -> int:
    """At most."""
    return (DIST_BYTES * (k or DEFAULT_K) + 4) * min(sum(embeds[1::2]), MOST_ROWS)


CALL = DistCommand.call = define(
    __name__, issue, value=Dists, result_bytes=result_bytes, stage=Stage.OUTPUT, new_batch=DistBatch
)
