"""What the scheduler keeps of one inferlet: its queues, the futures to be answered, what its addresses are bound to.

Accounts and queues change themselves; others call their methods.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import Any

from pie_control.calls.kind import Command, LongCommand, Stage
from pie_control.ids import Owner
from pie_control.resources.address_space import again
from pie_control.resources.holdings import Forgotten, Freed, Holdings, TokenSource
from pie_control.resources.memory import Memory
from pie_control.tenants.meters import Meter
from pie_control.tenants.tenant import Standing

from .decoding.run import DecodeRun
from .fairness import Line, Share
from .turn import Progress

STALE_HEADS = 64  # of commands that have left their queues: the most that are kept, with one for each queue


class Whereabouts(Enum):
    """Where an inferlet with nothing in its queues is, if others might wait for it (guests.py)."""

    FLIGHT = "a wave will wake it"
    HANDS = "its program works on what it was told"


class CommandQueue(Share["CommandQueue"]):
    """Commands of one inferlet that take effect in order. A leaf of the tree of shares."""

    __slots__ = (
        "account",
        "closing",
        "commands",
        "done",
        "granted",
        "id",
        "last_wave",
        "line",
        "priority",
        "run",
        "stage",
    )

    def __init__(self, account: Account, number: int) -> None:
        super().__init__(account)
        self.account = account
        self.id = number
        self.priority = 0  # its guest's
        self.closing = False  # it ends when it is empty
        self.commands: deque[Command] = deque()
        self.run: DecodeRun[CommandQueue] | None = None  # that is under way: the commands wait for its end
        self.line: Line | None = None  # where it waits, if it is ready
        self.done = 0  # parts of the first command that earlier waves took
        self.granted = 0  # parts of it that the wave under formation will take, behind those
        self.last_wave = -1  # the newest wave that holds a command of this queue
        self.stage = 0  # of the last one in it

    def first(self, line: Line) -> CommandQueue | None:
        """Itself, if it waits in this line."""
        return self if self.line is line else None

    @property
    def first_seq(self) -> int:
        """Sequence number of the run or command whose turn it is."""
        return self.run.command.seq if self.run is not None else self.commands[0].seq

    @property
    def goes_on_locally(self) -> bool:
        """Whether its first command takes effect in the control layer, and waits for no other one."""
        if not self.commands or self.commands[0].call is not None:
            return False
        return not self.commands[0].after or self.commands[0].after < self.account.oldest_waiting

    def prioritize(self, priority: int) -> None:
        """Its guest wants it to go before, or after, other queues of its own."""
        self.priority = priority
        self.account.has_priorities()

    def put(self, command: Command) -> None:
        self.commands.append(command)
        self.account.command_waits(self)

    def take(self, count: int) -> None:
        """The first commands leave the queue."""
        if count == len(self.commands):
            self.commands.clear()
        else:
            for _ in range(count):
                self.commands.popleft()
        self.done = 0
        self.account.commands_left(self, count)

    def close(self) -> None:
        """It ends after the commands that it holds."""
        self.closing = True
        self.account.forget_if_closed(self)

    def parts(self) -> int:
        """Parts of long commands in the queue."""
        return sum(one.size for one in self.commands if isinstance(one, LongCommand)) - self.done

    def wait_in(self, line: Line, lag: float = 0.0) -> None:
        """A ready queue waits in this line from now on."""
        self.line, self.lag = line, lag
        self.enlist(line)

    def leave_line(self) -> None:
        self.line = None

    def begin_run(self, run: DecodeRun[CommandQueue]) -> None:
        """The run holds the queue from now on."""
        self.run = run

    def end_run(self, last_wave: int) -> None:
        """The commands have their turn. `last_wave` took the last step of the run."""
        self.run = None
        self.last_wave = last_wave
        self.account.commands_left(self, 0)

    def grant(self, parts: int) -> None:
        """The wave under formation will take this much more of the first command."""
        self.granted += parts

    def take_granted(self) -> tuple[int, int]:
        """The wave takes what was granted: from where to where."""
        begin, self.done, self.granted = self.done, self.done + self.granted, 0
        return begin, self.done

    def join_wave(self, wave: int, stage: int) -> bool:
        """The wave holds a command of this queue, at a stage; whether that is news."""
        if self.last_wave == wave:
            self.stage = max(self.stage, stage)  # one that passed those before it is at an earlier stage
            return False
        self.stage, self.last_wave = stage, wave
        return True


class Account(Share[CommandQueue]):
    """One inferlet at one worker."""

    __slots__ = (
        "_heads",
        "blocked",
        "busy",
        "cancelled",
        "expected",
        "futures",
        "holdings",
        "host",
        "meter",
        "newest",
        "oldest_waiting",
        "owner",
        "place",
        "queues",
        "ranked",
        "returned",
        "runs",
        "standing",
        "taken",
        "waiting",
    )

    def __init__(
        self,
        owner: Owner,
        holdings: Holdings,
        standing: Standing,
        tenant: Share[CommandQueue],
        meter: Meter,
        host: int = 0,
    ) -> None:
        super().__init__(tenant, standing.weight)
        self.meter = meter
        self.owner = owner
        self.host = host
        self.holdings = holdings
        self.standing = standing
        self.queues: dict[int, CommandQueue] = {}
        self.busy: dict[CommandQueue, None] = {}  # those with commands, or a run
        self.futures: set[int] = set()  # not answered yet, but for those of decode runs
        self.runs: set[int] = set()  # futures of decode runs that are not over: nobody knows when they will be
        self.cancelled: set[int] = set()  # of decode runs and imports that wait in a queue still: nothing comes of them
        self.newest = 0  # sequence number of what arrived last
        self.waiting = 0  # commands in the queues
        self.taken = 0  # commands that have left them
        self.returned: list[int] = []  # numbers under which memory was given back that is not bound any more
        self.oldest_waiting = 0  # every command below this number was taken by a wave formed before, or locally
        self.blocked: list[tuple[int, int, CommandQueue]] = []  # (after of the first command, number, queue), a heap
        self.ranked = False  # whether the guest has given priorities to queues
        self._heads: list[tuple[int, int, CommandQueue]] | None = None  # of several queues, see oldest_now
        self.place: Whereabouts | None = None  # see guests.py
        self.expected = 1  # queues with which it was in a wave last

    # ---- whether it is expected (guests.py) ----

    def waits_in(self, place: Whereabouts | None) -> None:
        self.place = place

    def expect(self, queues: int) -> None:
        """The wave that it was in last had this number of its queues."""
        self.expected = queues

    # ---- queues ----

    def open_queue(self, number: int) -> None:
        if number in self.queues:
            raise ValueError(f"queue {number} is there already")
        self.queues[number] = CommandQueue(self, number)
        if self._heads is None and len(self.queues) > 1:
            self._find_heads()

    def has_priorities(self) -> None:
        """Its guest prefers some of its queues to others."""
        self.ranked = True

    def command_waits(self, queue: CommandQueue) -> None:
        self.waiting += 1
        self.busy[queue] = None

    def commands_left(self, queue: CommandQueue, count: int) -> None:
        """Commands have left a queue, or its run is over."""
        self.waiting -= count
        self.taken += count
        if not queue.commands and queue.run is None:
            del self.busy[queue]

    def forget_if_closed(self, queue: CommandQueue) -> None:
        if queue.closing and not queue.commands and queue.run is None:
            self.queues.pop(queue.id, None)

    def drop_queues(self) -> Iterable[CommandQueue]:
        """Forgets all queues and futures, and gives those queues that held commands or a run."""
        busy, self.busy, self.queues, self.waiting = self.busy, {}, {}, 0
        self.blocked.clear()
        self.futures.clear()
        self.runs.clear()
        self._heads = None
        return busy

    # ---- queues that wait for others ----

    def block(self, queue: CommandQueue, after: int) -> None:
        """The first command of a queue waits for all commands up to `after`."""
        heappush(self.blocked, (after, queue.id, queue))

    def unblocked(self) -> Iterator[CommandQueue]:
        """The queues whose first command waits no more."""
        while self.blocked and self.blocked[0][0] < self.oldest_waiting:
            yield heappop(self.blocked)[2]

    def rank_queues(self) -> None:
        """Queues go by the priorities of their guest. One that holds up another queue goes by that one's, too, if it is
        higher: the other waits for every command up to its `after`."""
        afters, highest = list[int](), list[int]()
        for after, _, queue in sorted(self.blocked, reverse=True, key=itemgetter(0)):
            afters.append(-after)
            highest.append(max(queue.priority, highest[-1] if highest else queue.priority))
        for queue in self.queues.values():
            if queue.line is not None:
                waiting = bisect_right(afters, -queue.first_seq)  # those whose `after` is not below it
                inherited = highest[waiting - 1] if waiting else queue.priority
                queue.goes_as(-max(queue.priority, inherited))
        self.reorder()

    # ---- what arrives ----

    def cancel(self, future: int) -> None:
        """The run or import with this future waits in a queue, and nothing shall come of it."""
        self.cancelled.add(future)

    def forget_cancelled(self, future: int | None) -> bool:
        """Whether the command with this future, which has its turn, was cancelled."""
        if future not in self.cancelled:
            return False
        self.cancelled.remove(future)
        return True

    def command_arrived(self, command: Command) -> None:
        """Notes its future, and tokens that it names. Raises the error of one that failed, ValueError for bad ones."""
        self._numbered(command.seq)
        tokens, future = self.holdings.tokens, command.future
        if future is not None:
            is_known = future in self.futures or future in self.runs or future in self.cancelled
            if is_known or future in tokens or future in self.holdings.lent:
                raise ValueError(f"future {future} is there already")
            (self.runs if command.lasts else self.futures).add(future)
            if command.gives_token:
                tokens[future] = TokenSource(command.queue)
        for _, named in command.references:
            source = tokens[named]
            if source.queue != command.queue:
                raise ValueError(f"the token of future {named} is of another queue, or forgotten")
            source.named = True
            if source.error is not None:
                raise again(source.error)

    def addresses_freed(self, freed: Freed) -> None:
        """The inferlet gave addresses back."""
        self._numbered(freed.seq)
        commands = (queue.commands for queue in self.busy)
        lines = (queue.run.line for queue in self.busy if queue.run is not None)
        self.holdings.freed.add(freed, chain[deque[Any]](commands, lines))
        self.settle()  # otherwise a command behind the note would wait for it

    def tokens_forgotten(self, forgotten: Forgotten) -> None:
        """No further command names these tokens."""
        for future in forgotten.futures:
            self.holdings.tokens[future].forget()
        self.holdings.forgotten.append((self.newest, forgotten.futures))

    def _numbered(self, seq: int) -> None:
        """What has come has this number."""
        if seq <= self.newest:
            raise ValueError(f"number {seq} comes behind {self.newest}")
        self.newest = seq

    # ---- what is done ----

    def head_changed(self, queue: CommandQueue) -> None:
        """Another command is the first of a queue."""
        if self._heads is None or not queue.commands:
            return
        heappush(self._heads, (queue.commands[0].seq, queue.id, queue))
        if len(self._heads) > STALE_HEADS + 2 * len(self.queues):  # behind one that does not move
            self._find_heads()

    def _find_heads(self) -> None:
        self._heads = [(one.commands[0].seq, one.id, one) for one in self.busy if one.commands]
        heapify(self._heads)

    def oldest_now(self) -> int:
        """Sequence number that no waiting command is below."""
        if not self.waiting:
            return self.newest + 1
        if (heads := self._heads) is None:  # there is one queue
            return next(iter(self.queues.values())).commands[0].seq
        while True:  # entries of commands that have left are dropped when they come up
            seq, _, queue = heads[0]
            if queue.commands and queue.commands[0].seq == seq:
                return seq
            heappop(heads)

    def settle(self) -> None:
        """What has left the queues was dispatched: later waves may rely on it."""
        self.oldest_waiting = self.oldest_now()

    def take_back(self, memory: Memory, oldest: int) -> None:
        """Takes back what commands that wait do not use any more; none is older than `oldest`."""
        self.returned += memory.run_frees(self.holdings, oldest)

    def progress(self) -> Progress:
        """What its address space should hear; told once."""
        if not (self.returned or self.holdings.bound):
            return Progress(self.owner, self.oldest_waiting, self.taken)
        returned, self.returned = tuple(self.returned), []
        return Progress(self.owner, self.oldest_waiting, self.taken, returned, self.holdings.take_bound())

    def answer(self, future: int) -> bool:
        """Whether a future is still to be answered; it is answered now."""
        futures = self.futures if future in self.futures else self.runs
        if future not in futures:
            return False
        futures.remove(future)
        return True

    def relies_on(self, command: Command, stage: Stage) -> bool:
        """Whether the inferlet is wrong about its state if this command failed at this stage. A failed output is told
        by its future, unless a later command names its token."""
        if command.future is None or stage is not Stage.OUTPUT:
            return True
        source = self.holdings.tokens.get(command.future)
        return source is not None and source.named
