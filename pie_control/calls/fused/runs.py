"""Commands that stand for many steps, of which each wave takes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pie_control.record import Int32
from pie_control.resources.kinds import EMBEDS, PAGES, STATES, Resource
from pie_control.resources.ranges import Range, are_sound, total_length
from pie_control.resources.tables.addresses import MOST_ADDRESSES
from pie_control.resources.tables.contexts import Context, pages_of
from pie_inference.protocol import ModelDescription

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

    embed: Int32
    input: Int32
    position: Int32
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
    alternatives: Int32 = NO_SCORES
    adapter: Int32 = NO_ADAPTER
    constraint: Constraint | None = None

    @property
    def intervals(self) -> int:
        return len(self.context.intervals)

    def fits(self, model: ModelDescription) -> bool:
        """Other numbers that cannot be are found when it begins (scheduling/decoding/runs.py)."""
        own, rows = self.own, total_length(self.own) + 1
        if not (are_sound(own, self.context.intervals) and 0 < self.steps == rows <= model.max_context + 1):
            return False
        far = max((stop for _, stop in own), default=0) > MOST_ADDRESSES * model.page_size
        allowed = self.allowed is None or len(self.allowed) == -(-model.vocab_size // 8)
        states = self.steps == 1 or (self.context.states is None) == (not model.num_states)
        return self.future is not None and not far and allowed and states and (self.bias is None or self.bias.fits)

    def needs(self, resource: Resource, page_size: int) -> Sequence[Range]:
        if resource is EMBEDS:
            return self.uses(resource, page_size)[: min(self.steps, 2)]  # nothing is put into the input of one step
        return pages_of(self.context.intervals, page_size) if resource is PAGES else self.uses(resource, page_size)

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        if resource is EMBEDS:
            return ((self.embed, self.embed + 1), (self.input, self.input + 1))
        if resource is STATES:
            return self.context.used_states
        return pages_of((*self.context.intervals, *self.own), page_size)
