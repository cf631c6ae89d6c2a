"""Log-probabilities of given tokens at an output embed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_inference.protocol import GetLogprobs, GetLogprobsResult, Result

from ..arrays import as_int32
from ..kind import Stage, WaveContext, define
from ..outputs import RowBatch, RowCommand, check_output, note_reading
from ..tokens import check_vocabulary
from .listed import Listed


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
        self._listed = Listed()

    def try_add(self, queue: Hashable, command: LogprobsCommand, holdings: Holdings, done: int) -> int:
        if not self._listed.has_room(command.tokens) or super().try_add(queue, command, holdings, done) == done:
            return done
        self._listed.add(command.tokens)
        return 1

    def build(self) -> GetLogprobs:
        return GetLogprobs(embeds=as_int32(self._embeds), indptr=self._listed.ends(), tokens=self._listed.tokens())

    def values(self, result: Result) -> Sequence[Logprobs]:
        told = self._listed.split(result.logprobs) if isinstance(result, GetLogprobsResult) else None
        if told is None:
            raise self.misfit(result)
        return [Logprobs(one) for one in told]


CALL = LogprobsCommand.call = define(__name__, issue, value=Logprobs, stage=Stage.OUTPUT, new_batch=LogprobsBatch)
