"""What one inferlet holds of one model, and the calls that it may make.

Every call validates everything first: it raises a CallError and changes nothing, or it is accepted. Ranges are flat
lists [first, length, ...]; `queue` is a number from `create_queue`; `now` is in seconds; `future` is a number that the
caller chooses, unique while it is not answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pie_control.errors import CallError, InvalidArgument, NotFound
from pie_control.resources.embeds import EmbedTable
from pie_control.resources.pages import PageTable
from pie_control.resources.quotas import Quota, Usage, check_quota
from pie_control.resources.ranges import Range, parse_ranges, total_length
from pie_inference.protocol import ModelDescription

from .commands import AllocateCommand, Command, SynchronizeCommand, TokenSource
from .hazards import MAX_QUEUE, make_stamp
from .issue_forward import copy_kvpage, forward, trim_kvpage
from .issue_input import embed_txt
from .issue_output import get_logprobs, get_next_dist, sample
from .memory import Memory
from .queues import Backlog, CommandQueue
from .values import again

REMEMBERED_TOKENS = 4096
"""Sampled tokens per inferlet that can still be named by a token reference after they were delivered."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the accounts of one scheduler have in common."""

    model: ModelDescription
    quota: Quota
    backlog: Backlog
    memory: Memory


class Account:
    """One inferlet's address space, queues and outstanding futures on one model."""

    def __init__(self, owner: int, created: float, shared: Shared) -> None:
        self.owner = owner
        self.created = created
        self.shared = shared
        self.backlog = shared.backlog
        self.model = shared.model
        self.pages = PageTable(shared.model.page_size)
        self.embeds = EmbedTable()
        self.queues: dict[int, CommandQueue] = {}
        self.futures: set[int] = set()
        self.sources: dict[int, TokenSource] = {}
        self.ended: CallError | None = None  # why it can make no further call
        self.waiting = 0  # commands not yet dispatched
        self.oldest_waiting = 0  # every command with a smaller sequence number was dispatched by an earlier wave
        self.rewrites: dict[int, int] = {}  # page emptied by trim -> sequence number up to which commands may use it
        self.frees: deque[tuple[int, Sequence[Range], Sequence[Range]]] = deque()  # (seq, pages, embeds)
        self._delivered: deque[int] = deque()
        self._queues_made = 0

    # ---- queues ----

    def create_queue(self) -> int:
        self._check_alive()
        check_quota(len(self.queues), 1, self.shared.quota.queues, "queues", "destroy queues that are not used")
        self._queues_made = self._queues_made % MAX_QUEUE + 1
        while self._queues_made in self.queues:
            self._queues_made = self._queues_made % MAX_QUEUE + 1
        self.queues[self._queues_made] = CommandQueue(self, self._queues_made)
        return self._queues_made

    def destroy_queue(self, queue: int) -> None:
        """Ends the queue after the commands that it holds."""
        found = self.find_queue(queue)
        found.closing = True
        self.forget_if_closed(found)

    def set_queue_priority(self, queue: int, priority: int) -> None:
        """Higher goes first; 0 at creation."""
        self.find_queue(queue).priority = priority

    def synchronize(self, queue: int, future: int, now: float) -> None:
        """The future is done when all commands issued to the queue before have taken effect."""
        found = self.queue_for_command(queue, future)
        self.enqueue(found, SynchronizeCommand(self, self.next_seq(), 0, future), now)

    # ---- memory ----

    def alloc_kvpage(self, queue: int, count: int, now: float) -> int:
        """First of `count` consecutive page addresses. Raises QuotaExceeded, Exhausted (more than the pool)."""
        found = self.queue_for_command(queue)
        self._check_count(count, "pages")
        self.shared.memory.check_size(self.pages.owned, count, True)
        check_quota(self.pages.owned, count, self.shared.quota.pages, "KV pages", "free some first")
        seq = self.next_seq()
        first = self.pages.allocate(count, make_stamp(seq, queue))
        self.enqueue(found, AllocateCommand(self, seq, 0, None, True, first, count), now)
        return first

    def alloc_emb(self, queue: int, count: int, now: float) -> int:
        """First of `count` consecutive embed addresses. Raises QuotaExceeded, Exhausted (more than the pool)."""
        found = self.queue_for_command(queue)
        self._check_count(count, "embeds")
        self.shared.memory.check_size(self.embeds.owned, count, False)
        check_quota(self.embeds.owned, count, self.shared.quota.embeds, "embeds", "free some first")
        seq = self.next_seq()
        first = self.embeds.allocate(count, make_stamp(seq, queue))
        self.enqueue(found, AllocateCommand(self, seq, 0, None, False, first, count), now)
        return first

    def dealloc_kvpage(self, queue: int, ranges: Sequence[int], now: float) -> None:
        """The addresses are invalid at once; the pages come back when all commands issued before were dispatched."""
        self.find_queue(queue)
        parsed = parse_ranges(ranges, "KV page")
        self.pages.check_owned(parsed)
        self.pages.disown(parsed)
        for page in [page for page in self.rewrites if self.pages.fill[page] < 0] if self.rewrites else ():
            self.rewrites.pop(page, None)
        self._free(parsed, ())

    def dealloc_emb(self, queue: int, ranges: Sequence[int], now: float) -> None:
        """As `dealloc_kvpage`."""
        self.find_queue(queue)
        parsed = parse_ranges(ranges, "embed")
        self.embeds.check_owned(parsed)
        self.embeds.disown(parsed)
        self._free((), parsed)

    def _free(self, pages: Sequence[Range], embeds: Sequence[Range]) -> None:
        self.frees.append((self.next_seq(), pages, embeds))
        self.run_frees()

    def run_frees(self) -> None:
        """Gives back what no waiting command can touch any more."""
        oldest = self.oldest_now()
        while self.frees and self.frees[0][0] < oldest:
            _, pages, embeds = self.frees.popleft()
            self.shared.memory.free(self, pages, embeds)

    def held(self, pages: bool) -> int:
        """Physical pages or embeds that ending this inferlet gives back."""
        return self.pages.bound if pages else self.embeds.bound

    def returning(self, pages: bool) -> int:
        """Pages or embeds given back that waiting commands may still touch."""
        return sum(total_length(free[1] if pages else free[2]) for free in self.frees)

    # ---- commands: see the modules issue_input, issue_forward and issue_output ----

    embed_txt = embed_txt
    forward = forward
    copy_kvpage = copy_kvpage
    trim_kvpage = trim_kvpage
    sample = sample
    get_next_dist = get_next_dist
    get_logprobs = get_logprobs

    def usage(self) -> Usage:
        return Usage(self.pages.owned, self.embeds.owned, len(self.queues), self.waiting, len(self.futures))

    # ---- for the modules of this package ----

    def find_queue(self, queue: int) -> CommandQueue:
        """Raises the error that ended the account, or NotFound."""
        if self.ended is not None:
            raise again(self.ended)
        found = self.queues.get(queue)
        if found is None or found.closing:
            raise NotFound(f"queue {queue} does not exist; create-queue gives queues")
        return found

    def queue_for_command(self, queue: int, future: int | None = None) -> CommandQueue:
        """The queue, if a further command (with a future) may wait. Raises as `find_queue`, and QuotaExceeded."""
        found = self.find_queue(queue)
        quota = self.shared.quota
        if self.waiting >= quota.commands:
            check_quota(self.waiting, 1, quota.commands, "waiting commands", "wait for results before issuing more")
        if future is not None:
            assert future not in self.futures, f"future {future} is in use"
            if len(self.futures) >= quota.futures:
                check_quota(len(self.futures), 1, quota.futures, "futures", "wait for some of them first")
        return found

    def next_seq(self) -> int:
        self.backlog.issued += 1
        return self.backlog.issued

    def enqueue(self, queue: CommandQueue, command: Command, now: float) -> None:
        if command.future is not None:
            self.futures.add(command.future)
        self.backlog.add(queue, command, now)

    def forget_if_closed(self, queue: CommandQueue) -> None:
        if queue.closing and not queue.commands:
            self.queues.pop(queue.id, None)

    def oldest_now(self) -> int:
        """Sequence number that no waiting command is below."""
        oldest = self.backlog.issued + 1
        if self.waiting:
            for queue in self.queues.values():
                if queue.commands and queue.commands[0].seq < oldest:
                    oldest = queue.commands[0].seq
        return oldest

    def still_needed(self, after: int) -> int:
        """`after` for a command issued now: 0 if all the commands up to it were dispatched already."""
        return after if after and after >= self.oldest_now() else 0

    def wave_formed(self) -> None:
        """What the wave took has been dispatched: later waves may rely on it."""
        self.oldest_waiting = self.oldest_now()
        if self.frees:
            self.run_frees()
        if self.rewrites:
            self.rewrites = {page: seq for page, seq in self.rewrites.items() if seq >= self.oldest_waiting}

    def remember(self, future: int) -> None:
        """A sampled token was delivered: keep it for references, and drop the oldest ones."""
        self._delivered.append(future)
        if len(self._delivered) > REMEMBERED_TOKENS:
            self.sources.pop(self._delivered.popleft(), None)

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues, and that no waiting command is older than is claimed."""
        assert self.waiting == sum(len(queue.commands) for queue in self.queues.values())
        assert self.oldest_waiting <= self.oldest_now()
        heads = (command.future for queue in self.queues.values() for command in queue.commands)
        assert self.futures.issuperset(future for future in heads if future is not None)

    def _check_alive(self) -> None:
        if self.ended is not None:
            raise again(self.ended)

    @staticmethod
    def _check_count(count: int, what: str) -> None:
        if count <= 0:
            raise InvalidArgument(f"{count} {what} asked for; ask for at least 1")
