"""Log-probabilities of given tokens at several output embeds, in one call and one future."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.ranges import total_length
from pie_inference.protocol import GetLogprobsAt, GetLogprobsAtResult, Result

from ..arrays import as_int32, ends_of
from ..kind import Stage, WaveContext, define
from ..outputs import RowsBatch, RowsCommand, check_outputs, note_reading
from ..tokens import MOST_LISTED, check_vocabulary
from .get_logprobs import Logprobs
from .listed import Listed


class LogprobsAtCommand(RowsCommand, frozen=True):
    tokens: Sequence[int]


def issue(space: AddressSpace, queue: int, embeds: Sequence[int], tokens: Sequence[int], future: int) -> None:
    """`embeds` are ranges, at most as many embeds as a batch of the model has rows; `tokens` has as many tokens for
    each, those of the first embed first. Raises InvalidArgument, NotFound, InvalidState (embed never filled, or an
    input)."""
    ranges = check_outputs(space, queue, embeds)
    count = total_length(ranges)
    if not tokens or len(tokens) % count:
        raise InvalidArgument(f"get_logprobs_at got {len(tokens)} tokens for {count} embeds: name as many for each")
    if len(tokens) > MOST_LISTED:
        raise InvalidArgument(f"{len(tokens)} tokens are more than {MOST_LISTED}: ask in several calls")
    check_vocabulary(space, tokens)
    seq, after = note_reading(space, queue, ranges)
    space.issue(LogprobsAtCommand(space.owner, queue, seq, after, future, (), ranges, tuple(tokens)))


class LogprobsAtBatch(RowsBatch[LogprobsAtCommand]):
    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._listed = Listed()

    def try_add(self, queue: Hashable, command: LogprobsAtCommand, holdings: Holdings, done: int) -> int:
        if not self._listed.has_room(command.tokens) or super().try_add(queue, command, holdings, done) == done:
            return done
        self._listed.add(command.tokens)
        return 1

    def build(self) -> GetLogprobsAt:
        return GetLogprobsAt(
            embeds=as_int32(self._embeds),
            indptr=ends_of(command.count for command in self.commands),
            tokens=self._listed.tokens(),
            token_indptr=self._listed.ends(),
        )

    def values(self, result: Result) -> Sequence[Logprobs]:
        told = self._listed.split(result.logprobs) if isinstance(result, GetLogprobsAtResult) else None
        if told is None:
            raise self.misfit(result)
        return [Logprobs(one) for one in told]


CALL = LogprobsAtCommand.call = define(__name__, issue, value=Logprobs, stage=Stage.OUTPUT, new_batch=LogprobsAtBatch)
