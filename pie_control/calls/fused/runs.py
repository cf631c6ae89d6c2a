"""Commands that stand for many steps, of which each wave takes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pie_control.resources.kinds import EMBEDS, STATES, Resource
from pie_control.resources.ranges import Range
from pie_control.resources.tables.contexts import Context

from ..adapters import NO_ADAPTER
from ..kind import Call, WorkerCommand
from ..sampler import Bias, SamplingParams
from ..scores import NO_SCORES
from .matching import Constraint


class RunCommand(WorkerCommand, frozen=True):
    """`own` are the virtual slots of the first `steps` - 1 tokens, which are at the positions from `position` on.
    `uniform`: float64, a number for each step; empty for a greedy run. `recent`: tokens before the run that penalties
    count, together with those of the run; of all, the last `window` (0: all). `allowed`: bits of the tokens that may
    come, lowest bit first. `alternatives`: as in `Sample`. `constraint`: the matcher that the run keeps to."""

    call: ClassVar[Call]  # which the first step is, and with which each ends
    embeds: ClassVar[Call]  # with which the others begin
    forwards: ClassVar[Call]
    lasts = True

    embed: int
    input: int
    position: int
    context: Context
    own: Sequence[Range]
    steps: int
    stop: Sequence[int]
    params: SamplingParams
    uniform: bytes
    recent: Sequence[int]
    window: int
    allowed: bytes | None
    bias: Bias | None = None
    alternatives: int = NO_SCORES
    adapter: int = NO_ADAPTER
    constraint: Constraint | None = None

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        if resource is EMBEDS:
            return ((self.embed, self.embed + 1), (self.input, self.input + 1))
        if resource is STATES:
            return self.context.used_states
        slots = (*self.context.intervals, *self.own)
        return [(start // page_size, (stop - 1) // page_size + 1) for start, stop in slots]
