"""Speculative check: how many tokens of a draft a sampler would have chosen itself, and the token behind them.

The output at `embeds[i]` says what comes behind the first i tokens of the draft, so there is one embed more than there
are draft tokens. Each row is sampled as `sample` would, and the draft counts as far as it agrees: that is rejection
sampling for a draft without probabilities, and gives exactly the tokens of sampling step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pie_control.errors import CallError, InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length
from pie_inference.protocol import ModelDescription, Result, Verify, VerifyResult

from ..arrays import as_int32
from ..kind import Call, Handle, Stage
from ..outputs import RowsBatch, RowsCommand, note_reading
from ..sampler import Bias, Draws, Sampler, SamplingParams, bias_arrays, param_columns, param_rows
from ..tokens import check_vocabulary
from ..values import Value

NOTHING_TO_CHECK = -1
PENALTIES = ("repetition", "frequency", "presence")


class Verified(NamedTuple):
    """What the future gives."""

    accepted: int  # tokens of the draft
    token: int  # that comes behind them


class VerifyCommand(RowsCommand, frozen=True):
    draft: Sequence[Int32]
    params: SamplingParams
    uniform: Sequence[float]  # one for each embed
    bias: Bias | None = None

    def fits(self, model: ModelDescription) -> bool:
        rows = len(self.draft) + 1 == len(self.uniform) == total_length(self.outputs)
        return super().fits(model) and rows and (self.bias is None or self.bias.fits)


def issue(
    space: AddressSpace, queue: int, embeds: Sequence[int], draft: Sequence[int], sampler: Sampler, future: int
) -> None:
    """Raises InvalidArgument (numbers that do not fit, a sampler with penalties), NotFound, InvalidState (an embed that
    was never filled, or holds an input)."""
    space.check_command(queue)
    ranges = parse_ranges(embeds, "embed")
    count, rows = total_length(ranges), space.model.max_batch_rows
    if count != len(draft) + 1:
        raise InvalidArgument(f"verify got {count} embeds and {len(draft)} draft tokens; one embed more is needed")
    if count > rows:
        raise InvalidArgument(f"{len(draft)} draft tokens are more than {rows - 1}: verify fewer at a time")
    if sampler.params.has_penalties:
        raise InvalidArgument("verify takes no penalties: create a sampler without them")
    check_vocabulary(space, draft)
    if sampler.bias is not None:
        sampler.bias.check(space.model.vocab_size)
    space.embeds.check_outputs(ranges)
    seq, after = note_reading(space, queue, ranges)
    draws = sampler.draw_many(count)
    space.watch(future, partial(_return_unused, draws))
    command = VerifyCommand(
        space.owner, queue, seq, after, future, (), ranges, tuple(draft), sampler.params, draws.numbers, sampler.bias
    )
    space.issue(command)


def _return_unused(draws: Draws, answer: Value | CallError) -> None:
    draws.use(answer.accepted + 1 if isinstance(answer, Verified) else 0)


class VerifyBatch(RowsBatch[VerifyCommand]):
    def build(self) -> Verify:
        commands = self.commands
        params = param_columns(param_rows(command.params for command in commands))
        return Verify(
            embeds=as_int32(self._embeds),
            indptr=self.ends(),
            draft=as_int32([token for command in commands for token in (*command.draft, NOTHING_TO_CHECK)]),
            uniform=np.array([number for command in commands for number in command.uniform], np.float64),
            **{name: values for name, values in params.items() if name not in PENALTIES},
            **bias_arrays([command.bias for command in commands]),
        )

    def values(self, result: Result) -> Sequence[Verified]:
        if not isinstance(result, VerifyResult) or not (
            len(result.accepted) == len(result.tokens) == len(self.commands)
        ):
            raise self.misfit(result)
        pairs = zip(result.accepted.tolist(), result.tokens.tolist(), strict=True)
        return [Verified(accepted, token) for accepted, token in pairs]


CALL = VerifyCommand.call = Call(
    __name__,
    issue,
    value=Verified,
    handles={"sampler": Handle(Sampler)},
    stage=Stage.OUTPUT,
    new_batch=VerifyBatch,
)
