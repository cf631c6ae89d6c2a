"""A decode run: many steps of `embed_txt`, `forward` and `sample` in one command, without a trip through the program.

The first step samples at an output embed. Each further one puts the token before it into an input embed, runs it, with
its keys in the next reserved slot, and samples again. The command stands at the head of its queue until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import pack
from typing import NamedTuple

import msgspec

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.hazards import make_stamp
from pie_control.resources.kinds import STATES
from pie_control.resources.ranges import Range, parse_ranges
from pie_control.resources.tables.contexts import Context
from pie_control.resources.tables.reservations import reserve
from pie_control.resources.tables.runs import HeldRun
from pie_control.resources.tables.states import MovingState

from ..adapters import NO_ADAPTER, find_adapter
from ..allocate.dealloc import give_back
from ..forward import forward
from ..forward.command import held_bytes
from ..forward.plain import bind_fresh, with_states
from ..input_text import embed_txt
from ..kind import Call, EndRun, Handle, RunOf
from ..outputs import check_output, note_reading
from ..positions import check_positions
from ..sampler import Bias, Draws, Sampler
from ..scores import MOST_ALTERNATIVES, NO_SCORES, check_alternatives
from ..tokens import check_recent, check_vocabulary, parse_allowed
from ..values import Run
from . import sample
from .matching import Constraint, Matcher, keep_to
from .runs import RunCommand

MOST_STEPS = 1024
"""Most steps of one run: its random numbers and slots are set aside when it is issued."""
MOST_STOPS = 64
"""Stop tokens of one run."""
RUN_BYTES = 100
"""Memory of a token of a run that was not taken, with its text."""
LARGEST_WINDOW = 2**32 - 1
"""Tokens of the widest window: what crosses to other processes has no more than 64 bits."""
SCORES_BYTES = 8 * (1 + MOST_ALTERNATIVES)
"""Most memory of its log-probabilities."""


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of this name (fused.wit)."""

    recent: list[int] = []
    window: int = 0  # 0: all
    allowed: str = ""  # base64; "": all tokens
    logprobs: int | None = None
    adapter: str = ""  # "": none


class _Chosen(NamedTuple):
    """What sampler, options and matcher mean: the last fields of the command."""

    recent: Sequence[int]
    window: int
    allowed: bytes | None
    bias: Bias | None
    alternatives: int
    adapter: int
    constraint: Constraint | None


_decoder = msgspec.json.Decoder(_Options)
_NOTHING_SAID = _Options()


def issue(
    space: AddressSpace,
    queue: int,
    embed: int,
    sampler: Sampler,
    input: int,
    position: int,
    context: Sequence[int],
    pages: Sequence[int],
    steps: int,
    stop: Sequence[int],
    options: str,
    matcher: Matcher | None,
    skip: int,
    future: int,
) -> Callable[[int], None] | None:
    """`context` and `pages` are ranges. The matcher stays as it is. Gives what is told how many tokens were taken, if
    fewer than were delivered: so many draws were needed. Raises InvalidArgument (a matcher of another model), NotFound,
    InvalidState (no output at `embed`, too few free slots, a run of another queue uses an embed)."""
    constraint = None if matcher is None else keep_to(matcher, skip, space.model.vocab_size)
    check_output(space, queue, embed)
    _check_numbers(space, input, steps, stop)
    chosen = _choose(space, sampler, options, constraint)
    read, written = parse_ranges(context, "context page"), parse_ranges(pages, "page")
    embeds = sorted(((embed, embed + 1), (input, input + 1))) if steps > 1 else ()
    if space.runs:
        space.runs.check_embeds(queue, embeds)
    seen = _context(space, read, position, steps)
    used, size = 0, held_bytes(seen, 0)
    if size:
        space.check_large(size)
    if space.model.num_states and steps > 1:
        seen, used = with_states(space, queue, seen, ())
    reservation = reserve(space.pages, written, steps - 1) if steps > 1 else None  # nothing is refused from here on
    own, sees = (reservation.own, (*read, *written)) if reservation is not None else ((), read)
    after = _hazards(space, queue, (*read, *written), own, embeds)
    seen = bind_fresh(space, queue, seen)
    seq, before = note_reading(space, queue, ((embed, embed + 1),))
    draws = sampler.draw_many(steps) if sampler.params.temperature else None
    stamp = make_stamp(seq, queue)
    moving = None if seen.states is None else space.states.begin_run(seen, own, stamp)
    settle = partial(_settle, space, draws, moving, stamp, size)
    space.hold_large(size)
    space.runs.begin(future, HeldRun(queue, embeds, sees, reservation, position, settle))
    space.embeds.empty(embeds)
    way = embed, input, position, seen, own, steps, tuple(stop), sampler.params
    uniform = pack(f"<{steps}d", *draws.numbers) if draws else b""
    space.issue(RunCommand(space.owner, queue, seq, max(after, before, used), future, (), *way, uniform, *chosen))
    return draws.use if draws is not None else None


def cancel(space: AddressSpace, future: int) -> bool:
    """Ends a run now: tokens that were not delivered are nobody's. False if it is over, or never was."""
    run = space.runs.find(future)
    if run is None:
        return False
    space.runs.end(future)
    space.tell(EndRun(space.owner, run.queue, future))
    return True


def _check_numbers(space: AddressSpace, input: int, steps: int, stop: Sequence[int]) -> None:
    if input < 0:
        raise InvalidArgument(f"embed {input} is negative")
    space.embeds.check_owned(((input, input + 1),))
    if not 1 <= steps <= MOST_STEPS:
        raise InvalidArgument(
            f"a decode run has 1 to {MOST_STEPS} steps, not {steps}: issue the others as further runs"
        )
    if len(stop) > MOST_STOPS:
        raise InvalidArgument(f"{len(stop)} stop tokens are more than {MOST_STOPS}: look for the others yourself")
    check_vocabulary(space, stop)


def _choose(space: AddressSpace, sampler: Sampler, options: str, constraint: Constraint | None) -> _Chosen:
    try:
        given = _decoder.decode(options) if options else _NOTHING_SAID
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"options are a JSON object with recent, window, allowed, logprobs and adapter: {error}"
        ) from None
    check_recent(space, given.recent)
    check_vocabulary(space, given.recent)
    if not 0 <= given.window <= LARGEST_WINDOW:
        raise InvalidArgument(f"window is {given.window}; it must lie between 0 (all) and {LARGEST_WINDOW}")
    allowed = parse_allowed(given.allowed, space.model.vocab_size) if given.allowed else None
    if given.logprobs is not None:
        check_alternatives(given.logprobs)
    if sampler.bias is not None:
        sampler.bias.check(space.model.vocab_size)
    recent = tuple(given.recent) if sampler.params.has_penalties else ()
    alternatives = NO_SCORES if given.logprobs is None else given.logprobs
    adapter = find_adapter(space, given.adapter) if given.adapter else NO_ADAPTER
    return _Chosen(recent, given.window, allowed, sampler.bias, alternatives, adapter, constraint)


def _context(space: AddressSpace, ranges: Sequence[Range], position: int, steps: int) -> Context:
    """What all steps see beside the run's own tokens."""
    limit, last = space.model.max_context, position + steps - 2
    if steps == 1:  # the token is not run, so the context may be full
        if not 0 <= position <= limit:
            raise InvalidArgument(f"position {position} is behind the model's context of {limit} tokens")
        space.pages.check_owned(ranges)
        return Context((), 0)
    check_positions((position, last), limit)
    seen = space.pages.context(ranges, position, last)
    if seen.by_position:
        raise InvalidArgument(
            f"the context has tokens at positions from {position} on, where the run begins: leave them out, or decode "
            "step by step"
        )
    if seen.tokens + steps - 1 > limit:
        raise InvalidArgument(
            f"the context has {seen.tokens} tokens, and {steps} steps run {steps - 1} more; the model's limit is "
            f"{limit}: ask for fewer steps, or leave pages out"
        )
    return seen


def _hazards(
    space: AddressSpace, queue: int, pages: Sequence[Range], own: Sequence[Range], embeds: Sequence[Range]
) -> int:
    hazards = space.hazards
    after = hazards.of_rewriting(own)
    if space.has_one_queue:
        return after
    return max(after, hazards.of_pages(queue, pages), hazards.of_writing(queue, embeds))


def _result_bytes(
    embed: int,
    sampler: Sampler,
    input: int,
    position: int,
    context: Sequence[int],
    pages: Sequence[int],
    steps: int,
    stop: Sequence[int],
    options: str,
    matcher: Matcher | None,
    skip: int,
) -> int:
    """At most: options that say `logprobs` may ask for them."""
    return min(steps, MOST_STEPS) * (RUN_BYTES + (SCORES_BYTES if "logprobs" in options else 0))


def _settle(
    space: AddressSpace,
    draws: Draws | None,
    moving: MovingState | None,
    stamp: int,
    size: int,
    delivered: int,
    by_itself: bool,
) -> None:
    """A run has ended: draws that it did not use are free again, as is what it sees, and its state hangs where it
    stands."""
    space.hold_large(-size)
    if draws is not None:
        draws.use(delivered)
    if moving is not None and (left := space.states.end_run(moving, delivered - 1 if by_itself else None, stamp)):
        give_back(space, STATES, left)


CALL = Call(
    __name__,
    issue,
    value=Run,
    result_bytes=_result_bytes,
    handles={"sampler": Handle(Sampler), "matcher": Handle(Matcher, optional=True)},
    needs={"matcher": "grammar"},
    run=RunOf(stop="stop", cancel=cancel),
)
RunCommand.call, RunCommand.embeds, RunCommand.forwards = sample.CALL, embed_txt.CALL, forward.CALL
