"""What one wave under formation takes of one queue.

A queue contributes the longest prefix of its commands that runs once through the stages copy, embed, forward, output.
A command of an earlier stage than one before it joins them if it touches nothing that those in between use: so all
embeds of a long prompt go with its first forward, and its forwards in one batch.

A long command that is visited in its line is granted a part, and comes again later. What it was granted is added to its
batch at the end of the wave, as one part. A decode run is a command whose first step goes like one that samples; then
it holds its queue, and its further steps are taken from the table of runs (decoding/).
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any

from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.fused.step import StepCommand
from pie_control.calls.kind import Bind, Call, Command, LongBatch, LongCommand, Stage, WaveContext, WorkerCommand
from pie_control.errors import CallError, InvalidState
from pie_control.resources.holdings import NOT_BOUND
from pie_control.resources.memory import Memory
from pie_inference.protocol import ModelDescription

from ..account import Account, CommandQueue
from ..backlog import Backlog
from ..decoding.run import DecodeRun
from ..decoding.runs import Rows
from ..decoding.steps import Steps
from ..fairness import COMMAND_COST, FEW, Line

PARTS = 8
"""Into as many parts a wave is divided between long commands, if there are as many. A part has at least FEW tokens."""

FEW_INTERVALS, MOST_INTERVALS = 256, 1 << 14
"""Intervals of slots that the commands of a wave see or move, where one has more than a few: to go through them takes
about a millisecond for each thousand, in which nobody else has a turn. A single command may have more."""


class Next(Enum):
    """What a queue does after a visit."""

    AGAIN = "it can contribute more, after others"
    DONE = "it can contribute no more to this wave"
    MISFIT = "its command is too large for what is left of this wave"
    STARVED = "it waits for memory, or a slot for a tile of an image"
    HELD = "its tenant or key has spent its budget"
    RUNS = "a step of its run is in the wave, and it can contribute no more"


class _Visit:
    """The commands at the front of a queue that leave it together: for each alone it costs a third of the time."""

    __slots__ = ("account", "cost", "joined", "queue", "stage", "taken")

    def __init__(self, queue: CommandQueue, wave: int) -> None:
        self.queue = queue
        self.account = queue.account
        self.joined = queue.last_wave == wave  # the wave has commands of it already
        self.stage = queue.stage if self.joined else 0  # of the last one in the wave
        self.taken = 0
        self.cost = 0.0

    def takes(self, cost: float, stage: int = 0) -> None:
        """The next command leaves the queue."""
        self.taken += 1
        self.cost += cost
        self.stage = max(self.stage, stage)

    def begin_again(self) -> None:
        """What was taken has left the queue."""
        self.taken = 0

    @property
    def is_alone(self) -> bool:
        """Whether nothing of the queue is in the wave, that could keep out what else would fit."""
        return not self.joined and not self.cost


class Taking:
    """Takes commands out of queues into batches. `most`: input tokens beyond which it takes no more of long
    commands."""

    def __init__(
        self, model: ModelDescription, backlog: Backlog, memory: Memory, max_commands: int | None, most: float
    ) -> None:
        self.progress = False  # something took effect in the control layer
        self.reached: list[tuple[CommandQueue, Command]] = []  # what the control layer answers, but for allocations
        self.failed: list[tuple[Account, Exception]] = []  # whose command cannot be
        self.context = WaveContext(model, memory.wave, memory.scratch_slot, memory.tokens, memory.tiles)
        self.batches: dict[Call, Any] = {}  # Batch, or LongBatch for calls whose commands are long
        self.used: dict[Account, int] = {}  # queues
        self.left = max_commands  # None: no limit but those of the worker
        self.room = model.max_batch_tokens  # for parts of long commands
        self.most = int(min(most, model.max_batch_tokens))
        self.long = 0  # tokens of long commands
        self.intervals = 0  # that commands see which see more than a few
        self.few: float = FEW  # see fairness.py
        self.granted: dict[CommandQueue, None] = {}
        self.steps = Steps(backlog.runs, memory, self.batch)
        self._backlog = backlog
        self._memory = memory
        self._part = self.room if max_commands else max(FEW, self.room // PARTS)

    @property
    def long_room(self) -> int:
        """Tokens that long commands may still add. What others add behind them is not foreseen: that is little."""
        return self.most - (self.context.model.max_batch_tokens - self.room)

    def is_tile_under_way(self, queue: CommandQueue) -> bool:
        """Whether the command that comes first is a tile of an image that has begun."""
        has_begun = queue.run is None and bool(queue.done or queue.granted)
        return has_begun and self._memory.tiles.has(queue.account.owner, queue.first_seq)

    def took_effect(self) -> None:
        """Something did, in the control layer."""
        self.progress = True

    # ---- the front of a queue ----

    def prefix(self, queue: CommandQueue) -> Next:
        """Takes what fits of a queue, up to a long command."""
        if self._take_lone_step(queue):
            return Next.DONE
        visit = _Visit(queue, self.context.wave)
        following = None
        while following is None and self.left != 0 and visit.taken < len(queue.commands):
            command = queue.commands[visit.taken]
            if command.after and command.after >= visit.account.oldest_waiting:
                break
            following = self._take_into(visit, command)
        self._backlog.remove(queue, visit.taken)
        if visit.cost:
            if following is not Next.RUNS:  # which wakes nobody
                self._note(queue, visit.stage)
            if queue.line is not None:
                queue.charge(visit.cost, lagging=False)
        return following or Next.DONE

    def _take_lone_step(self, queue: CommandQueue) -> bool:
        """Takes a step that is all that a queue holds: the rule where programs decide about each token. False,
        and nothing is taken, if more has to be looked at."""
        if len(queue.commands) != 1 or queue.last_wave == self.context.wave or queue.line is not None:
            return False
        command = queue.commands[0]
        if not isinstance(command, StepCommand) or command.after or self.left is not None:
            return False
        holdings, many = queue.account.holdings, len(command.context.intervals) > FEW_INTERVALS
        if many or not holdings.has(command, self.context.model.page_size):
            return False
        if not command.try_join(self.batch, queue, holdings, 0, self.room):
            return False
        self.room -= command.size
        self._backlog.parts_taken(command.size)
        self._backlog.remove(queue, 1)
        self._note(queue, command.output.stage)
        return True

    def _take_into(self, visit: _Visit, command: Command) -> Next | None:
        """Takes a command; None: the next one may be taken, too."""
        if not isinstance(command, WorkerCommand):
            return self._take_control(visit, command)
        stage = command.call.stage
        if stage < visit.stage and not self._may_pass(visit, command, stage):
            return Next.DONE
        if visit.cost >= self.few:
            return Next.AGAIN
        if self._sees_too_much(command):
            return Next.DONE
        if not visit.account.holdings.has(command, self.context.model.page_size):
            return self._fail(visit.account, InvalidState(NOT_BOUND))
        if isinstance(command, RunCommand):
            return self._take_first_step(visit, command)
        if isinstance(command, LongCommand) and not isinstance(command, StepCommand):
            size, following = self._take_long(visit, command)
        else:
            size, following = self._take_short(visit, command)
        if following is None:
            self.room -= size
            is_rest = visit.queue.done and not visit.taken
            self.long += size if size > FEW or is_rest else 0
            self._backlog.parts_taken(size)
            visit.takes(size + COMMAND_COST, stage)
            self._goes_through(command)
            if self.left is not None:
                self.left -= 1
        return following

    def _take_control(self, visit: _Visit, command: Command) -> Next | None:
        if command.searches and self._backlog.searches.left <= 0:
            return Next.DONE
        self._backlog.remove(visit.queue, visit.taken)
        visit.begin_again()
        return None if self.take_local(visit.queue, command) else Next.STARVED

    def _take_first_step(self, visit: _Visit, command: RunCommand) -> Next | None:
        """Takes the first step of a run, if it fits."""
        queue = visit.queue
        if visit.account.forget_cancelled(command.future):
            visit.takes(0.0)
            self.took_effect()
            return None
        try:
            run = self.steps.try_begin(queue, command, visit.account.holdings, visit.account.meter.number)
        except Exception as error:
            return self._fail(visit.account, error)
        if run is None:
            return Next.MISFIT if visit.is_alone else Next.DONE
        self._goes_through(command)
        self._backlog.begin_run(queue, run)
        if self.left is not None:
            self.left -= 1
        visit.takes(COMMAND_COST)
        return Next.RUNS

    def _sees_too_much(self, command: WorkerCommand) -> bool:
        """Whether it has to wait for another wave, for it sees thousands of intervals, and so do others in this one."""
        seen = command.intervals
        return seen > FEW_INTERVALS and 0 < self.intervals > MOST_INTERVALS - seen

    def _goes_through(self, command: WorkerCommand) -> None:
        if (seen := command.intervals) > FEW_INTERVALS:
            self.intervals += seen

    def _fail(self, account: Account, error: Exception) -> Next:
        """A host has handed on what cannot be: the inferlet ends with this wave."""
        self.failed.append((account, error))
        self.took_effect()
        return Next.DONE

    def _take_long(self, visit: _Visit, command: LongCommand) -> tuple[int, Next | None]:
        """Takes what is left of a long command, in one part, if it is short; the size of that."""
        queue, batch = visit.queue, self.batch(command.call)
        if command.bounded and not visit.taken and batch.waits(command, visit.account.holdings):
            self._backlog.starve(queue)
            return 0, Next.STARVED
        before = 0 if visit.taken else queue.done
        size = command.size - before
        fits = size <= min(self.few, self.room) and batch.can_add(queue, command)
        if not fits or (command.bounded and batch.room_for(command) < size):
            return 0, self._refuse_long(batch, queue, command, size)
        if command.bounded:
            batch.reserve(command, size)
            self._backlog.bounds_met(command)
        batch.add(queue, command, visit.account.holdings, before, command.size)
        return size, None

    def _take_short(self, visit: _Visit, command: WorkerCommand) -> tuple[int, Next | None]:
        queue, holdings = visit.queue, visit.account.holdings
        if isinstance(command, StepCommand):
            size, fits = command.size, command.try_join(self.batch, queue, holdings, visit.stage, self.room)
        else:
            size, fits = 0, self.batch(command.call).try_add(queue, command, holdings, 0)
        if fits:
            return size, None
        return 0, Next.MISFIT if visit.is_alone else Next.DONE

    def _may_pass(self, visit: _Visit, command: Command, stage: Stage) -> bool:
        """Whether a command may run before those of its queue that are in this wave at a later stage."""
        later = (batch for call, batch in self.batches.items() if stage < call.stage <= visit.stage and batch.commands)
        return all(batch.lets_pass(visit.queue, command) for batch in later)

    def _refuse_long(self, batch: LongBatch[Any], queue: CommandQueue, command: LongCommand, size: int) -> Next:
        """What becomes of a queue whose long command, with `size` parts left, cannot be added as one part."""
        if not batch.can_add(queue, command):
            return Next.DONE
        if size <= FEW and command.whole:
            return Next.MISFIT
        queue.wait_in(Line.LONG, min(size, self._part))
        return Next.AGAIN

    def take_local(self, queue: CommandQueue, command: Command) -> bool:
        """Lets a command take effect in the control layer; False if it has to wait for memory."""
        if isinstance(command, Bind):
            holdings = queue.account.holdings
            if holdings.returns:
                queue.account.take_back(self._memory, queue.account.oldest_now())
            wanted = command.seq, command.resource, command.first, command.count
            if command.fewer:
                self._memory.bind_some(holdings, *wanted)
            elif not self._memory.try_bind(holdings, *wanted):
                self._backlog.starve(queue)
                return False
        else:
            try:
                self._memory.keep(queue.account.holdings, command)
            except CallError as error:
                self._fail(queue.account, error)
                return False
            self.reached.append((queue, command))
            if count := command.searches:
                if command.looks_at_all:
                    count += self._memory.exports.searches(queue.account.standing.tenant)
                self._backlog.searches.note(queue.account, count)
        self.took_effect()
        self._backlog.remove_local(queue)
        return True

    # ---- steps of runs, parts of long commands ----

    def step(self, queue: CommandQueue, run: DecodeRun[CommandQueue]) -> Next:
        """A step of the run that holds a queue."""
        if not self.steps.try_take(run):
            return Next.MISFIT
        self.room -= 1
        if self.left is not None:
            self.left -= 1
        queue.charge(1 + COMMAND_COST, lagging=False)
        return Next.RUNS

    def take_everything(self, steps: Rows) -> None:
        """There is room for all that waits: these steps of runs are taken, and no order is needed."""
        self.few = inf
        self.steps.take_all(steps)
        self.room -= len(steps)

    def grant(self, queue: CommandQueue) -> Next:
        """Grants a part of the long command that comes first. With the last one it is added to its batch, and what
        comes behind it has its turn."""
        command = queue.commands[0]
        assert isinstance(command, LongCommand)
        size = command.size - queue.done - queue.granted
        part = size if command.whole else self._part_of(command, size)
        batch = self.batch(command.call)
        if command.bounded and not queue.granted and batch.waits(command, queue.account.holdings):
            self._backlog.starve(queue)
            return Next.STARVED
        room = batch.room_for(command) if command.bounded else part
        if room < part:
            part = 0 if command.whole else room
        if queue.granted and (not part or part > self.room):
            return Next.DONE
        if not queue.granted:
            if self._sees_too_much(command) or not batch.can_add(queue, command):
                return Next.DONE
            if not part or part > self.room:
                return Next.MISFIT
            self._goes_through(command)
            self.granted[queue] = None
            self._note(queue, command.call.stage)
            if self.left is not None:
                self.left -= 1
        if command.bounded:
            batch.reserve(command, part)
        queue.grant(part)
        self.room -= part
        self.long += part
        queue.charge(part, lagging=True)
        if part < size:
            queue.wait_in(Line.LONG, min(size - part, self._part))
            return Next.AGAIN
        del self.granted[queue]
        self._backlog.bounds_met(command)
        self._add_granted(queue)
        self._backlog.remove(queue, 1)
        queue.wait_in(Line.SHORT)
        return self.prefix(queue)

    def _part_of(self, command: LongCommand, size: int) -> int:
        """What a queue gets at a time of what is left of a command. A unit that is more than those who take short
        steps can wait for goes alone."""
        part = min(size, self._part, self.room, max(1, self.long_room))
        if part >= command.unit:
            return part - part % command.unit
        return 0 if self.long else command.unit

    def add_granted(self) -> None:
        """Adds what was granted of long commands to their batches."""
        for queue in self.granted:
            self._add_granted(queue)

    def _add_granted(self, queue: CommandQueue) -> None:
        command = queue.commands[0]
        assert isinstance(command, LongCommand)
        begin, end = queue.take_granted()
        self.batches[command.call].add(queue, command, queue.account.holdings, begin, end)
        self._backlog.parts_taken(end - begin)

    # ---- batches ----

    def batch(self, call: Call) -> Any:
        """The wave's batch of a call."""
        found = self.batches.get(call)
        if found is None:
            assert call.new_batch is not None
            found = self.batches[call] = call.new_batch(self.context)
        return found

    def _note(self, queue: CommandQueue, stage: int) -> None:
        """The wave has commands of the queue, the last one at this stage."""
        if queue.join_wave(self.context.wave, stage):
            self.used[queue.account] = self.used.get(queue.account, 0) + 1
