"""Formation of one wave.

A queue contributes the longest prefix of its commands that runs once through the stages copy, embed, forward, output.
Queues go in the order of priority, then of their place in line; one that was passed over `PATIENCE` times goes first.
Long commands take what is left of the token budget after everything else, so that a prefill does not stall decodes;
they may be split anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pie_control import calls
from pie_control.calls.kind import LONG, Batch, Bind, Call, Command, LongCommand, WaveContext
from pie_control.ids import Owner
from pie_control.resources.memory import Memory
from pie_inference import protocol
from pie_inference.protocol import ModelDescription

from .account import Account, CommandQueue
from .backlog import Backlog

PATIENCE = 32
RANKS = {call: rank for rank, call in enumerate(sorted(calls.CALLS.values(), key=lambda call: (call.stage, call.name)))}
"""Order of the batches in a wave."""


@dataclass(slots=True)
class Wave:
    """A wave in flight: what the answers of the worker belong to."""

    number: int
    batches: list[Batch[Any]]  # in the order of the message
    accounts: set[Account]
    syncs: list[tuple[Owner, int]] = field(default_factory=list)  # futures that are done with this wave

    def build(self) -> tuple[protocol.Batch, ...]:
        return tuple(batch.build() for batch in self.batches)


class WaveBuilder:
    """Takes commands out of the backlog. `accounts` are those that have a queue with commands."""

    def __init__(
        self, model: ModelDescription, backlog: Backlog, memory: Memory, max_commands: int | None, now: float
    ) -> None:
        self.accounts: set[Account] = set()
        self.progress = False  # something took effect in the control layer
        self.reached: list[tuple[CommandQueue, Command]] = []  # synchronize commands
        self._context = WaveContext(model, memory.wave, memory.scratch_slot, memory.tokens)
        self._backlog = backlog
        self._memory = memory
        self._now = now
        self._batches: dict[Call, Batch[Any]] = {}
        self._used: set[Account] = set()
        self._left = max_commands  # None: no limit but those of the worker

    def take_all(self) -> Wave | None:
        """The wave, or None if nothing can go to the worker."""
        queues = _in_order(self._backlog.queues)
        self.accounts = {queue.account for queue in queues}
        long = []
        for queue in queues:
            stage = self._take(queue, 0, queue.passed >= PATIENCE)
            if stage is not None:
                long.append((queue, stage))
        for queue, stage in long:
            self._take(queue, stage, True)
        return self._finish(queues)

    def _take(self, queue: CommandQueue, stage: int, long_too: bool) -> int | None:
        """Takes what fits of a queue; returns the stage at which a long command waits for its turn, if one does."""
        commands = queue.commands
        taken, waits_at = 0, None  # those taken leave the queue together: for each alone it costs a third of the time
        while taken < len(commands) and self._left != 0:
            command = commands[taken]
            call = command.call
            if call is None:
                self._backlog.remove(queue, taken)
                taken = 0
                if self._take_local(queue, command):
                    continue
                break
            if call.stage < stage or (command.after and command.after >= queue.account.oldest_waiting):
                break
            size = command.size if isinstance(command, LongCommand) else 1
            before = 0 if taken else queue.done
            if size - before > LONG and not long_too:
                waits_at = stage
                break
            done = self._add(call, queue, command, before)
            if done < size:
                self._backlog.remove(queue, taken)
                queue.take_part(done)
                return None
            taken += 1
            stage = call.stage
        self._backlog.remove(queue, taken)
        return waits_at

    def _add(self, call: Call, queue: CommandQueue, command: Command, before: int) -> int:
        """Adds a command, or a part of it, to the batch of its kind; how much of it is taken then."""
        batch = self._batches.get(call) or self._new_batch(call)
        done = batch.try_add(queue, command, queue.account.holdings, before)
        if done > before:
            if self._left is not None:
                self._left -= 1
            if queue.join_wave(self._context.wave):
                self._used.add(queue.account)
        return done

    def _take_local(self, queue: CommandQueue, command: Command) -> bool:
        if isinstance(command, Bind):
            holdings = queue.account.holdings
            if holdings.returns:
                queue.account.take_back(self._memory, queue.account.oldest_now())
            if not self._memory.try_bind(holdings, command, self._now):
                return False
        else:
            self.reached.append((queue, command))
        self.progress = True
        self._backlog.remove(queue, 1)
        return True

    def _new_batch(self, call: Call) -> Batch[Any]:
        assert call.new_batch is not None
        batch = self._batches[call] = call.new_batch(self._context)
        return batch

    def _finish(self, queues: list[CommandQueue]) -> Wave | None:
        for queue in queues:
            queue.account.forget_if_closed(queue)
        for account in self.accounts:
            account.settle()
            if account.holdings.returns:
                account.take_back(self._memory, account.oldest_waiting)
        if not self._used:
            return None
        for queue in queues:
            if queue.wave_sent(self._context.wave):
                self._backlog.line_up(queue)
        filled = (call for call, batch in self._batches.items() if batch.commands)
        batches = [self._batches[call] for call in sorted(filled, key=RANKS.__getitem__)]
        return Wave(self._context.wave, batches, self._used)


def _in_order(queues: Iterable[CommandQueue]) -> list[CommandQueue]:
    return sorted(queues, key=_urgency)


def _urgency(queue: CommandQueue) -> tuple[bool, int, int]:
    return queue.passed < PATIENCE, -queue.priority, queue.ticket
