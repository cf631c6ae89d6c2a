"""What the addresses of one inferlet are bound to on its worker: physical numbers, known to the scheduler alone."""

from __future__ import annotations

import sys
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Protocol

from pie_control.errors import CallError
from pie_control.ids import Owner
from pie_control.record import Record
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing

from .kinds import PAGES, STATES, Resource
from .ranges import Range, overlap, total_length

UNBOUND = -1
UNBOUND_BYTES = b"\xff" * 4
"""As it stands in an array: found there many times as fast, and never across two others, as none is negative."""
NOT_BOUND = "a command names memory that is not bound: this is a defect of the server"
FAR_BEHIND = 256
"""A command with as many before it in its queue is not relied on to run soon."""
MOST_LOOKS = 1024
"""Ranges of waiting commands that are compared, in one wave, with what an inferlet gives back."""


class Binding:
    """Physical numbers by address, of one kind of memory."""

    __slots__ = ("bound", "physical")

    def __init__(self) -> None:
        self.physical: array[int] = array("i")
        self.bound = 0

    def bind(self, first: int, slots: Sequence[int]) -> None:
        last = first + len(slots)
        if last > len(self.physical):
            self.physical.extend([UNBOUND] * (last - len(self.physical)))
        self.physical[first:last] = array("i", slots)
        self.bound += len(slots)

    def is_bound(self, address: int) -> bool:
        return address < len(self.physical) and self.physical[address] != UNBOUND

    def has(self, ranges: Sequence[Range]) -> bool:
        """Whether all of these addresses are bound."""
        physical = self.physical
        return all(last <= len(physical) and UNBOUND not in physical[first:last] for first, last in ranges)

    def is_free(self, first: int, count: int) -> bool:
        """Whether none of these addresses is bound."""
        held = self.physical[first : first + count]
        return held.count(UNBOUND) == len(held)

    def bound_to(self, ranges: Sequence[Range]) -> list[int]:
        """What the addresses are bound to."""
        return [slot for first, last in ranges for slot in self.physical[first:last]]

    def unbind(self, ranges: Sequence[Range]) -> list[int]:
        """What the addresses were bound to."""
        slots: list[int] = []
        for first, last in ranges:
            held = self.physical[first:last]
            self.physical[first : first + len(held)] = array("i", [UNBOUND]) * len(held)
            slots += [slot for slot in held if slot != UNBOUND]
        self.bound -= len(slots)
        return slots

    def unbind_all(self) -> list[int]:
        """What everything was bound to, for an inferlet that ends."""
        return self.unbind(((0, len(self.physical)),))


class Block(NamedTuple):
    """Pages, and states that hang on them, by their physical numbers."""

    pages: Sequence[int]
    states: Sequence[int] = ()

    def of(self, resource: Resource) -> Sequence[int]:
        """Those of a kind of memory."""
        return self.pages if resource is PAGES else self.states if resource is STATES else ()


class TokenSource:
    """The token that a `sample` gives, as later commands name it: by value, or by token slot while it is in flight."""

    __slots__ = ("error", "named", "queue", "slot", "value", "wave")

    def __init__(self, queue: int) -> None:
        self.queue = queue  # whose commands may name it; 0: none any more
        self.value: int | None = None
        self.error: CallError | None = None  # the sample failed
        self.slot = -1  # on the worker, once dispatched
        self.wave = -1  # that dispatched it
        self.named = False  # by a later command

    def forget(self) -> None:
        """No further command may name it."""
        self.queue = 0

    def literal(self) -> int:
        """The token, or -(slot + 1) as messages name a token slot."""
        if self.value is not None:
            return self.value
        assert self.slot >= 0, "a token reference ran ahead of its sample"
        return -(self.slot + 1)


Reference = tuple[int, int]
"""Index in a token list, and the future whose token stands there."""


class Freed(Record, frozen=True, tag=None):
    """Addresses that were given back, and the last command that may still use them."""

    seq: int
    resource: Resource
    ranges: Sequence[Range]


class Forgotten(Record, frozen=True):
    """Samples whose tokens no further command names."""

    owner: Owner
    futures: Sequence[int]


class Using(Protocol):
    """A command that uses memory (pie_control.calls.kind.Command)."""

    touches: ClassVar[Sequence[Resource]]
    """The kinds of memory of which it may need some."""

    def needs(self, resource: Resource, page_size: int) -> Sequence[Range]:
        """Addresses of this kind of memory that have to be bound before it can go."""
        ...


class Waiting(Protocol):
    """A command that waits in a queue (pie_control.calls.kind.Command), as memory sees it."""

    call: Any  # None: it takes effect in the control layer, and may itself wait for memory
    seq: int
    after: int
    lasts: bool  # nobody knows how long it will go on

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        """Addresses of this kind of memory that it may use."""
        ...


@dataclass(slots=True, eq=False)
class _Return:
    """What was given back, and for each queue whose commands may still use it the newest of them."""

    freed: Freed
    count: int
    users: list[tuple[deque[Waiting], int]]


class Returns:
    """What an inferlet has given back and commands that wait may still use.

    A queue takes its commands in order, so what was given back is free once, in each queue, the newest command that
    uses it has left. That command is looked for once: no later one can name the addresses. Commands of other addresses,
    an allocation that finds no room among them, hold nothing up. The search has a bound for each wave; beyond it, what
    is given back is *late*: it waits for all commands before it, and costs nothing meanwhile. A command that lasts when
    it has left its queue is kept in a *line* of its own until it is done.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._lines: dict[int, tuple[deque[Waiting], list[tuple[int, int, _Return]]]] = {}  # heaps, by queue
        self._lasting: dict[int, deque[Any]] = {}  # lines of commands that last, by queue
        self._ready: list[Freed] = []
        self._late: deque[Freed] = deque()
        self._late_counts: Counter[Resource] = Counter()
        self._looks = MOST_LOOKS
        self._wave = -1

    def __bool__(self) -> bool:
        return bool(self._lines or self._ready or self._late)

    def add(self, freed: Freed, queues: Iterable[deque[Any]]) -> None:
        """Addresses were given back; `queues` hold all commands of the inferlet that wait."""
        ordered, users = sorted(freed.ranges), list[tuple[deque[Waiting], int]]()
        for commands in queues:
            for command in reversed(commands):
                if self._looks <= 0:
                    self._late.append(freed)
                    self._late_counts[freed.resource] += total_length(ordered)
                    return
                used = command.uses(freed.resource, self._page_size)
                self._looks -= 1 + len(used)
                if overlap(ordered, used):
                    users.append((commands, command.seq))
                    break
        self._place(_Return(freed, total_length(ordered), users))

    def _place(self, one: _Return) -> None:
        """In the line of a queue that still has a user, or with what is ready."""
        while one.users:
            commands, seq = one.users[-1]
            if self._holds(commands, seq):
                _, line = self._lines.setdefault(id(commands), (commands, []))
                heappush(line, (seq, one.freed.seq, one))
                return
            one.users.pop()
        self._ready.append(one.freed)

    def _holds(self, commands: deque[Waiting], seq: int) -> bool:
        """Whether a command of a queue up to this number is not done."""
        lasting = self._lasting.get(id(commands))
        return bool((commands and commands[0].seq <= seq) or (lasting and lasting[0].seq <= seq))

    def leaves(self, commands: deque[Any], line: deque[Any]) -> None:
        """A command that lasts leaves its queue for a line of its own, which is emptied when it is done."""
        self._lasting = {queue: one for queue, one in self._lasting.items() if one}
        self._lasting[id(commands)] = line

    def take(self, wave: int, oldest: int) -> list[Freed]:
        """What no command uses any more. `wave`: the number of the next wave; `oldest`: no command that waits is below
        it."""
        if wave != self._wave:
            self._wave, self._looks = wave, MOST_LOOKS
        for queue, (commands, line) in list(self._lines.items()):
            while line and not self._holds(commands, line[0][0]):
                self._place(heappop(line)[2])
            if not line:
                del self._lines[queue]
        if self._late:
            oldest = min([oldest, *(line[0].seq for line in self._lasting.values() if line)])
        while self._late and self._late[0].seq < oldest:
            freed = self._late.popleft()
            self._late_counts[freed.resource] -= total_length(freed.ranges)
            self._ready.append(freed)
        ready, self._ready = self._ready, []
        return ready

    def count(self, resource: Resource, blocked: int | None = None) -> int:
        """How much will come back without anybody being ended. `blocked`: the oldest allocation of the inferlet that
        waits for room, if there is one: what commands behind it use does not come before it."""
        pending = [one for _, line in self._lines.values() for *_, one in line if one.freed.resource is resource]
        if blocked is not None:
            free: dict[int, int] = {}  # by queue, the command from which on none may be relied on
            pending = [
                one for one in pending if all(seq < self._stuck(free, queue, blocked) for queue, seq in one.users)
            ]
        late = self._late_counts[resource] if blocked is None else 0
        return sum(one.count for one in pending) + late

    def _stuck(self, known: dict[int, int], commands: deque[Waiting], blocked: int) -> int:
        """Number of the first command of a queue that may wait for an allocation without room."""
        found = known.get(id(commands))
        if found is None:
            seen = enumerate(chain(self._lasting.get(id(commands), ()), commands))
            stuck = (one.seq for n, one in seen if n == FAR_BEHIND or _may_wait(one, blocked))
            found = known[id(commands)] = next(stuck, sys.maxsize)
        return found


def _may_wait(one: Waiting, blocked: int) -> bool:
    """Whether a command may wait for the allocation of number `blocked`, which has no room."""
    return one.call is None or one.lasts or one.after >= blocked


@dataclass(slots=True, eq=False)
class MemoryRequest:
    """An allocation that found too little room and waits in line. `rank`: the smaller goes first."""

    owner: Owner
    rank: tuple[int, float, Owner, int]
    resource: Resource
    first: int  # address
    count: int
    granted: bool = False  # it is bound, and its command has not been told yet


@dataclass(slots=True, eq=False)
class Holdings:
    """What one inferlet holds, and what it waits for."""

    owner: Owner
    created: float  # seconds
    freed: Returns  # not taken back yet: waiting commands may use it
    standing: Standing = DEFAULT_STANDING
    requests: dict[int, MemoryRequest] = field(default_factory=dict)  # by the number of the command
    pages: Binding = field(default_factory=Binding)
    embeds: Binding = field(default_factory=Binding)
    states: Binding = field(default_factory=Binding)
    lent: dict[int, Block] = field(default_factory=dict)  # what imports found and has no address, by future
    tokens: dict[int, TokenSource] = field(default_factory=dict)  # by future
    forgotten: deque[tuple[int, Sequence[int]]] = field(default_factory=deque)
    """Futures of tokens that are still kept, as commands up to a number may name them."""
    bound: list[tuple[int, int]] = field(default_factory=list)  # of commands that could do with less

    @property
    def returns(self) -> bool:
        """Whether something was given back that waiting commands may still use."""
        return bool(self.freed or self.forgotten)

    def binding(self, resource: Resource) -> Binding:
        found: Binding = getattr(self, resource.key)
        return found

    def has(self, command: Using, page_size: int) -> bool:
        """Whether all is bound that a command needs."""
        for resource in command.touches:
            binding: Binding = getattr(self, resource.key)  # in line: all commands come by here
            physical, size = binding.physical, len(binding.physical)
            has_all = binding.bound == size
            for first, last in command.needs(resource, page_size):
                if last > size or not (has_all or UNBOUND_BYTES not in physical[first:last].tobytes()):
                    return False
        return True

    def take_bound(self) -> tuple[tuple[int, int], ...]:
        """How much memory each command has that could have less; told once."""
        bound, self.bound = tuple(self.bound), []
        return bound

    def rank(self, command: int) -> tuple[int, float, Owner, int]:
        """The place of an allocation among all that wait: by class, then by age of the inferlet."""
        return self.standing.service_class, self.created, self.owner, command

    def coming(self, resource: Resource) -> int:
        """What was given back and will be taken back without anybody being ended."""
        if not self.freed:
            return 0
        blocked = min((number for number, one in self.requests.items() if not one.granted), default=None)
        return min(self.freed.count(resource, blocked), self.binding(resource).bound)

    def literals(self, tokens: Sequence[int], references: Sequence[Reference]) -> array[int]:
        """Tokens as messages name them, with references resolved."""
        literals = array("i", tokens)
        for index, future in references:
            literals[index] = self.tokens[future].literal()
        return literals
