"""States of a text that are kept, so that the sequence can go back there. The host knows where states are
(`traits.find_state`); here is which of them stay, and the outputs there."""

from __future__ import annotations

from inferlet_sdk import traits
from inferlet_sdk.errors import Unsupported
from inferlet_sdk.sequences.output_embed import OutputEmbed
from inferlet_sdk.sequences.page_table import PageTable
from inferlet_sdk.sequences.states.outputs import KeptOutputs
from inferlet_sdk.traits.core import ModelInfo


def check_states(info: ModelInfo, operation: str) -> None:
    """Raises Unsupported if the model keeps a state of each text."""
    if info.state_pages:
        raise Unsupported(
            f"{operation}: {info.name} keeps a state of each text, from which no token can be taken out, and which no "
            "other tokens can be put before: fill a new context with the tokens that shall stay"
        )


class KeptStates:
    """Those of one sequence. Each stays until the sequence is cut before it; the one that is held, until another one
    is."""

    def __init__(self, pages: PageTable) -> None:
        self._pages = pages
        self._stay: set[int] = set()
        self._held = 0
        self._outputs = KeptOutputs()

    def share_with(self, child: KeptStates) -> None:
        """A child has them, too."""
        child._stay = self._stay.copy()
        self._outputs.share_with(child._outputs)

    def keep(self, queue: int, tokens: int, output: OutputEmbed | None) -> None:
        """Keeps the state behind the first `tokens` tokens, which are all that have keys. `output`: that of the last of
        them, if it is there."""
        self._keep(queue, tokens, output)
        self.note(tokens)

    def note(self, tokens: int) -> None:
        """The state behind the first `tokens` tokens is kept."""
        self._stay.add(tokens)
        if self._held == tokens:
            self._held = 0

    def hold(self, queue: int, tokens: int, output: OutputEmbed | None) -> None:
        """Does as `keep`, until the next time."""
        if self._held not in (0, tokens):
            self._let_go(queue, self._held)
        self._keep(queue, tokens, output)
        self._held = 0 if tokens in self._stay else tokens

    def _keep(self, queue: int, tokens: int, output: OutputEmbed | None) -> None:
        self._pages.own_end(queue)  # in the copy that it would become nothing is kept
        traits.keep_state(queue, self._pages.pages)
        if output is not None:
            self._outputs.keep(tokens, output)

    def _let_go(self, queue: int, tokens: int) -> None:
        """Gives it back, unless others may go on from there."""
        pages = self._pages
        if pages.owns(tokens) and traits.find_state(queue, pages.pages, tokens) == tokens:
            traits.drop_state(queue, pages.pages, tokens)
        self._outputs.let_go(queue, tokens)

    def cut(self, queue: int, tokens: int, output: OutputEmbed) -> bool:
        """The sequence has the first `tokens` tokens from now on, behind which a state is. Whether it has the output of
        the last of them, too: in `output`."""
        self._stay = {one for one in self._stay if one <= tokens}
        if self._held > tokens:
            self._held = 0
        if tokens in self._stay or tokens == self._held > 0:
            traits.keep_state(queue, self._pages.pages)  # again: its page may be a copy
        return self._outputs.take(queue, tokens, output)

    def close(self, queue: int) -> None:
        """Keeps no output. The states go with the pages."""
        self._outputs.close(queue)
