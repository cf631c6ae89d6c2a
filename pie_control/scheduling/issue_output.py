"""Accepts `sample`, `get_next_dist` and `get_logprobs`: validation and logical effect at issue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pie_control.errors import InvalidArgument

from .commands import DistCommand, SampleCommand, ScoreCommand, TokenSource
from .hazards import embed_read_hazard, make_stamp, note_reads
from .issue_input import resolve_tokens
from .values import SamplingParams

if TYPE_CHECKING:
    from .account import Account
    from .queues import CommandQueue

DEFAULT_K = 256


def sample(
    account: Account,
    queue: int,
    embed: int,
    params: SamplingParams,
    uniform: float,
    future: int,
    now: float,
    recent: Sequence[int] = (),
    allowed: bytes | None = None,
) -> None:
    """Samples a token at an output embed; the future gets TokenValue and is a token reference at once.

    `uniform` in [0, 1) is all the randomness; penalties count `recent` tokens (references allowed); `allowed` has
    ceil(vocab_size / 8) bytes, lowest bit first. Raises InvalidArgument, NotFound, InvalidState (embed never filled).
    """
    found = _check(account, queue, embed, future)
    if not 0.0 <= uniform < 1.0:
        raise InvalidArgument(f"uniform is {uniform}; it must lie in [0, 1)")
    if allowed is not None:
        _check_allowed(allowed, account.model.vocab_size)
    literal, references = resolve_tokens(account, queue, recent) if recent else ((), ())
    seq, after = _read(account, queue, embed)
    source = account.sources[future] = TokenSource(queue)
    command = SampleCommand(account, seq, after, future, embed, params, uniform, source, literal, references, allowed)
    account.enqueue(found, command, now)


def get_next_dist(
    account: Account, queue: int, embed: int, k: int, temperature: float, future: int, now: float
) -> None:
    """The `k` most probable next tokens (0: 256, or as many as the model gives); the future gets Dist."""
    found = _check(account, queue, embed, future)
    largest = min(account.model.max_dist, account.model.vocab_size)
    if not 0 <= k <= largest:
        raise InvalidArgument(f"k is {k}; it must lie between 0 and {largest}")
    if not 0.0 < temperature < math.inf:
        raise InvalidArgument(f"temperature is {temperature}; it must be above 0 and finite")
    seq, after = _read(account, queue, embed)
    command = DistCommand(account, seq, after, future, embed, k or min(DEFAULT_K, largest), temperature)
    account.enqueue(found, command, now)


def get_logprobs(account: Account, queue: int, embed: int, tokens: Sequence[int], future: int, now: float) -> None:
    """Log-probabilities of tokens at an output embed; the future gets Logprobs."""
    found = _check(account, queue, embed, future)
    vocabulary = account.model.vocab_size
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise InvalidArgument(f"token {token} is outside of the vocabulary of {vocabulary} tokens")
    seq, after = _read(account, queue, embed)
    account.enqueue(found, ScoreCommand(account, seq, after, future, embed, tuple(tokens)), now)


def _check(account: Account, queue: int, embed: int, future: int) -> CommandQueue:
    found = account.queue_for_command(queue, future)
    positions = account.embeds.positions
    if not 0 <= embed < len(positions) or positions[embed] < 0:
        if embed < 0:
            raise InvalidArgument(f"embed {embed} is negative")
        account.embeds.filled_positions(((embed, embed + 1),))
    return found


def _read(account: Account, queue: int, embed: int) -> tuple[int, int]:
    """Sequence number and `after` of a command that reads one embed."""
    ranges = ((embed, embed + 1),)
    after = account.still_needed(embed_read_hazard(account, queue, ranges)) if len(account.queues) > 1 else 0
    seq = account.next_seq()
    note_reads(account, ranges, make_stamp(seq, queue))
    return seq, after


def _check_allowed(allowed: bytes, vocabulary: int) -> None:
    wanted = -(-vocabulary // 8)
    if len(allowed) != wanted:
        raise InvalidArgument(f"the allowed-token mask has {len(allowed)} bytes, {vocabulary} tokens need {wanted}")
    padding = wanted * 8 - vocabulary
    if not any(allowed[:-1]) and not allowed[-1] & (0xFF >> padding):
        raise InvalidArgument("the allowed-token mask allows no token")
