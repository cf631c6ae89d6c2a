"""What the rooms of the calls have in common: commands, batches under formation, and the record of a call.

Three things can be handed on by an address space. A `WorkerCommand` waits in its queue until a wave takes it. `Bind`
and `Barrier` wait in their queue too, and take effect in the control layer when their turn comes. A note takes
effect as it arrives. All are frozen values with virtual addresses: they may travel to another process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pie_control import errors
from pie_control.ids import Owner
from pie_control.record import Record
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed, Holdings, Reference
from pie_control.resources.kinds import RESOURCES, Resource
from pie_control.resources.memory import Memory
from pie_control.resources.pool import Pool
from pie_control.resources.ranges import EVERYTHING, Range
from pie_control.resources.tables.addresses import MOST_ADDRESSES
from pie_control.resources.tile_slots import TileSlots
from pie_control.tenants.tenant import Tenant
from pie_inference import protocol
from pie_inference.protocol import ModelDescription

from .columns import RowsTold
from .values import Value


class Stage(IntEnum):
    """Where in a wave a batch runs. Embeds are handed on behind the forwards that fill them, so what reads a copy can
    be in the same wave. Outputs only read, so their order among each other does not matter."""

    CONTROL = -1  # in no wave: it takes effect in the control layer
    SHIFT = 0
    COPY = 1
    IMAGE = 2
    EMBED = 3
    FORWARD = 4
    SCORES = 5  # forwards of a kind of their own
    HAND_ON = 6
    OUTPUT = 7


# ---- what address spaces hand on -----------------------------------------------------------------------------------


class Command(Record, frozen=True, eq=False):
    """A call that waits in a queue. `seq` counts what one inferlet hands on at one model.

    `after`: every command of the inferlet up to this number must be dispatched in an earlier wave (0: none).
    `references`: tokens of earlier samples that it names.
    """

    call: ClassVar[Call | None] = None  # None: it takes effect in the control layer
    lasts: ClassVar[bool] = False  # it is not done when it was dispatched: nobody knows how many waves it will take
    gives_token: ClassVar[bool] = False  # its future is a token that later commands may name
    is_answered: ClassVar[bool] = True  # the control layer answers it
    looks_at_all: ClassVar[bool] = False  # exports of its tenant, or those that are pinned
    touches: ClassVar[Sequence[Resource]] = RESOURCES  # kinds of memory of which it may need some

    owner: Owner
    queue: int
    seq: int
    after: int
    future: int | None
    references: Sequence[Reference]

    @property
    def searches(self) -> int:
        """How often it looks at many exports or pages, so to speak: a turn has time for a few such looks."""
        return 0

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        """Addresses of a kind of memory that it may read, write or bind. What is given back while it waits stays bound
        unless this leaves it out, so a kind of command that does not say it holds everything."""
        return EVERYTHING

    def needs(self, resource: Resource, page_size: int) -> Sequence[Range]:
        """Addresses that have to be bound before it can go."""
        return self.uses(resource, page_size)

    def keeps(self, resource: Resource) -> Sequence[Range]:
        """Addresses of what is kept from its turn on, whatever becomes of them."""
        return ()

    def fits(self, model: ModelDescription) -> bool:
        """Whether its parts fit together, and to the model: only a host that lies, or is broken, hands on what does
        not."""
        return self.future is not None or not (self.gives_token or self.is_answered)


class WorkerCommand(Command, frozen=True):
    """One that a worker runs, in a batch with others of its kind."""

    call: ClassVar[Call]
    is_answered = False

    @property
    def intervals(self) -> int:
        """Intervals of slots that it sees or moves: who adds it to a batch goes through them."""
        return 0

    def names(self, tokens: Sequence[int]) -> bool:
        """Whether references stand in this list."""
        return not self.references or all(0 <= place < len(tokens) for place, _ in self.references)


class LongCommand(WorkerCommand, frozen=True):
    """One of `size` parts (input tokens, or work worth as much), which may be split between waves unless it is
    `whole`."""

    size: int
    whole: bool

    @property
    def bounded(self) -> bool:
        """Whether its batch bounds it by more than the number of parts (`LongBatch.room_for`)."""
        return False

    @property
    def unit(self) -> int:
        """Parts that stay together: it is split only between such units, of which it has a whole number."""
        return 1


class Bind(Command, frozen=True):
    """Takes memory for `count` addresses from `first` on. `fewer`: for the first of these, as far as there is plenty
    when its turn comes."""

    is_answered = False

    resource: Resource
    first: int
    count: int
    fewer: bool = False

    def fits(self, model: ModelDescription) -> bool:
        return self.count > 0 and 0 <= self.first <= MOST_ADDRESSES - self.count

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ((self.first, self.first + self.count),) if resource is self.resource else ()


class Barrier(Command, frozen=True):
    """Its future is done when everything issued to the queue before has taken effect."""

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


class Question(Command, frozen=True):
    """The control layer answers it when its turn comes, from what it has."""

    @property
    def searches(self) -> int:
        return 1

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()

    def answer(self, memory: Memory, tenant: Tenant, now: float) -> Value:
        """The value of its future; `now`: in seconds. Raises CallError."""
        raise NotImplementedError


class OpenQueue(Record, frozen=True):
    """A note: the inferlet has a new queue."""

    owner: Owner
    queue: int


class CloseQueue(Record, frozen=True):
    """A note: the queue ends after the commands that it holds."""

    owner: Owner
    queue: int


class Prioritize(Record, frozen=True):
    """A note: queues of higher priority go first; 0 at creation."""

    owner: Owner
    queue: int
    priority: int


class Release(Record, frozen=True):
    """A note: addresses that were given back."""

    owner: Owner
    freed: Freed


class Adopt(Record, frozen=True):
    """A note: the pages that an import gave have the addresses from `first` on; its state has one, if it has one."""

    owner: Owner
    future: int
    first: int
    state: int


class Discard(Record, frozen=True):
    """A note: nobody takes what an import gives, which it may not have yet."""

    owner: Owner
    future: int


class EndRun(Record, frozen=True):
    """A note: a decode run was cancelled. It takes no further step, and its future is forgotten."""

    owner: Owner
    queue: int
    future: int


# ---- batches under formation ---------------------------------------------------------------------------------------


class WaveContext(NamedTuple):
    """What a batch needs of the wave that it is part of."""

    model: ModelDescription
    wave: int
    scratch_slot: int  # the first slot for keys that are dropped after the batch
    token_slots: Pool
    tile_slots: TileSlots


C = TypeVar("C", bound=WorkerCommand)
L = TypeVar("L", bound=LongCommand)


class Batch(Generic[C]):
    """Commands of one kind, with addresses resolved to physical slots as they are added, and behind them rows of decode
    runs (columns.py)."""

    call: ClassVar[Call]
    tokens = 0  # input tokens, where it has some
    rows = 0  # of decode runs
    work = 0  # beside tokens: what it costs more, in input tokens

    def __init__(self, context: WaveContext) -> None:
        self.commands: list[C] = []
        self.context = context

    @property
    def count(self) -> int:
        """Commands and rows."""
        return len(self.commands) + self.rows

    def sizes(self) -> Sequence[int]:
        """The input tokens of each command; nothing where they have none."""
        return ()

    def try_add(self, queue: Hashable, command: C, holdings: Holdings, done: int) -> int:
        """Adds a command and returns 1; `done`, which is 0, if it does not fit. `queue` tells the commands of different
        queues apart."""
        raise NotImplementedError

    def lets_pass(self, queue: Hashable, command: Command) -> bool:
        """Whether a later command of a queue may run before this batch, in the same wave, although commands of its
        queue are in it: it touches nothing that they use."""
        return False

    def build(self) -> protocol.Batch:
        """The message, once all commands are added."""
        raise NotImplementedError

    def values(self, result: protocol.Result) -> Sequence[Value]:
        """The value of each command, in order; empty where commands of this kind have none. Changes nothing. Raises
        WorkerError if the worker's answer does not fit."""
        if result is not None:
            raise self.misfit(result)
        return ()

    def rows_told(self, result: protocol.Result | None) -> RowsTold | None:
        """What is told of its rows, where it has tokens of them. `values` were read."""
        return None

    def completed(self, values: Sequence[Value], errors: Mapping[int, errors.CallError]) -> None:
        """The wave is answered; `errors` by the place of a command in the batch."""

    def misfit(self, result: object) -> errors.WorkerError:
        """The error for an answer that does not belong to this batch."""
        answer = f"{type(result).__name__} to {self.call.name} with {self.count} commands"
        return errors.WorkerError(f"the worker answered {answer}: are versions mixed?")


class LongBatch(Batch[L]):
    """Long commands, a part of each. The scheduler decides how large the parts are: at most `max_batch_tokens` in all.
    So it adds parts by `add`, not by `try_add`."""

    def can_add(self, queue: Hashable, command: L) -> bool:
        """Whether a command does not conflict with an earlier one of its queue in this batch."""
        raise NotImplementedError

    def add(self, queue: Hashable, command: L, holdings: Holdings, begin: int, end: int) -> None:
        """Adds the parts `begin` .. `end` of a command that can be added."""
        raise NotImplementedError

    def room_for(self, command: L) -> int:
        """Parts of a bounded command for which there is room, behind what is reserved."""
        raise NotImplementedError

    def reserve(self, command: L, parts: int) -> None:
        """Keeps room for parts of a bounded command that will be added."""
        raise NotImplementedError

    def waits(self, command: L, holdings: Holdings) -> bool:
        """Whether a bounded command has to wait for what others have for more than a wave: memory names it when it has
        that (`Memory.begin`)."""
        return False


# ---- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handle:
    """What a parameter of `issue` is of which the guest gives the number. `optional`: 0 stands for None."""

    kind: type[object]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class RunOf:
    """What the host has to know of a call whose future is a run: the parameter with the stop tokens; what ends it.
    `issue` gives what is told how many of its tokens were taken, if fewer than were delivered, or None."""

    stop: str
    cancel: Callable[[AddressSpace, int], bool]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the API. Its room is the module `calls.<interface>.<name>`, by its `__name__`.

    `issue(space, queue, ...)` gets the arguments of the WIT function and returns its value. Where the call is answered
    by a future, `value` is the type of its value, and the future's number is the last argument. `more_values`: others
    that it may have, by the arguments. `result_bytes` gives the size of a value that may be large, at most, from the
    arguments between the queue and the future; 0: it is small, None: with these arguments there is no future. From the
    same arguments, `argument_bytes` gives what they keep beside lists and texts. `handles`: parameters that the guest
    gives by number. `most`: items or bytes of parameters that may have more or fewer than those of any function.
    `needs`: parameters that only models with a further trait take, and the interface of that. `run`: of a call whose
    future is a run. `waits`: the guest is suspended until the value is there, and gets it in place of the future; gives
    the size of the value from space and queue.
    """

    room: str
    issue: Callable[..., Any] | None = None  # None: a kind of commands that other calls give
    value: type[Any] | None = None
    more_values: tuple[type[Any], ...] = ()
    result_bytes: Callable[..., int | None] | None = None
    argument_bytes: Callable[..., int] | None = None
    handles: Mapping[str, Handle] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    run: RunOf | None = None
    waits: Callable[[AddressSpace, int], int] | None = None
    stage: Stage = Stage.CONTROL
    new_batch: type[Batch[Any]] | None = None

    def __post_init__(self) -> None:
        if self.new_batch is not None:
            self.new_batch.call = self

    @cached_property
    def name(self) -> str:
        """The name that the WIT gives it, with underscores."""
        return self.room.split(".")[-1]

    @cached_property
    def interface(self) -> str:
        """The WIT interface, with underscores: the trait."""
        return self.room.split(".")[-2]

    @property
    def values(self) -> tuple[type[Any], ...]:
        """All types that its value may have."""
        return self.more_values if self.value is None else (self.value, *self.more_values)

    @property
    def parameters(self) -> Sequence[str]:
        """Those of the WIT function behind the queue, by name. Parameters of `issue` by keyword are for other rooms."""
        assert self.issue is not None
        _space, _queue, *given = inspect.signature(self.issue).parameters.values()
        names = [one.name for one in given if one.kind is not one.KEYWORD_ONLY]
        return names if self.value is None else names[:-1]
