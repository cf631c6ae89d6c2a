"""Data hazards between queues of one inferlet, and between a command and slots that are written anew.

Within a queue, order and the conflict rules of batches suffice. Between queues of an inferlet that touch the same page
or embed, and for slots that were emptied by `trim` or are overwritten by `copy`, the later command waits until all
earlier ones of the inferlet were dispatched in an earlier wave: `Command.after`. That is coarse, but these cases are
rare, and since it follows the order of issue it cannot deadlock.

A *stamp* is the sequence number of a command and the number of its queue in one integer, so the newer is the larger.
Reads of shared pages leave no stamp: branches that read a common prefix never wait for each other. Pages need no
read stamps, for a filled slot is written again only after `trim` or by `copy`, and both wait for everything before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pie_control.resources.ranges import Range

if TYPE_CHECKING:
    from .account import Account

QUEUE_BITS = 20
MAX_QUEUE = (1 << QUEUE_BITS) - 1
SEVERAL_QUEUES = 0  # in place of a queue number: readers in more than one queue


def make_stamp(seq: int, queue: int) -> int:
    return seq << QUEUE_BITS | queue


def page_hazard(account: Account, queue: int, ranges: Sequence[Range]) -> int:
    """`after` for a command of `queue` that reads or appends to pages."""
    floor = account.oldest_waiting << QUEUE_BITS
    if not ranges or account.pages.newest_write(ranges) < floor:
        return 0
    return _newest_of_others(queue, floor, account.pages.writes, ranges)


def embed_read_hazard(account: Account, queue: int, ranges: Sequence[Range]) -> int:
    """`after` for a command of `queue` that reads embeds."""
    floor = account.oldest_waiting << QUEUE_BITS
    return _newest_of_others(queue, floor, account.embeds.writes, ranges)


def embed_write_hazard(account: Account, queue: int, ranges: Sequence[Range]) -> int:
    """`after` for a command of `queue` that writes embeds."""
    floor = account.oldest_waiting << QUEUE_BITS
    reads = _newest_of_others(queue, floor, account.embeds.reads, ranges)
    return max(reads, _newest_of_others(queue, floor, account.embeds.writes, ranges))


def _newest_of_others(queue: int, floor: int, stamps: Sequence[int], ranges: Sequence[Range]) -> int:
    newest = 0
    for first, last in ranges:
        for stamp in stamps[first:last]:
            if stamp >= floor and stamp > newest and stamp & MAX_QUEUE != queue:
                newest = stamp
    return newest >> QUEUE_BITS


def note_reads(account: Account, ranges: Sequence[Range], stamp: int) -> None:
    """Records that the command of this stamp reads embeds."""
    reads = account.embeds.reads
    if len(account.queues) == 1:
        for first, last in ranges:
            reads[first:last] = [stamp] * (last - first)
        return
    floor = account.oldest_waiting << QUEUE_BITS
    queue = stamp & MAX_QUEUE
    for first, last in ranges:
        for embed in range(first, last):
            before = reads[embed]
            foreign = before >= floor and before & MAX_QUEUE != queue
            reads[embed] = stamp - queue + SEVERAL_QUEUES if foreign else stamp


def note_writes(account: Account, ranges: Sequence[Range], stamp: int) -> None:
    """Records that the command of this stamp writes embeds."""
    writes = account.embeds.writes
    for first, last in ranges:
        writes[first:last] = [stamp] * (last - first)


def rewrite_hazard(account: Account, intervals: Sequence[Range]) -> int:
    """`after` for a command that fills slots some of which `trim` emptied."""
    size = account.pages.page_size
    pages = (page for start, stop in intervals for page in range(start // size, (stop - 1) // size + 1))
    return max((account.rewrites.get(page, 0) for page in pages), default=0)
