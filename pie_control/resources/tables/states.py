"""The states of texts of one inferlet, at a model whose layers keep some beside keys and values.

Theory of operation. A state is what the model knows behind the tokens that it has read. It hangs on the slot with the
last of them. A forward goes on from the state at the end of what it sees, if this state has read what the forward sees,
in this order; and it leaves the state behind its inputs at the slot of the last one. This is done in place, so the
state moves on with its text; but one that is *kept* stays where it is, and the forward leaves its own one elsewhere. A
copy of the last tokens of a text to another page is a fork: the state hangs on both ends, and who goes on first reads
it there and leaves its own one elsewhere. One that is exported or imported is kept. A state is dropped when a slot that
it has read changes or is given back. Everything else is refused: a forward never runs with a state that does not belong
to its context.

A *draft* is a forward of tokens of which some may not stay. It leaves a state behind each of them, if there is memory:
this is known when its command has had its turn, and nobody goes on from there before. The state that it began with
stays where it is. When a forward goes on from one of all these, the others go.

A decode run takes the state along while it goes on, and leaves it at the slot of the last token that it ran. One that
is cancelled has run more tokens than anybody knows: its state is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pie_control.errors import InvalidArgument, InvalidState, QuotaExceeded
from pie_control.resources.hazards import MAX_QUEUE, QUEUE_BITS
from pie_control.resources.intervals import join_intervals, take_intervals
from pie_control.resources.ranges import Range, merge, overlap, total_length

from .addresses import AddressAllocator
from .contexts import NO_STATE, Context

FRESH = -2
"""In place of the address of the state that a forward leaves: one that must be bound first."""
MOST_PIECES = 1 << 16
"""Intervals of slots that all states of an inferlet have read, together: what changes a slot goes through them."""
_WHOLE_TEXTS = "the model keeps a state of each text, so a forward sees a whole text in the order in which it was run"


class State(NamedTuple):
    """What hangs on a slot."""

    address: int
    read: tuple[Range, ...]  # virtual slots, in order
    kept: bool
    written: int  # stamp of the command that has left it (hazards.py)
    used: int  # stamp of the last one that has left or read it
    used_elsewhere: int = 0  # of the last one of another queue than that one's
    sealed: bool = False  # others have it, too: it is kept, on whatever else it hangs
    draft: int = 0  # stamp of the draft that it belongs to; 0: none
    sure: bool = True  # it has memory


@dataclass(slots=True, eq=False)
class MovingState:
    """The state of a text that a decode run takes along. `before`: what hung on the end of the context, and comes back
    if the run has run no token."""

    begins: int
    leaves: int
    context: Sequence[Range]
    own: Sequence[Range]
    before: State | None
    lost: bool = False  # something that it has read changed

    @property
    def is_read(self) -> bool:
        """Whether nobody may write where it begins."""
        return self.begins != self.leaves


class StateTable:
    """States by the slot that they hang on. Their addresses are not known to the inferlet."""

    def __init__(self) -> None:
        self.owned = 0
        self._at: dict[int, State] = {}
        self._moving: list[MovingState] = []
        self._addresses = AddressAllocator()

    # ---- ownership ----

    def allocate(self, count: int, stamp: int) -> int:
        self.owned += count
        return self._addresses.allocate(count)

    def disown(self, ranges: Sequence[Range]) -> None:
        """The addresses are invalid from now on; they are kept until `release`."""
        self.owned -= total_length(ranges)

    def release(self, ranges: Sequence[Range]) -> None:
        """Addresses that were disowned can be handed out again."""
        self._addresses.release(ranges)

    # ---- what forwards do ----

    def check(self, context: Context, own: Sequence[Range] | None, draft: bool = False) -> tuple[int, int]:
        """The addresses of the states that a forward begins with and leaves at its end: NO_STATE where there is none,
        FRESH if one must be bound. Raises InvalidArgument, InvalidState, QuotaExceeded."""
        if context.mask is not None:
            raise InvalidArgument(f"{_WHOLE_TEXTS}: leave the mask out")
        if context.by_position:
            raise InvalidArgument(f"{_WHOLE_TEXTS}: some context tokens are at positions of inputs, or behind them")
        state = self.behind(context.intervals) if context.tokens else None
        if own is None:
            return NO_STATE if state is None else state.address, NO_STATE
        stays = state is None or draft or state.kept or self._is_shared(state.address)
        pieces = (len(context.intervals) + len(own)) * (total_length(own) if draft else 1)
        self._check_pieces(pieces if state is None or stays else pieces - len(state.read))
        if state is None:
            return NO_STATE, FRESH
        return state.address, FRESH if stays else state.address

    def _check_pieces(self, more: int) -> None:
        """Raises QuotaExceeded: with a text of so many intervals more there would be too many."""
        own = sum(len(one.context) + len(one.own) for one in self._moving)
        if (held := own + sum(len(one.read) for one in self._at.values())) + more > MOST_PIECES:
            raise QuotaExceeded(
                f"states have read texts in {held} pieces, and {more} more are asked for; the limit is {MOST_PIECES}: "
                "give texts back, or keep each in pages that lie beside each other"
            )

    def newest_use(self, states: tuple[int, int], queue: int) -> int:
        """The last command of another queue that must have run before a forward with these states; 0: none."""
        begins, leaves = states
        stamps: list[int] = []
        for one in self._at_address(begins):
            stamps += (one.used, one.used_elsewhere) if begins == leaves else (one.written,)
        return max((stamp >> QUEUE_BITS for stamp in stamps if stamp & MAX_QUEUE != queue), default=0)

    def _note_use(self, address: int, stamp: int) -> None:
        for slot, one in self._at.items():
            if one.address == address:
                elsewhere = one.used if (one.used ^ stamp) & MAX_QUEUE else one.used_elsewhere
                self._at[slot] = one._replace(used=stamp, used_elsewhere=elsewhere)

    def choose(self, context: Context) -> tuple[Range, ...]:
        """A forward will go on from here: the other states of the same draft go. Their addresses."""
        if context.states is None or context.states[0] == NO_STATE:
            return ()
        place = last_slot(context.intervals)
        if not (draft := self._at[place].draft):
            return ()
        return self._take(
            [slot for slot, one in self._at.items() if one.draft == draft and not one.kept and slot != place]
        )

    def move_on(self, context: Context, own: Sequence[Range] | None, stamp: int, draft: bool = False) -> None:
        """The forward of this stamp goes on."""
        assert context.states is not None
        begins, leaves = context.states
        self._note_use(begins, stamp)
        if own is None:
            return
        if begins != NO_STATE and not (state := self._at[place := last_slot(context.intervals)]).kept:
            if draft:
                self._at[place] = state._replace(draft=stamp)
            else:
                del self._at[place]
        self._leave(leaves, context, own, stamp, stamp if draft else 0)
        for count, address in enumerate(context.left, 1):
            self._leave(address, context, take_intervals(own, 0, count), stamp, stamp, sure=False)

    def _leave(
        self, address: int, context: Context, own: Sequence[Range], stamp: int, draft: int, sure: bool = True
    ) -> None:
        read = join_intervals(context.intervals, own)
        self._at[last_slot(own)] = State(address, read, False, stamp, stamp, draft=draft, sure=sure)

    def bound(self, first: int, asked: int, count: int) -> tuple[Range, ...]:
        """Notes that the first `count` addresses that a draft asked for have memory. Returns those that must be given
        back."""
        for slot, one in self._at.items():
            if first <= one.address < first + count:
                self._at[slot] = one._replace(sure=True)
        return self._take([slot for slot, one in self._at.items() if first + count <= one.address < first + asked])

    # ---- what decode runs do ----

    def begin_run(self, context: Context, own: Sequence[Range], stamp: int) -> MovingState:
        """The run of this stamp takes the state behind its context along; `own` are the slots that it may fill."""
        assert context.states is not None
        begins, leaves = context.states
        before = None
        if begins != NO_STATE and begins == leaves:
            before = self._at.pop(last_slot(context.intervals))
        elif begins != NO_STATE:
            self._note_use(begins, stamp)
        moving = MovingState(begins, leaves, context.intervals, own, before)
        self._moving.append(moving)
        return moving

    def end_run(self, moving: MovingState, ran: int | None, stamp: int) -> tuple[Range, ...]:
        """A run is over that ran so many tokens; None: nobody knows. Addresses that must be given back."""
        self._moving.remove(moving)
        if not moving.lost and ran:
            read = tuple(join_intervals(moving.context, take_intervals(moving.own, 0, ran)))
            self._at[last_slot(read)] = State(moving.leaves, read, False, stamp, stamp)
            return ()
        if not moving.lost and ran == 0 and moving.before is not None:
            self._at[last_slot(moving.context)] = moving.before
            return ()
        return ((moving.leaves, moving.leaves + 1),)

    # ---- what others do ----

    def keep(self, text: Sequence[Range]) -> None:
        """The state behind these slots stays there. Raises InvalidState."""
        self._at[last_slot(text)] = self.behind(text)._replace(kept=True)

    def let_go(self, text: Sequence[Range]) -> tuple[Range, ...]:
        """The state behind these slots is not there any more. Its address, if it must be given back. Raises
        InvalidState."""
        self.behind(text)
        return self._take([last_slot(text)])

    def seal(self, text: tuple[Range, ...], every: int) -> list[tuple[int, int]]:
        """The state behind these slots is exported, and those behind a multiple of `every` of them: the slots that they
        hang on, and their addresses. Raises InvalidState: there is none behind all."""
        self.behind(text)
        ends = [
            (slot, one.address)
            for slot, one in self._at.items()
            if one.sure and _is_beginning(one.read, text) and (one.read == text or not total_length(one.read) % every)
        ]
        sealed = {address for _, address in ends}
        for slot, one in self._at.items():
            if one.address in sealed:
                self._at[slot] = one._replace(kept=True, sealed=True)
        return ends

    def adopt(self, text: Sequence[Range]) -> int:
        """The state behind these slots was imported with them: its address."""
        address = self.allocate(1, 0)
        self._at[last_slot(text)] = State(address, tuple(text), kept=True, written=0, used=0, sealed=True)
        return address

    def copied(self, source: Sequence[Range], target: Sequence[Range]) -> None:
        """Slots are copied to as many others, which were free. If they are the last ones of a text, the state hangs on
        the end of the copy, too. Raises QuotaExceeded."""
        state = self._at.get(last_slot(source))
        if state is None or not state.sure:
            return
        before = total_length(state.read) - total_length(source)
        if before < 0 or take_intervals(state.read, before, total_length(state.read)) != join_intervals((), source):
            return
        read = join_intervals(take_intervals(state.read, 0, before), target)
        self._check_pieces(len(read))
        self._at[last_slot(target)] = state._replace(read=read, kept=state.sealed, draft=0)

    def drop(self, slots: Sequence[Range]) -> tuple[Range, ...]:
        """Forgets the states that have read any of these slots, which must be given back: their addresses."""
        changed = merge(slots)
        for moving in self._moving:
            moving.lost |= overlap(changed, sorted((*moving.context, *moving.own)))
        return self._take([slot for slot, one in self._at.items() if overlap(changed, sorted(one.read))])

    def find(self, text: tuple[Range, ...], length: int) -> int:
        """The last place up to so many slots of a text where a state is: how many are before it, 0 if there is none."""
        found = (one for one in self._at.values() if one.sure and _is_beginning(one.read, text))
        return max((end for one in found if (end := total_length(one.read)) <= length), default=0)

    def behind(self, text: Sequence[Range]) -> State:
        """The state behind these slots. Raises InvalidState."""
        state = self._at.get(last_slot(text))
        if state is None:
            raise InvalidState(
                f"{_WHOLE_TEXTS}: there is no state at the end of the context; it moved on with another forward, or "
                "its text was changed: run the text again in new pages, or from where a state was kept (keep-state)"
            )
        if not state.sure:
            raise InvalidState(
                "there is a state behind this token of a draft if there was memory for it: go on from there when what "
                "reads the outputs of the draft has answered"
            )
        if state.read != tuple(text):
            raise InvalidState(
                f"{_WHOLE_TEXTS}: the state at the end of the context has read other tokens, or in another order: name "
                "all pages of the text in order, with no token hidden"
            )
        return state

    def _take(self, slots: Sequence[int]) -> tuple[Range, ...]:
        """No state hangs on these slots any more. The addresses that were left."""
        left = {self._at.pop(slot).address for slot in slots} - {one.address for one in self._at.values()}
        return merge((address, address + 1) for address in left)

    def _at_address(self, address: int) -> list[State]:
        return [one for one in self._at.values() if one.address == address]

    def _is_shared(self, address: int) -> bool:
        read = any(moving.begins == address and moving.is_read for moving in self._moving)
        return read or len(self._at_address(address)) > 1


def _is_beginning(read: tuple[Range, ...], text: tuple[Range, ...]) -> bool:
    """Whether slots are the first ones of a text."""
    *before, (start, stop) = read
    if len(read) > len(text) or text[len(before)][0] != start or text[len(before)][1] < stop:
        return False
    return read[:-1] == text[: len(before)]


def last_slot(slots: Sequence[Range]) -> int:
    """The last one of the slots of a text."""
    return slots[-1][1] - 1
