"""Accepts `forward`, `copy_kvpage` and `trim_kvpage`: validation and logical effect at issue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument, InvalidState
from pie_control.resources.pages import Context
from pie_control.resources.ranges import Range, parse_ranges, total_length

from .commands import CopyCommand, ForwardCommand
from .hazards import (
    embed_read_hazard,
    embed_write_hazard,
    make_stamp,
    note_reads,
    note_writes,
    page_hazard,
    rewrite_hazard,
)

if TYPE_CHECKING:
    from .account import Account


def forward(
    account: Account,
    queue: int,
    context: Sequence[int],
    inputs: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    now: float,
) -> None:
    """Runs the Transformer over the inputs (forward.wit); the four lists are ranges.

    Raises InvalidArgument (no input, too many outputs, too long), NotFound, InvalidState (embed never filled, no slot).
    """
    found = account.queue_for_command(queue)
    sources = parse_ranges(inputs, "embed")
    if not sources:
        raise InvalidArgument("forward needs at least one input embed")
    positions = account.embeds.filled_positions(sources)
    count = len(positions)
    read = parse_ranges(context, "context page")
    seen = account.pages.context(read, min(positions), max(positions))
    if seen.tokens + count > account.model.max_context:
        _refuse_length(account, seen, count)
    written = parse_ranges(output_pages, "output page")
    own = account.pages.free_slots(written, count) if written else None
    if own is None and count > account.model.max_batch_tokens:
        _refuse_dropping(account, count)
    outputs = _check_outputs(account, output_embeds, count) if output_embeds else ()
    after = rewrite_hazard(account, own) if own and account.rewrites else 0
    if len(account.queues) > 1:
        after = max(after, _hazards(account, queue, (*read, *written), sources, outputs))
    if after:
        after = account.still_needed(after)
    seq = account.next_seq()
    command = ForwardCommand(account, seq, after, None, seen, sources, positions, own, outputs, count)
    _take_effect(account, command, make_stamp(seq, queue))
    account.enqueue(found, command, now)


def _refuse_length(account: Account, seen: Context, count: int) -> NoReturn:
    raise InvalidArgument(
        f"the forward sees {seen.tokens} context tokens and {count} inputs, the model's limit is "
        f"{account.model.max_context}; leave pages out of the context"
    )


def _refuse_dropping(account: Account, count: int) -> NoReturn:
    raise InvalidArgument(
        f"{count} inputs without output pages; at most {account.model.max_batch_tokens} can run without keeping "
        "keys and values, name output pages or split the call"
    )


def _check_outputs(account: Account, output_embeds: Sequence[int], count: int) -> tuple[Range, ...]:
    outputs = parse_ranges(output_embeds, "output embed")
    if total_length(outputs) > count:
        raise InvalidArgument(f"{total_length(outputs)} output embeds for {count} inputs; there cannot be more outputs")
    account.embeds.check_owned(outputs)
    return outputs


def _hazards(
    account: Account, queue: int, pages: Sequence[Range], inputs: Sequence[Range], outputs: Sequence[Range]
) -> int:
    return max(
        page_hazard(account, queue, pages),
        embed_read_hazard(account, queue, inputs),
        embed_write_hazard(account, queue, outputs),
    )


def _take_effect(account: Account, command: ForwardCommand, stamp: int) -> None:
    if command.own:
        account.pages.append(command.own, command.positions, stamp)
    note_reads(account, command.inputs, stamp)
    if not command.outputs:
        return
    kept = command.positions[command.length - total_length(command.outputs) :]
    done = 0
    for first, last in command.outputs:
        account.embeds.positions[first:last] = kept[done : done + last - first]
        done += last - first
    note_writes(account, command.outputs, stamp)


def copy_kvpage(account: Account, queue: int, source: Sequence[int], target: Sequence[int], now: float) -> None:
    """Copies tokens from slots to slots (page * page_size + offset, as ranges). Raises as `forward`."""
    found = account.queue_for_command(queue)
    read, write = _slots(account, source, "source slot"), _slots(account, target, "target slot")
    if len(read) != len(write):
        raise InvalidArgument(f"{len(read)} source slots and {len(write)} target slots; the numbers must be equal")
    if not len(read):
        return
    filled = account.pages.filled(read)
    if not filled.all():
        raise InvalidState(f"source slot {read[~filled][0]} holds no token; copy filled slots only")
    after = account.still_needed(_copy_hazard(account, queue, read, write))
    seq = account.next_seq()
    account.pages.copy(read, write, make_stamp(seq, queue))
    account.enqueue(found, CopyCommand(account, seq, after, None, read, write), now)


def _slots(account: Account, flat: Sequence[int], what: str) -> NDArray[np.int64]:
    ranges = parse_ranges(flat, what)
    size = account.model.page_size
    account.pages.check_owned([(first // size, (last - 1) // size + 1) for first, last in ranges])
    pieces = [np.arange(first, last, dtype=np.int64) for first, last in ranges]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _copy_hazard(account: Account, queue: int, read: NDArray[np.int64], write: NDArray[np.int64]) -> int:
    if account.pages.filled(write).any():
        return account.backlog.issued  # earlier commands may read what is overwritten
    pages = np.unique(np.concatenate([read, write]) // account.model.page_size).tolist()
    after = max((account.rewrites.get(page, 0) for page in pages), default=0)
    if len(account.queues) > 1:
        after = max(after, page_hazard(account, queue, [(page, page + 1) for page in pages]))
    return after


def trim_kvpage(account: Account, queue: int, ranges: Sequence[int], keep: int, now: float) -> None:
    """Keeps the first `keep` slots of the pages, counted along the list, and frees those behind for new tokens.

    A change of the logical state only: commands issued before still see the tokens, those issued later do not.
    """
    account.find_queue(queue)
    parsed = parse_ranges(ranges, "KV page")
    if keep < 0:
        raise InvalidArgument(f"keep is {keep}; it must not be negative")
    account.pages.check_owned(parsed)
    for page in account.pages.trim(parsed, keep):
        account.rewrites[page] = account.backlog.issued
