"""Formation of one wave.

A queue contributes the longest prefix of its commands that runs once through the stages copy, embed, forward, output.
Queues go in the order of priority, then of the age of their oldest command; one that was passed over `PATIENCE` times
goes first. Long forwards take what is left of the token budget after everything else, so that a prefill does not stall
decodes; they may be split anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_inference.protocol import Batch, ModelDescription

from .batches import CopyBatch, DistBatch, EmbedBatch, SampleBatch, ScoreBatch
from .commands import (
    ALLOCATE,
    COPY,
    DIST,
    EMBED,
    FORWARD,
    SAMPLE,
    SCORE,
    STAGE,
    AllocateCommand,
    Command,
)
from .forward_batch import LONG_FORWARD, ForwardBatch
from .memory import Memory
from .queues import Backlog, CommandQueue

if TYPE_CHECKING:
    from .account import Account

PATIENCE = 32

AnyBatch = CopyBatch | EmbedBatch | ForwardBatch | SampleBatch | DistBatch | ScoreBatch


@dataclass(slots=True)
class Wave:
    """A wave in flight: what the answers of the worker belong to."""

    number: int
    batches: list[AnyBatch]  # in the order of the message
    accounts: set[Account]
    syncs: list[tuple[Account, int]]  # futures that are done with this wave
    commands: int

    def build(self) -> tuple[Batch, ...]:
        return tuple(batch.build() for batch in self.batches)


class WaveBuilder:
    """Takes commands out of the backlog. `accounts` are those whose queues it looked at."""

    def __init__(
        self, model: ModelDescription, backlog: Backlog, memory: Memory, number: int, max_commands: int | None
    ) -> None:
        self.number = number
        self.accounts: set[Account] = set()
        self.progress = False  # something took effect in the control layer
        self.reached: list[tuple[CommandQueue, Command]] = []  # synchronize commands
        self._model = model
        self._backlog = backlog
        self._memory = memory
        self._batches: dict[int, AnyBatch] = {}
        self._used: set[Account] = set()
        self._left = max_commands if max_commands is not None else -1
        self._commands = 0

    def take_all(self) -> Wave | None:
        """The wave, or None if nothing can go to the worker."""
        queues = _in_order(self._backlog.queues)
        self.accounts = {queue.account for queue in queues}
        long = [
            (queue, stage) for queue in queues if (stage := self._take(queue, 0, queue.passed >= PATIENCE)) is not None
        ]
        for queue, stage in long:
            self._take(queue, stage, True)
        return self._finish(queues)

    def _take(self, queue: CommandQueue, stage: int, long_forwards: bool) -> int | None:
        """Takes what fits of a queue; returns the stage at which a long forward waits for its turn, if one does."""
        account, commands = queue.account, queue.commands
        if account.ended is not None:
            return None
        while commands and self._left:
            command = commands[0]
            kind = command.kind
            if kind < 0:
                if not self._take_local(queue, command):
                    break
                continue
            if STAGE[kind] < stage or (command.after and command.after >= account.oldest_waiting):
                break
            if kind == FORWARD and not long_forwards and command.length - command.done > LONG_FORWARD:  # type: ignore[attr-defined]
                return stage
            batch = self._batches.get(kind) or self._new_batch(kind)
            if not batch.try_add(queue, command):  # type: ignore[arg-type]
                break
            self._note(queue)
            if kind == FORWARD and command.done < command.length:  # type: ignore[attr-defined]
                break
            self._backlog.remove_first(queue)
            stage = STAGE[kind]
        return None

    def _take_local(self, queue: CommandQueue, command: Command) -> bool:
        if command.kind == ALLOCATE:
            command.account.run_frees()
            assert isinstance(command, AllocateCommand)
            if not self._memory.try_bind(command):
                return False
        else:
            self.reached.append((queue, command))
        self.progress = True
        self._backlog.remove_first(queue)
        return True

    def _note(self, queue: CommandQueue) -> None:
        queue.last_wave = self.number
        self._used.add(queue.account)
        self._commands += 1
        self._left -= 1

    def _new_batch(self, kind: int) -> AnyBatch:
        batch = self._batches[kind] = self._make_batch(kind)
        return batch

    def _make_batch(self, kind: int) -> AnyBatch:
        match kind:
            case 0:
                return CopyBatch()
            case 1:
                return EmbedBatch()
            case 2:
                return ForwardBatch(self._model, self._memory.scratch_slot)
            case 3:
                return SampleBatch(self._model, self.number, self._memory.tokens)
            case 4:
                return DistBatch(self._model.max_batch_rows)
            case _:
                return ScoreBatch(self._model.max_batch_rows)

    def _finish(self, queues: list[CommandQueue]) -> Wave | None:
        for queue in queues:
            queue.account.forget_if_closed(queue)
        for account in self.accounts:
            account.wave_formed()
        if not self._commands:
            return None
        for queue in queues:
            queue.passed = 0 if queue.last_wave == self.number else queue.passed + 1
        kinds = [kind for kind in (COPY, EMBED, FORWARD, SAMPLE, DIST, SCORE) if kind in self._batches]
        batches = [self._batches[kind] for kind in kinds if _holds(self._batches[kind])]
        return Wave(self.number, batches, self._used, [], self._commands)


def _in_order(queues: Iterable[CommandQueue]) -> list[CommandQueue]:
    return sorted(queues, key=_urgency)


def _urgency(queue: CommandQueue) -> tuple[bool, int, int]:
    return queue.passed < PATIENCE, -queue.priority, queue.commands[0].seq


def _holds(batch: AnyBatch) -> bool:
    """Whether anything was added."""
    return bool(batch.commands) or (isinstance(batch, ForwardBatch) and bool(batch.parts))
