"""What the addresses of one inferlet are bound to on its worker: physical numbers, known to the scheduler alone."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pie_control.errors import CallError
from pie_control.ids import Owner

from .kinds import Resource
from .ranges import Range, total_length

UNBOUND = -1


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


class TokenSource:
    """The token that a `sample` gives, as later commands name it: by value, or by token slot while it is in flight."""

    __slots__ = ("error", "named", "slot", "value", "wave")

    def __init__(self) -> None:
        self.value: int | None = None
        self.error: CallError | None = None  # the sample failed
        self.slot = -1  # on the worker, once dispatched
        self.wave = -1  # that dispatched it
        self.named = False  # by a later command

    def literal(self) -> int:
        """The token, or -(slot + 1) as messages name a token slot."""
        if self.value is not None:
            return self.value
        assert self.slot >= 0, "a token reference ran ahead of its sample"
        return -(self.slot + 1)


Reference = tuple[int, int]
"""Index in a token list, and the future whose token stands there."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Addresses that were given back, and the last command that may still use them."""

    seq: int
    resource: Resource
    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Samples whose tokens no command after `seq` names."""

    owner: Owner
    seq: int
    futures: Sequence[int]


@dataclass(slots=True, eq=False)
class Holdings:
    """Of one inferlet."""

    owner: Owner
    created: float  # seconds
    pages: Binding = field(default_factory=Binding)
    embeds: Binding = field(default_factory=Binding)
    tokens: dict[int, TokenSource] = field(default_factory=dict)  # by future
    freed: deque[Freed] = field(default_factory=deque)  # not given back yet: waiting commands may touch them
    forgotten: deque[Forgotten] = field(default_factory=deque)  # still kept: waiting commands may name them

    @property
    def returns(self) -> bool:
        """Whether something was given back that waiting commands may still use."""
        return bool(self.freed or self.forgotten)

    def binding(self, resource: Resource) -> Binding:
        found: Binding = getattr(self, resource.key)
        return found

    def returning(self, resource: Resource) -> int:
        """What has been freed and only waits for commands that may touch it."""
        return sum(total_length(one.ranges) for one in self.freed if one.resource is resource)

    def literals(self, tokens: Sequence[int], references: Sequence[Reference]) -> array[int]:
        """Tokens as messages name them, with references resolved."""
        literals = array("i", tokens)
        for index, future in references:
            literals[index] = self.tokens[future].literal()
        return literals
