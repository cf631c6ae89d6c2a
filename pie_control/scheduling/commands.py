"""Commands as they wait in queues: validated, with virtual addresses. Plain objects with slots, for speed.

`after`: every command of the same inferlet with a sequence number up to this one must have been dispatched in an
earlier wave (0: no such need); see hazards.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
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


class Command:
    """Base of all commands."""

    __slots__ = ("account", "after", "future", "seq")
    kind: ClassVar[int]

    def __init__(self, account: Account, seq: int, after: int, future: int | None) -> None:
        self.account = account
        self.seq = seq
        self.after = after
        self.future = future


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


class AllocateCommand(Command):
    __slots__ = ("count", "first", "pages")
    kind = ALLOCATE

    def __init__(self, account: Account, seq: int, pages: bool, first: int, count: int) -> None:
        super().__init__(account, seq, 0, None)
        self.pages = pages
        self.first = first
        self.count = count


class SynchronizeCommand(Command):
    __slots__ = ()
    kind = SYNCHRONIZE


class CopyCommand(Command):
    __slots__ = ("source", "target")
    kind = COPY

    def __init__(
        self, account: Account, seq: int, after: int, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> None:
        super().__init__(account, seq, after, None)
        self.source = source
        self.target = target


class EmbedCommand(Command):
    __slots__ = ("embeds", "references", "tokens")
    kind = EMBED

    def __init__(
        self,
        account: Account,
        seq: int,
        after: int,
        tokens: Sequence[int],
        references: Sequence[Reference],
        embeds: Sequence[Range],
    ) -> None:
        super().__init__(account, seq, after, None)
        self.tokens = tokens
        self.references = references
        self.embeds = embeds


class ForwardCommand(Command):
    """`own` is None if keys and values are dropped after the call. `done` tokens were dispatched by earlier waves."""

    __slots__ = ("context", "done", "inputs", "length", "outputs", "own", "positions")
    kind = FORWARD

    def __init__(
        self,
        account: Account,
        seq: int,
        after: int,
        context: Context,
        inputs: Sequence[Range],
        positions: Sequence[int],
        own: Sequence[Range] | None,
        outputs: Sequence[Range],
    ) -> None:
        super().__init__(account, seq, after, None)
        self.context = context
        self.inputs = inputs
        self.positions = positions
        self.own = own
        self.outputs = outputs
        self.length = len(positions)
        self.done = 0


class SampleCommand(Command):
    __slots__ = ("allowed", "embed", "params", "recent", "references", "source", "uniform")
    kind = SAMPLE

    def __init__(
        self,
        account: Account,
        seq: int,
        after: int,
        future: int,
        embed: int,
        params: SamplingParams,
        uniform: float,
        source: TokenSource,
        recent: Sequence[int],
        references: Sequence[Reference],
        allowed: bytes | None,
    ) -> None:
        super().__init__(account, seq, after, future)
        self.embed = embed
        self.params = params
        self.uniform = uniform
        self.source = source
        self.recent = recent
        self.references = references
        self.allowed = allowed


class DistCommand(Command):
    __slots__ = ("embed", "k", "temperature")
    kind = DIST

    def __init__(
        self, account: Account, seq: int, after: int, future: int, embed: int, k: int, temperature: float
    ) -> None:
        super().__init__(account, seq, after, future)
        self.embed = embed
        self.k = k
        self.temperature = temperature


class ScoreCommand(Command):
    __slots__ = ("embed", "tokens")
    kind = SCORE

    def __init__(self, account: Account, seq: int, after: int, future: int, embed: int, tokens: Sequence[int]) -> None:
        super().__init__(account, seq, after, future)
        self.embed = embed
        self.tokens = tokens
