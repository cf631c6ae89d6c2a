"""A forward over embeds that are filled, of which nothing is read: what it checks, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from msgspec import structs

from pie_control.errors import Exhausted, InvalidArgument, QuotaExceeded, Unsupported
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.hazards import make_stamp
from pie_control.resources.kinds import STATES
from pie_control.resources.ranges import Range, parse_ranges, total_length
from pie_control.resources.tables.contexts import Context
from pie_control.resources.tables.states import FRESH

from ..adapters import NO_ADAPTER
from ..allocate.dealloc import give_back
from ..arrays import addresses
from ..kind import Bind
from .batch import ForwardCommand
from .command import PassCommand, held_bytes
from .masks import seen_through


def issue(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    *,
    adapter: int = NO_ADAPTER,
    mask: Sequence[int] | None = None,
) -> None:
    """The four lists are ranges. `mask` is that of `forward`. Raises InvalidArgument (no input, too many
    outputs, too long), NotFound, InvalidState (embed never filled, no free slot, a decode run of another queue uses an
    output embed), Unsupported (an output as input, and the model takes tokens only)."""
    space.check_command(queue)
    inputs, positions = filled(space, input_embeds)
    run(space, queue, check(space, queue, context, inputs, positions, output_pages, output_embeds, adapter, mask))


def run(space: AddressSpace, queue: int, found: Checked, *, draft: bool = False) -> None:
    """Issues a forward that nobody refuses."""
    found = bind_state(space, queue, found, draft)
    command = ForwardCommand(space.owner, queue, space.next_seq(), found.after, None, (), *found[1:])
    take_effect(space, command)
    hand_on(space, command)


def hand_on(space: AddressSpace, command: PassCommand) -> None:
    """Issues a forward that was checked, and counts what it keeps."""
    space.issue(command)
    if size := held_bytes(command.context, command.size):
        space.note_large(size)


def filled(space: AddressSpace, input_embeds: Sequence[int]) -> tuple[tuple[Range, ...], Sequence[int]]:
    """The inputs of a forward, and their positions. Raises InvalidArgument, NotFound, InvalidState, Unsupported (an
    output, and the model takes tokens only)."""
    inputs = parse_ranges(input_embeds, "embed")
    if not inputs:
        raise InvalidArgument("a forward needs at least one input embed")
    positions = space.embeds.filled_positions(inputs)
    if space.model.by_token and (output := space.embeds.first_output(inputs)) >= 0:
        raise Unsupported(
            f"embed {output} holds an output, and layers of model {space.model.name} look up the token of each input: "
            "sample a token, and fill the embed with embed-txt"
        )
    return inputs, positions


class Checked(NamedTuple):
    """What nobody refuses; but for the first, the fields of the command."""

    after: int
    size: int
    whole: bool
    context: Context
    inputs: Sequence[Range]
    positions: Sequence[int]
    own: Sequence[Range] | None
    outputs: Sequence[Range]
    adapter: int


def check(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    inputs: Sequence[Range],
    positions: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    adapter: int,
    mask: Sequence[int] | None,
    draft: bool = False,
) -> Checked:
    """A forward over inputs that hold tokens at these positions, as many; changes nothing. Raises as `issue`."""
    count = len(positions)
    read = parse_ranges(context, "context page")
    if mask is None:
        seen = space.pages.context(read, min(positions), max(positions))
    else:
        seen = seen_through(space, context, mask, count)
    if seen.tokens + count > space.model.max_context:
        _refuse_length(space, seen, count)
    written = parse_ranges(output_pages, "output page")
    own = space.pages.free_slots(written, count) if written else None
    outputs = _check_outputs(space, queue, output_embeds, count) if output_embeds else ()
    looks_ahead = seen.mask is not None and seen.mask.later
    whole = own is None or draft or looks_ahead or (count > 1 and _overwrites_inputs(inputs, outputs, count))
    if whole and count > space.model.max_batch_tokens:
        _refuse_whole(space, own is None, looks_ahead, count)
    if size := held_bytes(seen, count):
        space.check_large(size)
    after = space.hazards.of_rewriting(own) if own else 0
    if not space.has_one_queue:
        after = max(after, _hazards(space, queue, (*read, *written), inputs, outputs))
    if space.model.num_states:
        seen, used = with_states(space, queue, seen, own, draft)
        after = max(after, used)
    return Checked(after, count, whole, seen, inputs, positions, own, outputs, adapter)


def with_states(
    space: AddressSpace, queue: int, seen: Context, own: Sequence[Range] | None, draft: bool = False
) -> tuple[Context, int]:
    """The context with its states, and the command of another queue that used them last. Raises as `issue`."""
    states = space.states.check(seen, own, draft)
    if FRESH in states:
        space.check_allocation(STATES, 1)
        space.check_command(queue, 5)  # the others that are issued with the forward, and those that bind states
    return structs.replace(seen, states=states), space.states.newest_use(states, queue)


def bind_state(space: AddressSpace, queue: int, found: Checked, draft: bool = False) -> Checked:
    """What was checked, with its state bound and moved on; the next command of the space is the forward."""
    if found.context.states is None:
        return found
    context = found.context if found.own is None else bind_fresh(space, queue, found.context)
    if draft:
        context = _bind_left(space, queue, context, found.size - 1)
    space.states.move_on(context, found.own, make_stamp(space.seq + 1, queue), draft)
    return found._replace(context=context)


def bind_fresh(space: AddressSpace, queue: int, context: Context) -> Context:
    """The context with an address for the state that is left, if it needs one. Who goes on from a state of a draft
    gives the others back."""
    if left := space.states.choose(context):
        give_back(space, STATES, left)
    if context.states is None or FRESH not in context.states:
        return context
    seq = space.next_seq()
    address = space.own(STATES, 1, queue)
    space.issue(Bind(space.owner, queue, seq, 0, None, (), STATES, address, 1))
    return structs.replace(context, states=(context.states[0], address))


def _bind_left(space: AddressSpace, queue: int, context: Context, rows: int) -> Context:
    """The context with addresses for states behind the first rows of a draft: as many as the inferlet may hold."""
    rows = _most_states(space, rows) if space.model.states_by_row else 0
    if not rows:
        return context
    seq = space.next_seq()
    first = space.own(STATES, rows, queue)
    space.await_memory(seq, partial(_bound, space, first, rows))
    space.issue(Bind(space.owner, queue, seq, 0, None, (), STATES, first, rows, fewer=True))
    return structs.replace(context, left=tuple(range(first, first + rows)))


def _most_states(space: AddressSpace, most: int) -> int:
    for count in range(most, 0, -1):
        try:
            space.check_allocation(STATES, count)
        except (QuotaExceeded, Exhausted):
            continue
        return count
    return 0


def _bound(space: AddressSpace, first: int, asked: int, count: int) -> None:
    if left := space.states.bound(first, asked, count):
        give_back(space, STATES, left)


def _refuse_length(space: AddressSpace, seen: Context, count: int) -> NoReturn:
    raise InvalidArgument(
        f"the forward sees {seen.tokens} context tokens and {count} inputs, the model's limit is "
        f"{space.model.max_context}; leave pages out of the context"
    )


def _refuse_whole(space: AddressSpace, dropping: bool, looks_ahead: bool, count: int) -> NoReturn:
    most = space.model.max_batch_tokens
    if looks_ahead:
        raise InvalidArgument(
            f"the mask shows inputs to those before them; at most {most} inputs can run so, not {count}: mask them, or "
            "split the call"
        )
    if dropping:
        raise InvalidArgument(
            f"{count} inputs without output pages; at most {most} can run without keeping "
            "keys and values, name output pages or split the call"
        )
    raise InvalidArgument(
        f"outputs go to embeds that are inputs of later tokens; at most {most} inputs can run so, not {count}: "
        "name other output embeds or split the call"
    )


def _overwrites_inputs(inputs: Sequence[Range], outputs: Sequence[Range], count: int) -> bool:
    """Whether an output goes to the input of a later token, which a later part of the call would read."""
    if not any(first < end and begin < last for first, last in outputs for begin, end in inputs):
        return False
    indices = {embed: index for index, embed in enumerate(addresses(inputs))}
    token = count - total_length(outputs)
    return any(indices.get(embed, -1) > token + number for number, embed in enumerate(addresses(outputs)))


def _check_outputs(space: AddressSpace, queue: int, output_embeds: Sequence[int], count: int) -> tuple[Range, ...]:
    outputs = parse_ranges(output_embeds, "output embed")
    if total_length(outputs) > count:
        raise InvalidArgument(f"{total_length(outputs)} output embeds for {count} inputs; there cannot be more outputs")
    space.embeds.check_owned(outputs)
    if space.runs:
        space.runs.check_embeds(queue, outputs)
    return outputs


def _hazards(
    space: AddressSpace, queue: int, pages: Sequence[Range], inputs: Sequence[Range], outputs: Sequence[Range]
) -> int:
    hazards = space.hazards
    return max(hazards.of_pages(queue, pages), hazards.of_reading(queue, inputs), hazards.of_writing(queue, outputs))


def take_effect(space: AddressSpace, command: PassCommand) -> None:
    """What a forward that was just numbered changes."""
    stamp = space.stamp(command.queue)
    if command.own is not None:
        space.pages.append(command.own, command.positions, stamp)
    space.hazards.note_reads(command.inputs, stamp, space.has_one_queue)
    if command.outputs:
        last = command.positions[command.size - total_length(command.outputs) :]
        space.embeds.fill(command.outputs, last, is_output=True)
        space.hazards.note_writes(command.outputs, stamp)
