"""A forward that also tells how much attention each token got, for policies that evict what is seldom looked at (paper,
section 4.4; Zhang et al. 2023).

The score of a token is the weight that all queries of the call together give to it: the mean over heads and layers. So
the scores of a call add up to the number of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_inference.protocol import Forward, ForwardWithScores, ForwardWithScoresResult, Result

from ..forward import plain
from ..forward.batch import ForwardBatch
from ..forward.command import PassCommand
from ..kind import Call, Stage

MOST_PAIRS = 1 << 22
"""Pairs of query and key in one call: it takes a way on which each costs much more than usual."""


MOST_PAGE_SIZE = 32
"""Tokens in a page of a model."""


class AttentionScores(NamedTuple):
    """What the future gives."""

    scores: NDArray[np.float32]  # of the visible tokens of the context, in order, then of the inputs


class ScoresCommand(PassCommand, frozen=True):
    """It is not split: its scores are about all inputs."""


def run(space: AddressSpace, queue: int, found: plain.Checked, future: int) -> None:
    """Issues a forward that nobody refuses."""
    found = plain.bind_state(space, queue, found)
    command = ScoresCommand(
        space.owner, queue, space.next_seq(), found.after, future, (), *found._replace(whole=True)[1:]
    )
    plain.take_effect(space, command)
    plain.hand_on(space, command)


def check_size(space: AddressSpace, found: plain.Checked) -> None:
    """Raises InvalidArgument for more inputs than go into one batch, or too many pairs."""
    most, pairs = space.model.max_batch_tokens, found.size * (found.context.tokens + found.size)
    if found.size > most:
        raise InvalidArgument(f"{found.size} inputs are more than the {most} whose scores can be told at a time")
    if pairs > MOST_PAIRS:
        raise InvalidArgument(
            f"{found.size} inputs and {found.context.tokens} context tokens are {pairs} pairs, more than {MOST_PAIRS}, "
            "whose scores can be told at a time: call it with fewer inputs, or run most of them by forward"
        )


class ScoresBatch(ForwardBatch):
    def build(self) -> Forward:
        return ForwardWithScores(**msgspec.structs.asdict(super().build()))

    def values(self, result: Result) -> Sequence[AttentionScores]:
        if not isinstance(result, ForwardWithScoresResult) or not self._fits(result):
            raise self.misfit(result)
        scores = result.scores.astype(np.float32, copy=False)
        return [AttentionScores(scores[begin:end].copy()) for begin, end in pairwise(result.indptr.tolist())]

    def _fits(self, result: ForwardWithScoresResult) -> bool:
        counts = [command.context.tokens + command.size for command in self.commands]
        told = np.diff(result.indptr).tolist()
        return len(told) == len(counts) and all(one in (count, 0) for one, count in zip(told, counts, strict=True))


def result_bytes(context: Sequence[int], input_embeds: Sequence[int]) -> int:
    """At most."""
    return 4 * (MOST_PAGE_SIZE * sum(context[1::2]) + sum(input_embeds[1::2]))


CALL = ScoresCommand.call = Call(__name__, value=AttentionScores, stage=Stage.SCORES, new_batch=ScoresBatch)
