"""Where the last step of a queue that read a distribution left off.

Nearly always nothing else is called between two steps of a program that looks at every distribution: then what the next
one sees is what the last one saw, and the token that it ran, and nothing has to be looked at again.
"""

from __future__ import annotations

from typing import NamedTuple

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import Range, parse_ranges

from ..adapters import NO_ADAPTER
from .step import StepCommand, Way

MOST_NUMBERS = 64
"""In the lists of pages of a step that is remembered."""


class Place(NamedTuple):
    """Where a step left off that can go on without looking."""

    seq: int  # of the last command of the space, which it was
    changes: int  # of its pages
    slot: int  # of the next token
    end: int  # of the slots of its page
    intervals: tuple[Range, ...]  # that the next step sees
    tokens: int  # in them


class LastStep:
    """The arguments of a step, for the next one. `embed` takes single tokens, `command` is None if it was handed on in
    parts."""

    __slots__ = ("adapter", "command", "context", "embed", "k", "output", "pages", "place", "position", "temperature")

    def __init__(self, command: StepCommand | None, way: Way, embed: int, k: int, temperature: float) -> None:
        self.command = command
        self.position = way.positions[-1]
        self.embed = embed
        self.context = way.context
        self.pages = way.output_pages
        self.output = way.output_embed
        self.adapter = way.adapter
        self.k = k
        self.temperature = temperature
        self.place: Place | None = None

    def goes_on(self, space: AddressSpace, token: int) -> bool:
        """Whether this token can run at `place`, in the same page."""
        place = self.place
        return (
            place is not None
            and place.seq == space.seq
            and place.slot < place.end
            and place.changes == space.pages.changes
            and 0 <= token < space.model.vocab_size
            and self.position + 1 < space.model.max_context
            and place.tokens < space.model.max_context
            and (self.adapter == NO_ADAPTER or self.adapter in space.adapters.values())
            and _is_undisturbed(space)
        )

    def find_place(self, space: AddressSpace) -> None:
        """Sets `place`, right behind the step, if its key is behind all that it saw."""
        command, self.command = self.command, None
        if command is None or command.own is None or command.context.states is not None or not _is_undisturbed(space):
            return
        seen, ((slot, stop), *_) = command.context, command.own
        size = space.model.page_size
        page = slot // size
        ranges = parse_ranges(self.context, "context page")
        *before, (start, until) = seen.intervals or ((slot, slot),)
        behind_all = until == slot and bool(ranges) and ranges[-1][0] <= page < ranges[-1][1]
        regular = stop == slot + 1 and space.pages.fill[page] == stop - page * size
        sees_all = space.pages.all_tokens(ranges)[0].tokens == seen.tokens + 1  # none that the next position uncovers
        if behind_all and regular and sees_all and seen.mask is None and not seen.by_position:
            intervals = (*before, (start, stop))
            self.place = Place(space.seq, space.pages.changes, stop, (page + 1) * size, intervals, seen.tokens + 1)


def remember(
    space: AddressSpace, queue: int, command: StepCommand | None, way: Way, k: int, temperature: float
) -> None:
    """A step that reads a distribution; none goes on from one without tokens, with a mask, or with long lists of pages.
    `command` is None if it was handed on in parts."""
    if not way.tokens or way.mask is not None or len(way.context) + len(way.output_pages) > MOST_NUMBERS:
        space.last_steps.pop(queue, None)
        return
    embed = way.input_embeds[0] if command is None else command.inputs[0][0]
    space.last_steps[queue] = LastStep(command, way, embed, k, temperature)


def _is_undisturbed(space: AddressSpace) -> bool:
    """Whether no other queue, run, export or trim matters."""
    return space.has_one_queue and not (space.runs or space.pages.withheld or space.hazards.rewrites)
