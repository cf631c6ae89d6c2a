"""`sample_constrained` that gives the log-probability of the token, too, and of the most probable ones."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..kind import define
from ..sampler import Sampler
from ..scores import check_alternatives
from ..tokens import check_recent, parse_allowed, resolve
from .sample import ScoredToken, issue_sample


def issue(
    space: AddressSpace,
    queue: int,
    embed: int,
    sampler: Sampler,
    recent: Sequence[int],
    allowed: str,
    alternatives: int,
    future: int,
) -> None:
    """As `sample_constrained`; `alternatives`: how many of the most probable tokens. Raises InvalidArgument, NotFound,
    InvalidState (embed never filled, or an input)."""
    space.check_command(queue)
    check_alternatives(alternatives)
    bits = parse_allowed(allowed, space.model.vocab_size) if allowed else None
    check_recent(space, recent)
    literal, references = resolve(space, queue, recent) if recent else ((), ())
    issue_sample(space, queue, embed, sampler, literal, references, bits, future, alternatives)


CALL = define(__name__, issue, value=ScoredToken)
