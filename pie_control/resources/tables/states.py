"""The states of texts of one inferlet, at a model whose layers keep some beside keys and values.

Theory of operation. A state is what the model knows behind the tokens that it has read. It hangs on the page with the
last of them. A forward goes on from the state of the last page that it sees, if this state has read what the forward
sees, in this order; and it leaves the state behind its inputs at the page that it ends in. This is done in place, so
the state moves on with its text. A copy of the last tokens of a text to another page is a fork: the state hangs on both
pages, and who goes on first reads it there and leaves its own one elsewhere. A state is dropped when a page that it has
read changes or is given back. Everything else is refused: a forward never runs with a state that does not belong to its
context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pie_control.errors import InvalidArgument, InvalidState
from pie_control.resources.intervals import join_intervals, take_intervals
from pie_control.resources.ranges import Range, merge, overlap, total_length

from .addresses import AddressAllocator
from .contexts import NO_STATE, Context

FRESH = -2
"""In place of the address of the state that a forward leaves: one that must be bound first."""
_WHOLE_TEXTS = "the model keeps a state of each text, so a forward sees a whole text in the order in which it was run"


class State(NamedTuple):
    """What hangs on a page."""

    address: int
    read: tuple[Range, ...]  # virtual slots, in order
    stamp: int  # of the last command that used it (hazards.py)


class StateTable:
    """States by the page that they hang on. Their addresses are not known to the inferlet."""

    def __init__(self, page_size: int) -> None:
        self.owned = 0
        self._page_size = page_size
        self._at: dict[int, State] = {}
        self._addresses = AddressAllocator(lambda added: None)

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

    def check(self, context: Context, own: Sequence[Range] | None) -> tuple[int, int]:
        """The addresses of the states that a forward begins with and leaves: NO_STATE where there is none, FRESH if one
        must be bound. Raises InvalidArgument, InvalidState."""
        if context.mask is not None:
            raise InvalidArgument(f"{_WHOLE_TEXTS}: leave the mask out")
        if context.by_position:
            raise InvalidArgument(f"{_WHOLE_TEXTS}: some context tokens are at positions of inputs, or behind them")
        begins = self._of_context(context).address if context.tokens else NO_STATE
        if own is None:
            return begins, NO_STATE
        if begins != NO_STATE:
            return begins, FRESH if self._is_shared(begins) else begins
        replaced = self._at.get(self._last_page(own))
        return begins, FRESH if replaced is None or self._is_shared(replaced.address) else replaced.address

    def newest_use(self, addresses: tuple[int, int]) -> int:
        """Largest stamp of the states at these addresses."""
        return max((one.stamp for one in self._at.values() if one.address in addresses), default=0)

    def move_on(self, context: Context, own: Sequence[Range] | None, stamp: int) -> State | None:
        """The forward of this stamp goes on. Returns the state that another one has replaced: it must be given back."""
        assert context.states is not None
        begins, leaves = context.states
        for page, one in self._at.items():
            if one.address == begins:
                self._at[page] = one._replace(stamp=stamp)
        if own is None:
            return None
        if begins != NO_STATE:
            del self._at[self._last_page(context.intervals)]
        page = self._last_page(own)
        replaced = self._at.get(page)
        self._at[page] = State(leaves, tuple(join_intervals(context.intervals, own)), stamp)
        return None if replaced is None or replaced.address in self._addresses_held() else replaced

    def copied(self, source: Sequence[Range], target: Sequence[Range]) -> None:
        """Slots were copied to as many others, which were free. If they are the last ones of a text, the state hangs on
        the page of the copy, too."""
        state = self._at.get(self._last_page(source))
        if state is None:
            return
        before = total_length(state.read) - total_length(source)
        if before < 0 or take_intervals(state.read, before, total_length(state.read)) != join_intervals((), source):
            return
        page = self._last_page(target)
        if page not in self._at:
            read = join_intervals(take_intervals(state.read, 0, before), target)
            self._at[page] = state._replace(read=read)

    def drop(self, pages: Sequence[Range]) -> tuple[Range, ...]:
        """Forgets the states that have read any of these pages, which must be given back: their addresses."""
        size = self._page_size
        slots = merge((first * size, last * size) for first, last in pages)
        pages_of_them = [page for page, one in self._at.items() if overlap(slots, sorted(one.read))]
        dropped = {self._at.pop(page).address for page in pages_of_them} - self._addresses_held()
        return merge((address, address + 1) for address in dropped)

    def _addresses_held(self) -> set[int]:
        return {one.address for one in self._at.values()}

    def _is_shared(self, address: int) -> bool:
        return sum(one.address == address for one in self._at.values()) > 1

    def _of_context(self, context: Context) -> State:
        page = self._last_page(context.intervals)
        state = self._at.get(page)
        if state is None:
            raise InvalidState(
                f"{_WHOLE_TEXTS}: page {page}, the last one of the context, has no state; it moved on with another "
                "forward, or its text was changed: run the text again in new pages"
            )
        if state.read != context.intervals:
            raise InvalidState(
                f"{_WHOLE_TEXTS}: the state of page {page} has read other tokens than those of the context, or in "
                "another order: name all pages of the text in order, with no token hidden"
            )
        return state

    def _last_page(self, slots: Sequence[Range]) -> int:
        return (slots[-1][1] - 1) // self._page_size
