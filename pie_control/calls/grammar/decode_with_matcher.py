"""A decode run that keeps to a grammar: the worker follows the matcher beside its sampler."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..fused import decode
from ..kind import define
from ..sampler import Sampler
from ..values import Run
from .matching import Constraint, Matcher, least_forced


def issue(
    space: AddressSpace,
    queue: int,
    embed: int,
    sampler: Sampler,
    matcher: Matcher,
    skip: int,
    input: int,
    position: int,
    context: Sequence[int],
    pages: Sequence[int],
    steps: int,
    stop: Sequence[int],
    options: str,
    future: int,
) -> None:
    """The matcher stays as it is. Raises InvalidArgument (a matcher of another model) and as `decode`."""
    if matcher.vocabulary_size != space.model.vocab_size:
        raise InvalidArgument("the matcher belongs to a grammar of another model: compile it with a queue of this one")
    constraint = Constraint(matcher.source, tuple(matcher.tokens), least_forced(skip))
    run = embed, sampler, input, position, context, pages, steps, stop, options
    decode.issue(space, queue, *run, future, constraint=constraint)


CALL = define(__name__, issue, value=Run)
