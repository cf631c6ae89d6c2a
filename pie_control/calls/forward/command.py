"""Commands whose tokens pass through the Transformer."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.record import Int32
from pie_control.resources.kinds import EMBEDS, STATES, Resource
from pie_control.resources.ranges import Range, are_sound, total_length
from pie_control.resources.tables.contexts import NO_STATE, Context, pages_of
from pie_inference.protocol import ModelDescription

from ..kind import LongCommand

INTERVAL_BYTES, POSITION_BYTES = 128, 40
"""Memory of an interval of slots, and of a position, while a command waits."""
FEW_BYTES = 4096
"""So much of such lists is not counted."""


def held_bytes(seen: Context, count: int) -> int:
    """Memory of what a forward of so many inputs sees, however short the lists of its call are; 0: it is little."""
    size = INTERVAL_BYTES * len(seen.intervals) + POSITION_BYTES * count
    return size if size > FEW_BYTES else 0


class PassCommand(LongCommand, frozen=True):
    """Input tokens that pass through the Transformer. `size` is their number; `own` are the virtual slots of their keys
    and values, None if these are dropped after the call."""

    context: Context
    inputs: Sequence[Range]
    positions: Sequence[Int32]
    own: Sequence[Range] | None
    outputs: Sequence[Range]
    adapter: Int32

    @property
    def intervals(self) -> int:
        return len(self.context.intervals)

    def fits(self, model: ModelDescription) -> bool:
        context, own, size = self.context, self.own, self.size
        sound = are_sound(self.inputs, own or (), self.outputs) and context.fits
        counts = (
            0 < size == total_length(self.inputs) == len(self.positions) and size + context.tokens <= model.max_context
        )
        kept = (own is None or total_length(own) == size) and total_length(self.outputs) <= size
        room = not self.whole or size <= model.max_batch_tokens
        states = (context.states is None) == (not model.num_states) and len(context.left) < size
        return sound and counts and kept and room and states

    @property
    def bounded(self) -> bool:
        return self.context.by_position or self.context.mask is not None

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        if resource is EMBEDS:
            return (*self.inputs, *self.outputs)
        if resource is STATES:
            return self.context.used_states
        return pages_of((*self.context.intervals, *(self.own or ())), page_size)

    def needs(self, resource: Resource, page_size: int) -> Sequence[Range]:
        if resource is STATES:  # those that a draft leaves behind its rows may have no memory
            states = self.context.states
            return () if states is None else [(one, one + 1) for one in states if one != NO_STATE]
        return self.uses(resource, page_size)
