"""Pages, and which states of texts are kept in them."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import Unsupported
from inferlet_sdk.traits.core import ModelInfo


class Page:
    """A page that contexts hold. `kept`: behind how many of its tokens states are kept; all contexts that hold it may
    go on from there."""

    __slots__ = ("address", "holders", "kept", "sealed")

    def __init__(self, address: int, sealed: bool = False) -> None:
        self.address = address
        self.holders = 1
        self.sealed = sealed  # exported or imported: nobody writes to it
        self.kept: tuple[int, ...] = ()

    def copied(self, copy: Page, tokens: int) -> Page:
        """A copy of its first tokens. What is exported or imported is kept in copies, too."""
        if self.sealed and tokens in self.kept:
            copy.kept = (tokens,)
        return copy

    @property
    def is_shared(self) -> bool:
        return self.holders > 1 or self.sealed


def check_states(info: ModelInfo, operation: str) -> None:
    """Raises Unsupported if the model keeps a state of each text."""
    if info.state_pages:
        raise Unsupported(
            f"{operation}: {info.name} keeps a state of each text, from which no token can be taken out, and which no "
            "other tokens can be put before: fill a new context with the tokens that shall stay"
        )


def forget_kept(pages: Iterable[Page], tokens: int) -> None:
    """Pages were cut behind so many tokens of the first one."""
    for place, page in enumerate(pages):
        page.kept = tuple(one for one in page.kept if not place and one <= tokens)


class KeptStates:
    """The part of a table of pages that knows where states of its text are kept."""

    def __init__(self, info: ModelInfo) -> None:
        self._page_size = info.page_size
        self._has_states = info.state_pages > 0
        self._pages: list[Page] = []
        self.context: list[int] = []

    def keep_state(self, queue: int, tokens: int) -> bool:
        """Keeps the state behind the first `tokens` tokens, which are all that have keys. False if it was kept."""
        page, behind = self._place(tokens)
        if behind in page.kept:
            return False
        traits.keep_state(queue, Pages(self.context))
        page.kept = *page.kept, behind
        return True

    def let_go(self, queue: int, tokens: int) -> None:
        """The state behind the first `tokens` tokens is not kept any more, unless others may go on from there."""
        if tokens > len(self._pages) * self._page_size:
            return
        page, behind = self._place(tokens)
        if behind in page.kept and not page.is_shared:
            self.drop_state(queue, tokens)
            page.kept = tuple(one for one in page.kept if one != behind)

    def drop_state(self, queue: int, tokens: int) -> None:
        """Nothing goes on any more from behind the first `tokens` tokens, where a state is."""
        traits.drop_state(queue, Pages(self.context), tokens)

    def note_kept(self, tokens: int) -> None:
        """The state behind the first `tokens` tokens came with its page, and is kept; if the model has any."""
        if self._has_states:
            page, behind = self._place(tokens)
            page.kept = *page.kept, behind

    def let_go_within(self, queue: int, first: int, end: int) -> None:
        """States behind the first `first` tokens, or more, but before `end`, are given back, unless they are kept."""
        while (found := traits.find_state(queue, Pages(self.context), end - 1)) >= max(first, 1):
            page, behind = self._place(found)
            if behind not in page.kept:
                self.drop_state(queue, found)
            end = found

    def _place(self, tokens: int) -> tuple[Page, int]:
        place, rest = divmod(tokens - 1, self._page_size)
        return self._pages[place], rest + 1
