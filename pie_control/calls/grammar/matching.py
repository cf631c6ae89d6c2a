"""Matchers, as calls see them: where a text is in a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.record import Record


class Constraint(Record, frozen=True, tag=None):
    """What a decode run has to keep to. `source`: the grammar, as the engine compiles it; `accepted`: tokens before the
    run; `skip`: the run is over where so many tokens are forced (0: it goes on; 1: as many as it
    pays to run together)."""

    source: str
    accepted: Sequence[int]
    skip: int


class Matcher:
    """A handle of the inferlet. What it can answer is the business of who made it."""

    source: str
    tokens: list[int]
    vocabulary_size: int

    @property
    def bytes(self) -> int:
        """What a command that names it keeps, about."""
        return len(self.source) + 8 * len(self.tokens)
