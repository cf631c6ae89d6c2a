"""Token lists of calls: what stands for a token, and what of it refers to earlier samples."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.ids import REFERENCE_BIT
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Reference

MOST_LISTED = 1 << 20
"""Tokens in the lists of all commands of a batch, where each command may have many: a few megabytes on the worker."""
MOST_OF_CONTEXT = 1 << 17
"""Tokens in a list of one call that looks at a whole context or vocabulary: about four milliseconds to convert."""
MOST_CONTEXT = 1 << 20
"""Tokens of a text, whatever the model's context. To give a guest as many, or to make their keys, keeps everybody else
on its host waiting for a tenth of a second."""


def longest_text(max_context: int) -> int:
    """Tokens of the longest text that calls know of: what the model's context holds, unless that is little."""
    return max(MOST_OF_CONTEXT, min(max_context, MOST_CONTEXT))


def check_vocabulary(space: AddressSpace, tokens: Sequence[int]) -> None:
    """Raises InvalidArgument unless all are tokens of the model, none a reference."""
    vocabulary = space.model.vocab_size
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary):
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        raise InvalidArgument(f"token {bad} is outside of the vocabulary of {vocabulary} tokens")


def resolve(space: AddressSpace, queue: int, tokens: Sequence[int]) -> tuple[Sequence[int], Sequence[Reference]]:
    """Tokens with 0 in place of references, and the references. Raises InvalidArgument, NotFound."""
    vocabulary = space.model.vocab_size
    if max(tokens) < vocabulary:
        if min(tokens) < 0:
            raise InvalidArgument(f"token {min(tokens)} is negative")
        return tokens, ()
    literal = list(tokens)
    references = []
    for index, token in enumerate(tokens):
        if token >= vocabulary or token < 0:
            references.append((index, _future(space, queue, token)))
            literal[index] = 0
    return literal, references


def _future(space: AddressSpace, queue: int, token: int) -> int:
    future = token - REFERENCE_BIT
    if future < 0:
        raise InvalidArgument(f"token {token} is outside of the vocabulary of {space.model.vocab_size} tokens")
    space.check_reference(future, queue)
    return future


def check_recent(space: AddressSpace, recent: Sequence[int]) -> None:
    """Raises InvalidArgument if penalties should count more tokens than a context can have."""
    if len(recent) > space.model.max_context:
        raise InvalidArgument(
            f"{len(recent)} recent tokens are more than the model's context of {space.model.max_context}: "
            "name the latest ones"
        )


def parse_allowed(text: str, vocabulary: int) -> bytes:
    """Bits of the tokens that may come, from base64. Raises InvalidArgument."""
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
