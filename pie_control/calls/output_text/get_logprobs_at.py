"""A `get_logprobs` of several output embeds, as a command."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pie_control.resources.holdings import Holdings
from pie_inference.protocol import GetLogprobsAt, GetLogprobsAtResult, Result

from ..arrays import as_int32, ends_of
from ..kind import Stage, WaveContext, define
from ..outputs import RowsBatch, RowsCommand
from .listed import Listed, Logprobs


class LogprobsAtCommand(RowsCommand, frozen=True):
    tokens: Sequence[int]


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
        return told


CALL = LogprobsAtCommand.call = define(__name__, stage=Stage.OUTPUT, new_batch=LogprobsAtBatch)
