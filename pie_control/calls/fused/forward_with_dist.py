"""`embed_txt`, `forward` and `get_next_dist` in one call: a step of a program that looks at every distribution."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges

from ..kind import define
from ..output_text import get_next_dist
from .last_step import MOST_NUMBERS, LastStep
from .step import StepCommand, Way, issue_step


class DistStep(StepCommand, frozen=True):
    """A step whose distribution is read."""

    call = output = get_next_dist.CALL  # which answers it

    k: int
    temperature: float


def issue(
    space: AddressSpace,
    queue: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    input_embeds: Sequence[int],
    context: Sequence[int],
    output_pages: Sequence[int],
    output_embed: int,
    k: int,
    temperature: float,
    future: int,
) -> None:
    """With one output embed. If one of the three is refused, nothing has happened. Raises as they do."""
    way = Way(tokens, positions, input_embeds, context, output_pages, output_embed)
    issue_way(space, queue, way, k, temperature, future)


def issue_way(space: AddressSpace, queue: int, way: Way, k: int, temperature: float, future: int) -> None:
    """The same, with all that a step may have."""
    chosen = get_next_dist.check(space, k, temperature)
    command = issue_step(
        space,
        queue,
        way,
        future,
        DistStep,
        lambda: (chosen, temperature),
        lambda: get_next_dist.issue(space, queue, way.output_embed, k, temperature, future),
    )
    if way.mask is not None or len(way.context) + len(way.output_pages) > MOST_NUMBERS:
        space.last_steps.pop(queue, None)
        return
    inputs = parse_ranges(way.input_embeds, "embed") if command is None else command.inputs
    space.last_steps[queue] = LastStep(command, way, inputs[0][0], chosen, temperature)


CALL = define(__name__, issue, value=get_next_dist.Dist)
