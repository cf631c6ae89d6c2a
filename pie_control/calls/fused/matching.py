"""Matchers, as calls see them: where a text is in a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.record import Record

WHERE_IT_PAYS = 1
"""This value of `skip` ends the run where it usually pays to run the forced tokens together."""
USUALLY_PAYS = 10
"""A new run takes about as long to begin as so many forced tokens one by one. It is fixed: a model may write a
forced text with other tokens than those that are run together, so what followed the load would change texts."""


def least_forced(skip: int) -> int:
    """How many forced tokens end a run that was issued with `skip`; 0: none do."""
    return USUALLY_PAYS if skip == WHERE_IT_PAYS else skip


class Constraint(Record, frozen=True, tag=None):
    """What a decode run has to keep to. `source`: the grammar, as the engine compiles it; `accepted`: tokens before the
    run; `skip`: the run is over where so many tokens are forced (0: it goes on)."""

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


def keep_to(matcher: Matcher, skip: int, vocabulary_size: int) -> Constraint:
    """What a run has to keep to that goes on from where a matcher stands. Raises InvalidArgument."""
    if matcher.vocabulary_size != vocabulary_size:
        raise InvalidArgument("the matcher belongs to a grammar of another model: compile it with a queue of this one")
    return Constraint(matcher.source, tuple(matcher.tokens), least_forced(skip))
