"""`sample` with penalties over recent tokens, and only of allowed tokens."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..kind import define
from ..sampler import Sampler
from ..tokens import resolve
from .sample import Token, issue_sample


def issue(
    space: AddressSpace, queue: int, embed: int, sampler: Sampler, recent: Sequence[int], allowed: str, future: int
) -> None:
    """`recent` may hold token references of this queue, and as many tokens as the model's context at most. `allowed` is
    base64 of ceil(vocab_size / 8) bytes, lowest bit first; "": all tokens. Raises InvalidArgument, NotFound,
    InvalidState (embed never filled, or an input)."""
    space.check_command(queue)
    bits = _parse_allowed(allowed, space.model.vocab_size) if allowed else None
    if len(recent) > space.model.max_context:
        raise InvalidArgument(
            f"{len(recent)} recent tokens are more than the model's context of {space.model.max_context}: "
            "name the latest ones"
        )
    literal, references = resolve(space, queue, recent) if recent else ((), ())
    issue_sample(space, queue, embed, sampler, literal, references, bits, future)


def _parse_allowed(text: str, vocabulary: int) -> bytes:
    try:
        allowed = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise InvalidArgument(f"`allowed` is not base64: {error}") from None
    size = -(-vocabulary // 8)
    if len(allowed) != size:
        raise InvalidArgument(f"the allowed-token mask has {len(allowed)} bytes, {vocabulary} tokens need {size}")
    padding = size * 8 - vocabulary
    if not any(allowed[:-1]) and not allowed[-1] & (0xFF >> padding):
        raise InvalidArgument("the allowed-token mask allows no token")
    return allowed


CALL = define(__name__, issue, value=Token)
