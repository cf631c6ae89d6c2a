"""Commands as they wait in queues: validated, with virtual addresses. Plain objects with slots, for speed.

`after`: every command of the same inferlet with a sequence number up to this one must have been dispatched in an
earlier wave (0: no such need); see hazards.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError
from pie_control.resources.pages import Context
from pie_control.resources.ranges import Range

from .values import SamplingParams

if TYPE_CHECKING:
    from .account import Account

ALLOCATE, SYNCHRONIZE = -2, -1  # take effect in the control layer
COPY, EMBED, FORWARD, SAMPLE, DIST, SCORE = range(6)  # the order of batches in a wave
STAGE = (0, 1, 2, 3, 3, 3)  # by kind: outputs only read, so their order within a wave does not matter


@dataclass(slots=True, eq=False)
class Command:
    """Base of all commands."""

    kind: ClassVar[int]
    account: Account
    seq: int
    after: int
    future: int | None


class TokenSource:
    """The token that a `sample` gives, as later commands name it. Known by value, or by slot while it is in flight."""

    __slots__ = ("error", "named", "queue", "slot", "value", "wave")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.value: int | None = None
        self.error: CallError | None = None  # the sample failed
        self.slot = -1  # on the worker, once dispatched
        self.wave = -1  # that dispatched it
        self.named = False  # by a later command

    def literal(self) -> int:
        """The token, or -(slot + 1)."""
        if self.value is not None:
            return self.value
        assert self.slot >= 0, "a token reference ran ahead of its sample"
        return -(self.slot + 1)


Reference = tuple[int, TokenSource]
"""Index in a token list, and what stands there."""


def with_literals(tokens: Sequence[int], references: Sequence[Reference]) -> array[int]:
    """Tokens for the wire."""
    literals = array("i", tokens)
    for index, source in references:
        literals[index] = source.literal()
    return literals


@dataclass(slots=True, eq=False)
class AllocateCommand(Command):
    kind = ALLOCATE
    pages: bool
    first: int
    count: int


@dataclass(slots=True, eq=False)
class SynchronizeCommand(Command):
    kind = SYNCHRONIZE


@dataclass(slots=True, eq=False)
class CopyCommand(Command):
    """Virtual slots, of equal number."""

    kind = COPY
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(slots=True, eq=False)
class EmbedCommand(Command):
    kind = EMBED
    tokens: Sequence[int]
    references: Sequence[Reference]
    embeds: Sequence[Range]


@dataclass(slots=True, eq=False)
class ForwardCommand(Command):
    """`own` are the virtual slots of the new tokens, None if keys and values are dropped after the call."""

    kind = FORWARD
    context: Context
    inputs: Sequence[Range]
    positions: Sequence[int]
    own: Sequence[Range] | None
    outputs: Sequence[Range]
    length: int
    done: int = 0  # tokens that earlier waves ran


@dataclass(slots=True, eq=False)
class SampleCommand(Command):
    kind = SAMPLE
    embed: int
    params: SamplingParams
    uniform: float
    source: TokenSource
    recent: Sequence[int]
    references: Sequence[Reference]
    allowed: bytes | None


@dataclass(slots=True, eq=False)
class DistCommand(Command):
    kind = DIST
    embed: int
    k: int
    temperature: float


@dataclass(slots=True, eq=False)
class ScoreCommand(Command):
    kind = SCORE
    embed: int
    tokens: Sequence[int]
