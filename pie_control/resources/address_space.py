"""The address space of one inferlet at one model: everything that decides whether a call is accepted.

Theory of operation. All logical state is decided when a call is made: which pages and embeds the inferlet owns, which
slots are filled with which positions, which earlier commands must be dispatched first. So each call is refused or
accepted at once, without asking anyone. What is accepted leaves as a command, a value that names virtual addresses
only; physical memory is the scheduler's business. It tells the space three things, `progressed`, `answered` and
`run_advanced`, and all may come late: until then the space is only more careful than it needs to be. So it may live in
another process.

The calls themselves are functions over a space, one file each in `pie_control.calls`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, Exhausted, InvalidArgument, NotFound, QuotaExceeded
from pie_control.ids import REFERENCE_BIT, Owner
from pie_inference.protocol import ModelDescription

from .hazards import MAX_QUEUE, Hazards, make_stamp
from .holdings import Forgotten
from .kinds import EMBEDS, PAGES, RESOURCES, STATES, Resource, charged
from .quotas import Ledger, Usage, check_quota
from .ranges import Range, total_length
from .tables.contexts import NO_STATE
from .tables.embeds import EmbedTable
from .tables.pages import PageTable
from .tables.runs import HeldRuns
from .tables.states import StateTable

REMEMBERED_TOKENS = 4096
"""Sampled tokens of one inferlet that a token reference can still name after they were delivered."""
FORGOTTEN_AT_ONCE = 256
"""How many more there may be, so that they are forgotten together."""
DRAINING = 4
"""Destroyed queues that may still have commands, for each queue that an inferlet may have."""
FEW_COMMANDS = 1024
"""Commands that may wait whatever others have; beyond these, as many more are asked for at a time."""
COMMAND_BYTES = 768
"""Memory of a command that waits, beside long lists."""
NO_ADAPTERS: Mapping[str, int] = MappingProxyType({})


class AddressSpace:
    """What one inferlet holds of one model, as issued. `hand_on` takes the commands that it accepts, in order."""

    def __init__(
        self,
        owner: Owner,
        model: ModelDescription,
        ledger: Ledger,
        hand_on: Callable[[Any], None],
        adapters: Mapping[str, int] = NO_ADAPTERS,
    ) -> None:
        self.owner = owner
        self.model = model
        self.adapters = adapters  # numbers of those that the model has now
        self.adapters_used: set[int] = set()  # that keys may depend on, whether they were dropped since or not
        self.ledger = ledger
        self._held = dict.fromkeys(RESOURCES, 0)  # its part of the ledger
        self.pages = PageTable(model.page_size)
        self.embeds = EmbedTable()
        self.states = StateTable()
        self.hazards = Hazards(self.pages, self.embeds)
        self.runs = HeldRuns(self.pages)
        self.run_advanced = self.runs.advanced
        """Tokens of a decode run arrived: see there. A run that fails is `answered`."""
        self.queues: set[int] = set()
        self._draining: deque[tuple[int, int]] = deque()  # (seq, queue), destroyed ones whose commands may wait
        self._last_queue = 0
        self.has_one_queue = False  # so that nothing can conflict between queues
        self.waiting = 0  # commands not known to have left their queues
        self._issued = 0  # commands that wait in queues or did
        self.seq = 0  # of the last command
        self.ended: CallError | None = None  # why it can make no further call
        self._most_waiting = min(FEW_COMMANDS, ledger.quota.commands)
        self._large: deque[tuple[int, int]] = deque()  # (seq, bytes) of commands with long lists that may wait
        self.large_bytes = 0  # their sum
        self._counted_bytes = 0  # of commands that may wait, in the ledger of the tenant
        self.tell = hand_on
        """Hands on what takes effect as it arrives."""
        self._samples: dict[int, _Sample] = {}  # by future
        self.last_steps: dict[int, Any] = {}  # by queue, see calls/fused/last_step.py
        self.last_shift: Any = None  # see calls/forward/shift_kvpage.py
        self._watchers: dict[int, Callable[[Any], None]] = {}  # by future
        self._asked: dict[int, Callable[[int], None]] = {}  # by the number of a command that may have less memory
        self.imports: dict[int, Range | CallError | None] = {}  # by future: first address and number of pages
        self._delivered: deque[int] = deque()  # futures of samples whose tokens were delivered
        self._freed: dict[int, _Freed] = {}  # by seq, ascending: addresses whose memory is still bound

    # ---- for calls: what may be done ----

    def check_queue(self, queue: int) -> None:
        """Raises the error that ended the space, or NotFound."""
        if self.ended is not None:
            raise again(self.ended)
        if queue not in self.queues:
            raise NotFound(f"queue {queue} does not exist; create-queue gives queues")

    def check_command(self, queue: int, count: int = 1) -> None:
        """Whether `count` further commands may wait in a queue. Raises as `check_queue`, and QuotaExceeded."""
        if self.ended is not None or queue not in self.queues:
            self.check_queue(queue)
        if self.waiting + count > self._most_waiting:
            self._allow_more(count)

    def _allow_more(self, count: int) -> None:
        """More commands may wait. Raises QuotaExceeded."""
        most = self.ledger.quota.commands
        check_quota(self.waiting, count, most, "waiting commands", "wait for results first")
        self._check_bytes(FEW_COMMANDS * COMMAND_BYTES)
        self._count_bytes(FEW_COMMANDS * COMMAND_BYTES)
        self._most_waiting = min(self._most_waiting + FEW_COMMANDS, most)

    def check_large(self, size: int) -> None:
        """Whether a command with lists of this size may wait. Raises QuotaExceeded."""
        most = self.ledger.quota.list_bytes
        check_quota(self.large_bytes, size, most, "bytes of lists in commands that wait", "wait for results first")
        self._check_bytes(size)

    def _check_bytes(self, size: int) -> None:
        if self.ledger.tenant is not None:
            self.ledger.tenant.check_waiting(size)

    def open_queue(self, queue: int) -> None:
        """Takes a queue number, which the caller chooses: larger than all before. Raises QuotaExceeded."""
        if self.ended is not None:
            raise again(self.ended)
        assert queue > self._last_queue, f"queue number {queue} comes after {self._last_queue}"
        if queue > MAX_QUEUE:
            raise QuotaExceeded(f"{MAX_QUEUE} queues were created: there are no further numbers")
        most = DRAINING * self.ledger.quota.queues
        check_quota(len(self._draining), 1, most, "destroyed queues whose commands may wait", "wait for results first")
        self.ledger.open_queue()
        self.queues.add(queue)
        self._last_queue = queue
        self._count_queues()

    def close_queue(self, queue: int) -> None:
        """The queue takes no further command; those that it holds still wait. Raises as `check_queue`."""
        self.check_queue(queue)
        self.queues.remove(queue)
        self.last_steps.pop(queue, None)
        self.ledger.close_queues(1)
        if self.waiting:
            self._draining.append((self.seq, queue))
        self._count_queues()

    def _count_queues(self) -> None:
        self.has_one_queue = len(self.queues) + len(self._draining) == 1

    def table(self, resource: Resource) -> PageTable | EmbedTable | StateTable:
        """The addresses of a kind of memory."""
        found: PageTable | EmbedTable | StateTable = getattr(self, resource.key)
        return found

    def check_allocation(self, resource: Resource, count: int) -> None:
        """Raises InvalidArgument, QuotaExceeded, or Exhausted: more than the pool has, so that it can never be had."""
        if count <= 0:
            raise InvalidArgument(f"{count} {resource} asked for; ask for at least 1")
        owned, total = self.table(resource).owned, resource.pool_size(self.model)
        if owned + count > total:
            raise Exhausted(f"{owned} {resource} held and {count} more asked for, the whole pool has {total}")
        self.ledger.check(*charged(self.model, resource, count))

    def check_import(self, pages: int) -> None:
        """Checks as `check_allocation` does, of pages and the state that comes with them at a model with states."""
        self.check_allocation(PAGES, pages)
        if self.model.num_states:
            self.check_allocation(STATES, 1)
            self.ledger.check(PAGES, pages + charged(self.model, STATES, 1)[1])

    # ---- for calls: what they change ----

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def stamp(self, queue: int) -> int:
        """The stamp of the last command, given that it is of this queue."""
        return make_stamp(self.seq, queue)

    def issue(self, command: Any) -> None:
        """Hands on a command that will wait in its queue."""
        self._issued += 1
        self.waiting += 1
        self.tell(command)

    def note_large(self, size: int) -> None:
        """The last command has lists of this size."""
        if self.waiting:
            self._large.append((self.seq, size))
            self.hold_large(size)

    def hold_large(self, size: int) -> None:
        """Commands keep `size` more bytes of lists, or fewer if it is negative."""
        self.large_bytes += size
        self._count_bytes(size)

    def _count_bytes(self, size: int) -> None:
        self._counted_bytes += size
        if self.ledger.tenant is not None:
            self.ledger.tenant.add_waiting(size)

    def _forget_large(self, oldest: int) -> None:
        """No command below this number waits."""
        while self._large and self._large[0][0] < oldest:
            _, size = self._large.popleft()
            self.hold_large(-size)

    def own(self, resource: Resource, count: int, queue: int) -> int:
        """First of `count` new addresses, for the command just numbered; `check_allocation` has passed them. Raises
        Exhausted: there are not so many in a row."""
        first = self.table(resource).allocate(count, self.stamp(queue))
        self._count(resource, count)
        return first

    def disown(self, resource: Resource, ranges: Sequence[Range]) -> None:
        """The addresses are invalid at once. They count as held, and are not handed out again, until their memory is
        known to be taken back: now, if no command waits and no run goes on."""
        self.table(resource).disown(ranges)
        self.hazards.forget_pages()
        freed = _Freed(resource, ranges, total_length(ranges))
        self._count_returning(freed, 1)
        self._freed[self.seq] = freed
        if not self.waiting and not self.runs:
            self._take_back(self.seq)

    def adopt(self, positions: NDArray[np.int32]) -> tuple[int, int]:
        """First address of imported pages, and that of the state behind their text at a model with states;
        `check_import` has passed them. Raises Exhausted, as `own`."""
        count = len(positions) // self.model.page_size
        first = self.pages.adopt(positions)
        self._count(PAGES, count)
        if not self.model.num_states:
            return first, NO_STATE
        self._count(STATES, 1)
        return first, self.states.adopt(self.pages.all_tokens([(first, first + count)])[0].intervals)

    def _take_back(self, seq: int) -> None:
        """What was given back by this number is not bound any more."""
        freed = self._freed.pop(seq)
        self._count_returning(freed, -1)
        self._count(freed.resource, -freed.size)
        self.table(freed.resource).release(freed.ranges)

    def _count(self, resource: Resource, count: int) -> None:
        self._held[resource] += count
        self.ledger.add(*charged(self.model, resource, count))

    def _count_returning(self, freed: _Freed, sign: int) -> None:
        resource, count = charged(self.model, freed.resource, freed.size)
        self.ledger.returning[resource] += sign * count

    # ---- sampled tokens ----

    def add_sample(self, future: int, queue: int) -> None:
        """The future will be a token: commands of this queue may name it."""
        self._samples[future] = _Sample(queue)

    def check_reference(self, future: int, queue: int) -> None:
        """Raises NotFound, InvalidArgument, or the error of a sample that failed."""
        sample = self._samples.get(future)
        if sample is None:
            raise NotFound(
                f"token reference {future} names no `sample` of this inferlet, or one long delivered; as a token, "
                f"{future + REFERENCE_BIT} is outside of the vocabulary of {self.model.vocab_size} tokens"
            )
        if sample.queue != queue:
            raise InvalidArgument(f"token reference {future} belongs to queue {sample.queue}, not to queue {queue}")
        if sample.error is not None:
            raise again(sample.error)

    def watch(self, future: int, watcher: Callable[[Any], None]) -> None:
        """The watcher is called with the future's value or error."""
        self._watchers[future] = watcher

    def watch_no_more(self, future: int) -> None:
        """Nobody wants its value."""
        del self._watchers[future]

    def await_memory(self, seq: int, watcher: Callable[[int], None]) -> None:
        """The watcher is called with the number of addresses that have memory, of those that a command asked for."""
        self._asked[seq] = watcher

    # ---- what the scheduler tells ----

    def progressed(
        self, oldest: int, taken: int, returned: Sequence[int] = (), bound: Sequence[tuple[int, int]] = ()
    ) -> None:
        """No command below `oldest` waits any more; `taken` have left their queues since the beginning. What was given
        back by the numbers of `returned` is not bound any more; nor, unless a run goes on that may use it, by those
        below `oldest`. `bound`: commands that could have less memory than they asked for, and how much they have."""
        self.waiting = self._issued - taken
        for seq, count in bound:
            self._asked.pop(seq)(count)
        if self._counted_bytes:
            self._forget_large(oldest)
            if self.waiting < FEW_COMMANDS:
                self._count_bytes(self.large_bytes - self._counted_bytes)
                self._most_waiting = min(FEW_COMMANDS, self.ledger.quota.commands)
        self.hazards.dispatched(oldest)
        while self._freed and not self.runs and (seq := next(iter(self._freed))) < oldest:
            self._take_back(seq)
        for seq in returned:
            if seq in self._freed:
                self._take_back(seq)
        while self._draining and self._draining[0][0] < oldest:
            self._draining.popleft()
            self._count_queues()

    def answered(self, future: int, value: Any) -> None:
        """A future has its value, or failed with a CallError."""
        if self._watchers and (watcher := self._watchers.pop(future, None)):
            watcher(value)
        if self.runs and isinstance(value, CallError):
            self.runs.end(future)
        sample = self._samples.get(future)
        if sample is None:
            return
        if isinstance(value, CallError):
            sample.error = value
        self._delivered.append(future)
        if len(self._delivered) >= REMEMBERED_TOKENS + FORGOTTEN_AT_ONCE:
            self._forget_samples()

    def _forget_samples(self) -> None:
        """Nobody else knows what may still be named."""
        forgotten = [self._delivered.popleft() for _ in range(FORGOTTEN_AT_ONCE)]
        for future in forgotten:
            del self._samples[future]
        self.tell(Forgotten(self.owner, forgotten))

    def end(self, error: CallError) -> None:
        """No further call is accepted, and nothing is held."""
        if self.ended is not None:
            return
        self.ended = error
        for freed in self._freed.values():
            self._count_returning(freed, -1)
        self._freed.clear()
        self.runs.clear()
        self.last_steps.clear()
        self.imports.clear()
        self._watchers.clear()
        self._asked.clear()
        self._large.clear()
        self._count_bytes(-self._counted_bytes)
        for resource, count in self._held.items():
            self._count(resource, -count)
        self.ledger.close_queues(len(self.queues))
        self.queues.clear()

    @property
    def is_at_work(self) -> bool:
        """Whether commands wait for their turn, or a decode run goes on."""
        return self.waiting > 0 or bool(self.runs)

    def usage(self) -> Usage:
        of_states = charged(self.model, STATES, self._held[STATES])[1]
        return Usage(self._held[PAGES] + of_states, self._held[EMBEDS], len(self.queues), self.waiting)


class _Freed(NamedTuple):
    """Addresses that were given back."""

    resource: Resource
    ranges: Sequence[Range]
    size: int


class _Sample:
    """A sampled token as later calls may name it."""

    __slots__ = ("error", "queue")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.error: CallError | None = None


def again(error: CallError) -> CallError:
    """A copy of an error to raise once more, without the traceback of the other times."""
    return type(error)(*error.args)
