"""Log-probabilities of given tokens at an output embed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_inference.protocol import GetLogprobs, GetLogprobsResult, Result

from ..arrays import as_int32, ends_of
from ..kind import Stage, WaveContext, define
from ..outputs import RowBatch, RowCommand, check_output, note_reading
from ..tokens import MOST_LISTED, check_vocabulary


class Logprobs(NamedTuple):
    """What the future gives."""

    logprobs: NDArray[np.float32]  # one for each token asked for


class LogprobsCommand(RowCommand, frozen=True):
    tokens: Sequence[int]


def issue(space: AddressSpace, queue: int, embed: int, tokens: Sequence[int], future: int) -> None:
    """At most as many tokens as the vocabulary has. Raises InvalidArgument, NotFound, InvalidState (embed never filled,
    or an input)."""
    check_output(space, queue, embed)
    if len(tokens) > space.model.vocab_size:
        raise InvalidArgument(
            f"{len(tokens)} tokens are more than the vocabulary of {space.model.vocab_size}: name each token once"
        )
    check_vocabulary(space, tokens)
    seq, after = note_reading(space, queue, ((embed, embed + 1),))
    space.issue(LogprobsCommand(space.owner, queue, seq, after, future, (), embed, tuple(tokens)))


class LogprobsBatch(RowBatch[LogprobsCommand]):
    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._listed = 0

    def try_add(self, queue: Hashable, command: LogprobsCommand, holdings: Holdings, done: int) -> int:
        if self._listed and self._listed + len(command.tokens) > MOST_LISTED:
            return done
        added = super().try_add(queue, command, holdings, done)
        if added > done:
            self._listed += len(command.tokens)
        return added

    def _ends(self) -> NDArray[np.int32]:
        return ends_of(len(command.tokens) for command in self.commands)

    def build(self) -> GetLogprobs:
        tokens = chain.from_iterable(command.tokens for command in self.commands)
        return GetLogprobs(embeds=as_int32(self._embeds), indptr=self._ends(), tokens=as_int32(list(tokens)))

    def values(self, result: Result) -> Sequence[Logprobs]:
        ends = self._ends().tolist()
        if not isinstance(result, GetLogprobsResult) or len(result.logprobs) != ends[-1]:
            raise self.misfit(result)
        logprobs = result.logprobs.astype(np.float32, copy=False)
        return [Logprobs(logprobs[begin:end].copy()) for begin, end in pairwise(ends)]  # a view keeps the whole wave's


CALL = LogprobsCommand.call = define(__name__, issue, value=Logprobs, stage=Stage.OUTPUT, new_batch=LogprobsBatch)
