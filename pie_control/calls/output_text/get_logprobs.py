"""Log-probabilities of given tokens at output embeds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.ranges import total_length
from pie_inference.protocol import GetLogprobs, GetLogprobsResult, ModelDescription, Result

from ..arrays import as_int32
from ..kind import Call, Stage, WaveContext
from ..outputs import RowsBatch, RowsCommand, check_outputs, note_reading
from ..tokens import MOST_LISTED, MOST_OF_CONTEXT, check_vocabulary


class Logprobs(NamedTuple):
    """What the future gives."""

    logprobs: NDArray[np.float32]  # one for each token asked for


class LogprobsCommand(RowsCommand, frozen=True):
    tokens: Sequence[Int32]

    def fits(self, model: ModelDescription) -> bool:
        return super().fits(model) and len(self.tokens) % total_length(self.outputs) == 0


def issue(space: AddressSpace, queue: int, embeds: Sequence[int], tokens: Sequence[int], future: int) -> None:
    """`embeds` are ranges, at most as many embeds as a batch of the model has rows; `tokens` has as many tokens for
    each, those of the first embed first, and for one embed at most as many as the vocabulary has. Raises
    InvalidArgument, NotFound, InvalidState (embed never filled, or an input)."""
    ranges = check_outputs(space, queue, embeds)
    count, vocabulary = total_length(ranges), space.model.vocab_size
    if count == 1 and len(tokens) > vocabulary:
        raise InvalidArgument(
            f"{len(tokens)} tokens are more than the vocabulary of {vocabulary}: name each token once"
        )
    if count > 1 and (not tokens or len(tokens) % count):
        raise InvalidArgument(f"get_logprobs got {len(tokens)} tokens for {count} embeds: name as many for each")
    if count > 1 and len(tokens) > MOST_LISTED:
        raise InvalidArgument(f"{len(tokens)} tokens are more than {MOST_LISTED}: ask in several calls")
    check_vocabulary(space, tokens)
    seq, after = note_reading(space, queue, ranges)
    space.issue(LogprobsCommand(space.owner, queue, seq, after, future, (), ranges, tuple(tokens)))


class LogprobsBatch(RowsBatch[LogprobsCommand]):
    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._tokens: list[int] = []
        self._ends = [0]

    def try_add(self, queue: Hashable, command: LogprobsCommand, holdings: Holdings, done: int) -> int:
        if self._tokens and len(self._tokens) + len(command.tokens) > MOST_LISTED:
            return done
        if super().try_add(queue, command, holdings, done) == done:
            return done
        self._tokens += command.tokens
        self._ends.append(len(self._tokens))
        return 1

    def build(self) -> GetLogprobs:
        return GetLogprobs(
            embeds=as_int32(self._embeds),
            indptr=as_int32(self._ends),
            tokens=as_int32(self._tokens),
            embed_indptr=self.ends_if_several(),
        )

    def values(self, result: Result) -> Sequence[Logprobs]:
        if not isinstance(result, GetLogprobsResult) or len(result.logprobs) != len(self._tokens):
            raise self.misfit(result)
        told = result.logprobs.astype(np.float32, copy=False)  # a view keeps the whole wave's
        return [Logprobs(told[begin:end].copy()) for begin, end in pairwise(self._ends)]


def _result_bytes(embeds: Sequence[int], tokens: Sequence[int]) -> int:
    return 4 * len(tokens)


CALL = LogprobsCommand.call = Call(
    __name__,
    issue,
    value=Logprobs,
    result_bytes=_result_bytes,
    most={"tokens": MOST_OF_CONTEXT},
    stage=Stage.OUTPUT,
    new_batch=LogprobsBatch,
)
