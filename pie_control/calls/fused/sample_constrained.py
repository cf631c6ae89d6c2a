"""`sample` with penalties over recent tokens, and only of allowed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..kind import define
from ..sampler import Sampler
from ..tokens import check_recent, parse_allowed, resolve
from .sample import Token, issue_sample


def issue(
    space: AddressSpace, queue: int, embed: int, sampler: Sampler, recent: Sequence[int], allowed: str, future: int
) -> None:
    """`recent` may hold token references of this queue, and as many tokens as the model's context at most. `allowed` is
    base64 of ceil(vocab_size / 8) bytes, lowest bit first; "": all tokens. Raises InvalidArgument, NotFound,
    InvalidState (embed never filled, or an input)."""
    space.check_command(queue)
    bits = parse_allowed(allowed, space.model.vocab_size) if allowed else None
    check_recent(space, recent)
    literal, references = resolve(space, queue, recent) if recent else ((), ())
    issue_sample(space, queue, embed, sampler, literal, references, bits, future)


CALL = define(__name__, issue, value=Token)
