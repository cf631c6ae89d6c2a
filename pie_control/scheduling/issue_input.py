"""Accepts `embed_txt`: validation and logical effect at issue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pie_control.errors import InvalidArgument, NotFound
from pie_control.resources.ranges import parse_ranges, total_length

from .commands import EmbedCommand, Reference, TokenSource
from .hazards import embed_write_hazard, make_stamp, note_writes
from .values import again

if TYPE_CHECKING:
    from .account import Account

REFERENCE_BIT = 0x8000_0000


def embed_txt(
    account: Account, queue: int, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int], now: float
) -> None:
    """Fills embeds from tokens at positions: three lists of one length, embeds as ranges.

    A token 0x8000_0000 + future is what an earlier `sample` of the same queue gives. Raises InvalidArgument, NotFound.
    """
    found = account.queue_for_command(queue)
    ranges = parse_ranges(embeds, "embed")
    count = len(tokens)
    if len(positions) != count or total_length(ranges) != count:
        raise InvalidArgument(
            f"embed-txt got {count} tokens, {len(positions)} positions and {total_length(ranges)} embeds; "
            "the numbers must be equal"
        )
    if not count:
        return
    _check_positions(positions, account.model.max_context)
    account.embeds.check_owned(ranges)
    literal, references = resolve_tokens(account, queue, tokens)
    seq = account.next_seq()
    after = account.still_needed(embed_write_hazard(account, queue, ranges)) if len(account.queues) > 1 else 0
    _fill(account, ranges, positions)
    note_writes(account, ranges, make_stamp(seq, queue))
    account.enqueue(found, EmbedCommand(account, seq, after, None, literal, references, ranges), now)


def _check_positions(positions: Sequence[int], limit: int) -> None:
    if max(positions) >= limit or min(positions) < 0:
        bad = next(position for position in positions if not 0 <= position < limit)
        raise InvalidArgument(f"position {bad} is outside of the model's context of {limit} tokens")


def _fill(account: Account, ranges: Sequence[tuple[int, int]], positions: Sequence[int]) -> None:
    done = 0
    for first, last in ranges:
        account.embeds.positions[first:last] = positions[done : done + last - first]
        done += last - first


def resolve_tokens(account: Account, queue: int, tokens: Sequence[int]) -> tuple[Sequence[int], tuple[Reference, ...]]:
    """Tokens with 0 in place of references, and the references. Raises InvalidArgument, NotFound."""
    if max(tokens) < account.model.vocab_size:
        if min(tokens) < 0:
            raise InvalidArgument(f"token {min(tokens)} is negative")
        return tokens, ()
    literal = list(tokens)
    references = []
    for index, token in enumerate(tokens):
        if token >= account.model.vocab_size or token < 0:
            references.append((index, _source(account, queue, token)))
            literal[index] = 0
    for _, source in references:
        source.named = True
    return literal, tuple(references)


def _source(account: Account, queue: int, token: int) -> TokenSource:
    future = token - REFERENCE_BIT
    if future < 0:
        raise InvalidArgument(f"token {token} is outside of the vocabulary of {account.model.vocab_size} tokens")
    source = account.sources.get(future)
    if source is None:
        raise NotFound(f"token reference {future} names no `sample` future of this inferlet, or one long delivered")
    if source.queue != queue:
        raise InvalidArgument(f"token reference {future} belongs to queue {source.queue}, not to queue {queue}")
    if source.error is not None:
        raise again(source.error)
    return source
