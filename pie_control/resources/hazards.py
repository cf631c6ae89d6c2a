"""Data hazards between queues of one inferlet, and between a command and slots that are written anew.

Within a queue, order and the conflict rules of batches suffice. Between queues of an inferlet that touch the same page
or embed, and for slots that were emptied by `trim_kvpage` or are overwritten by `copy_kvpage`, the later command waits
until all earlier ones of the inferlet were dispatched in an earlier wave: `Command.after`. That is coarse, but these
cases are rare, and since it follows the order of issue it cannot deadlock.

A *stamp* is the sequence number of a command and the number of its queue in one integer, so the newer is the larger.
Reads of shared pages leave no stamp: branches that read a common prefix never wait for each other. Pages need no
read stamps, for a filled slot is written again only after `trim_kvpage`, by `copy_kvpage` or by `shift_kvpage`, and all
of these wait for everything before. Stamps below `floor` belong to commands that were dispatched, or to none: no
command waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .ranges import Range
from .tables.embeds import EmbedTable
from .tables.pages import NOT_OWNED, PageTable

QUEUE_BITS = 32  # never used up: numbers are not given twice
MAX_QUEUE = (1 << QUEUE_BITS) - 1
SEVERAL_QUEUES = 0  # in place of a queue number: readers in more than one queue


def make_stamp(seq: int, queue: int) -> int:
    return seq << QUEUE_BITS | queue


class Hazards:
    """Finds, for a command that is issued now, up to which sequence number others must be dispatched before it: its
    `after`, 0 for none."""

    def __init__(self, pages: PageTable, embeds: EmbedTable) -> None:
        self.floor = make_stamp(1, 0)  # commands are numbered from 1 on
        self.rewrites: dict[int, int] = {}  # page emptied by a trim -> last command that may use what was there
        self._pages = pages
        self._embeds = embeds

    def dispatched(self, oldest: int) -> None:
        """No command below this sequence number waits any more."""
        self.floor = oldest << QUEUE_BITS
        if self.rewrites:
            self.rewrites = {page: seq for page, seq in self.rewrites.items() if seq >= oldest}

    # ---- between queues ----

    def of_pages(self, queue: int, ranges: Sequence[Range]) -> int:
        """For a command of `queue` that reads or appends to pages."""
        if not ranges or self._pages.newest_write(ranges) < self.floor:
            return 0
        return self._newest_of_others(queue, self._pages.writes, ranges)

    def of_reading(self, queue: int, embeds: Sequence[Range]) -> int:
        """For a command of `queue` that reads embeds."""
        return self._newest_of_others(queue, self._embeds.writes, embeds)

    def of_writing(self, queue: int, embeds: Sequence[Range]) -> int:
        """For a command of `queue` that writes embeds."""
        reads = self._newest_of_others(queue, self._embeds.reads, embeds)
        return max(reads, self._newest_of_others(queue, self._embeds.writes, embeds))

    def _newest_of_others(self, queue: int, stamps: Sequence[int], ranges: Sequence[Range]) -> int:
        newest, floor = 0, self.floor
        for first, last in ranges:
            for stamp in stamps[first:last]:
                if stamp >= floor and stamp > newest and stamp & MAX_QUEUE != queue:
                    newest = stamp
        return newest >> QUEUE_BITS

    # ---- what is written anew ----

    def trimmed(self, pages: Iterable[int], seq: int) -> None:
        """Commands up to this one may still use the slots that a trim has emptied."""
        for page in pages:
            self.rewrites[page] = seq

    def forget_pages(self) -> None:
        """Drops what is known of pages that are not owned any more."""
        if self.rewrites:
            fill = self._pages.fill
            self.rewrites = {page: seq for page, seq in self.rewrites.items() if fill[page] != NOT_OWNED}

    def of_rewriting(self, slots: Sequence[Range]) -> int:
        """For a command that fills slots; a trim may have emptied some of them."""
        if not self.rewrites:
            return 0
        size = self._pages.page_size
        pages = (page for start, stop in slots for page in range(start // size, (stop - 1) // size + 1))
        return self.of_emptied(pages)

    def of_emptied(self, pages: Iterable[int]) -> int:
        """The newest command that may still use slots of these pages, which a trim has emptied."""
        return max((self.rewrites.get(page, 0) for page in pages), default=0)

    # ---- notes ----

    def note_reads(self, ranges: Sequence[Range], stamp: int, one_queue: bool) -> None:
        """The command of this stamp reads embeds; `one_queue`: the inferlet has no other queue."""
        reads = self._embeds.reads
        if one_queue:
            for first, last in ranges:
                reads[first:last] = [stamp] * (last - first)
            return
        queue = stamp & MAX_QUEUE
        for first, last in ranges:
            for embed in range(first, last):
                before = reads[embed]
                foreign = before >= self.floor and before & MAX_QUEUE != queue
                reads[embed] = stamp - queue + SEVERAL_QUEUES if foreign else stamp

    def note_writes(self, ranges: Sequence[Range], stamp: int) -> None:
        """The command of this stamp writes embeds."""
        writes = self._embeds.writes
        for first, last in ranges:
            writes[first:last] = [stamp] * (last - first)
