"""Formation of one wave.

A queue contributes the longest prefix of its commands that runs once through the stages copy, embed, forward, output.
A command of an earlier stage than one before it joins them if it touches nothing that those in between use: so all
embeds of a long prompt go with its first forward, and its forwards in one batch.
Queues are visited in fair order (fairness.py), class by class: a lower class gets what a higher one leaves. A visit
ends where the queue can contribute no more to this wave, at a long command, which waits in the long line, or when it
has cost as much as FEW tokens: then others have their turn.

A decode run is a command whose first step goes like one that samples; then it holds its queue, and its further steps
are taken from the table of runs (decoding/): all at once where everything fits, else one at each visit of its queue.

A long command that is visited in its line is granted a part, and comes again later. What it was granted is added to its
batch at the end of the wave, as one part. Beside short steps, long commands get no more of a wave than these can wait
for (chunks.py).
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any

from pie_control import calls
from pie_control.calls.fused.decode import DecodeCommand
from pie_control.calls.fused.step import StepCommand
from pie_control.calls.kind import Bind, Call, Command, LongBatch, LongCommand, Stage, WaveContext
from pie_control.resources.memory import Memory
from pie_inference.protocol import ModelDescription

from .account import Account, CommandQueue
from .answers import Wave
from .backlog import Backlog
from .decoding.run import Run
from .decoding.runs import NO_ROWS, Rows, Taken
from .decoding.steps import Steps
from .fairness import COMMAND_COST, FEW, Line, Share, goes_before

RANKS = {call: rank for rank, call in enumerate(sorted(calls.CALLS.values(), key=lambda call: (call.stage, call.name)))}
"""Order of the batches in a wave."""
PARTS = 8
"""Into as many parts a wave is divided between long commands, if there are as many. A part has at least FEW tokens."""
MISFITS = 16
"""Queues that a wave visits in vain, for their commands do not fit, before it is complete. It keeps the cost of a wave
in bounds."""


class _Next(Enum):
    """What a queue does after a visit."""

    AGAIN = "it can contribute more, after others"
    DONE = "it can contribute no more to this wave"
    MISFIT = "its command is too large for what is left of this wave"
    STARVED = "it waits for memory"
    RUNS = "a step of its run is in the wave, and it can contribute no more"


class WaveBuilder:
    """Takes commands out of the backlog. `most`: input tokens beyond which it takes no more of long commands."""

    def __init__(
        self,
        model: ModelDescription,
        backlog: Backlog,
        memory: Memory,
        max_commands: int | None,
        most: float = inf,
    ) -> None:
        self.visited: dict[Account, None] = {}
        self.progress = False  # something took effect in the control layer
        self.reached: list[tuple[CommandQueue, Command]] = []  # what the control layer answers, but for allocations
        self._context = WaveContext(model, memory.wave, memory.scratch_slot, memory.tokens)
        self._backlog = backlog
        self._memory = memory
        self._batches: dict[Call, Any] = {}  # Batch, or LongBatch for calls whose commands are long
        self._used: dict[Account, int] = {}
        self._left = max_commands  # None: no limit but those of the worker
        self._room = model.max_batch_tokens  # for parts of long commands
        self._most = int(min(most, model.max_batch_tokens))
        self._long = 0  # tokens of long commands
        self._few: float = FEW  # see fairness.py
        self._part = self._room if max_commands else max(FEW, self._room // PARTS)
        self._granted: dict[CommandQueue, None] = {}
        self._set_aside: list[CommandQueue] = []  # visited, can contribute no more
        self._misfits: list[tuple[CommandQueue, Line]] = []  # with their lines
        self._steps = Steps(backlog.runs, memory, self._batch)

    def take_local(self) -> None:
        """Takes commands that take effect in the control layer from the heads of queues."""
        local = list(self._backlog.local)
        self._backlog.local.clear()
        for queue in local:
            self.visited[queue.account] = None
            if queue.run is not None:
                self._go_on(queue, queue.run)
                continue
            while queue.goes_on_locally:
                if not self._take_local(queue, queue.commands[0]):
                    break
            else:
                self._set_aside.append(queue)
        self._settle()

    def _go_on(self, queue: CommandQueue, run: Run[CommandQueue]) -> None:
        """Gives a run its next page, or has it wait for memory."""
        if queue.account.holdings.returns:
            queue.account.take_back(self._memory, queue.account.oldest_now())
        if self._backlog.runs.go_on(run, self._memory, self._backlog.now):
            self.progress = True
        else:
            self._backlog.starve(queue)

    def take_all(self, portion: int | None = None) -> Wave | None:
        """The wave, or None if nothing can go to the worker. `portion`: queues that take part, or a few more, for those
        of one inferlet stay together, and all runs do; None: all. Where all do not fit into one wave, it does not
        matter."""
        steps = self._backlog.runs.ready_rows() if self._backlog.runs.live else NO_ROWS
        if self._left is None and self._backlog.fits(self._most, steps) and self._steps.fit(steps):
            self._take_everything(portion, steps)
        else:
            self._take_in_order()
        self._backlog.note_misfit(self._misfits[0][0] if self._misfits else None)
        self._settle()
        taken = self._add_steps() if self._steps else None
        if not self._used and taken is None:
            return None
        filled = (call for call, batch in self._batches.items() if batch.count)
        batches = [self._batches[call] for call in sorted(filled, key=RANKS.__getitem__)]
        tokens = sum(batch.tokens for batch in batches)
        return Wave(self._context.wave, batches, self._used, taken, tokens=tokens, long=self._long)

    # ---- visits ----

    def _take_everything(self, portion: int | None, steps: Rows) -> None:
        """There is room for all that waits, as is the rule: no order is needed, and no account of it."""
        self._few = inf
        self._steps.take_all(steps)
        self._room -= len(steps)
        new = self._backlog.first_of_new(portion and max(0, portion - len(steps)))
        for queue in new:
            self.visited[queue.account] = None
            following = self._take_prefix(queue)
            if following is _Next.MISFIT:  # of another kind than long commands there is not enough
                self._backlog.new.pop(queue)
                self._backlog.stand_in_line(queue)
                continue
            self._backlog.set_aside(queue)
            if following is _Next.DONE:
                self._set_aside.append(queue)

    def _take_in_order(self) -> None:
        self._backlog.line_up()
        self._backlog.rank_queues()
        overdue = self._backlog.overdue()
        if overdue is not None:
            self._visit(overdue)
        for root in self._backlog.tenants.classes:
            self._take_class(root)
        for queue in self._granted:
            self._add_granted(queue)

    def _take_class(self, root: Share[CommandQueue]) -> None:
        while self._room and self._left != 0 and len(self._misfits) < MISFITS:
            queue = root.first(Line.SHORT)
            long = root.first(Line.LONG) if root.heaps[Line.LONG] and self._long_room() > 0 else None
            if queue is None or (long is not None and not goes_before(queue, long)):
                queue = long
            if queue is None:
                return
            self._visit(queue)

    def _long_room(self) -> int:
        """Tokens that long commands may still add. What others add behind them is not foreseen: that is little."""
        return self._most - (self._context.model.max_batch_tokens - self._room)

    def _visit(self, queue: CommandQueue) -> None:
        self.visited[queue.account] = None
        line = queue.line
        if queue.run is not None:
            following = self._take_step(queue, queue.run)
        else:
            following = self._grant(queue) if line is Line.LONG else self._take_prefix(queue)
        if following is _Next.AGAIN:
            return
        if following is _Next.MISFIT:
            assert line is not None
            queue.line = None  # for the rest of this wave; it stays ready, so that it is not behind who comes later
            self._misfits.append((queue, line))
            return
        self._backlog.set_aside(queue)
        if following is _Next.DONE:
            self._set_aside.append(queue)

    def _take_step(self, queue: CommandQueue, run: Run[CommandQueue]) -> _Next:
        """A step of the run that holds a queue."""
        if not self._steps.try_take(run):
            return _Next.MISFIT
        self._room -= 1
        if self._left is not None:
            self._left -= 1
        queue.charge(1 + COMMAND_COST, lagging=False)
        return _Next.RUNS

    def _add_steps(self) -> Taken:
        taken, at_page_end = self._steps.add()
        self._backlog.go_on(at_page_end)
        return taken

    def _take_prefix(self, queue: CommandQueue) -> _Next:
        """Takes what fits of a queue, up to a long command."""
        commands, account, batches = queue.commands, queue.account, self._batches
        joined = queue.last_wave == self._context.wave
        stage = queue.stage if joined else 0
        taken, cost = 0, 0.0  # they leave the queue together: for each alone it costs a third of the time
        following = _Next.DONE
        while taken < len(commands) and self._left != 0:
            command = commands[taken]
            call = command.call
            if command.after and command.after >= account.oldest_waiting:
                break
            if call is None:
                self._backlog.remove(queue, taken)
                taken = 0
                if self._take_local(queue, command):
                    continue
                following = _Next.STARVED
                break
            if call.stage < stage and not self._may_pass(command, call.stage, stage):
                break
            if cost >= self._few:
                following = _Next.AGAIN
                break
            batch = batches.get(call) or self._new_batch(call)
            if type(command) is DecodeCommand:
                if command.future in account.cancelled:
                    account.cancelled.remove(command.future)
                    taken += 1
                    self.progress = True
                    continue
                if self._try_begin_run(queue, command):
                    taken += 1
                    cost += COMMAND_COST
                    following = _Next.RUNS
                elif not joined and not cost:
                    following = _Next.MISFIT
                break
            size = command.size if isinstance(command, LongCommand) else 0
            if isinstance(command, LongCommand) and not isinstance(command, StepCommand):
                before = 0 if taken else queue.done
                size -= before
                fits = size <= min(self._few, self._room) and batch.can_add(queue, command)
                if not fits or (command.bounded and batch.room_for(command) < size):
                    following = self._refuse_long(batch, queue, command, size)
                    break
                if command.bounded:
                    batch.reserve(command, size)
                    self._backlog.bounded.remove(command)
                batch.add(queue, command, account.holdings, before, command.size)
            elif not (
                command.try_join(self._batch, queue, account.holdings, stage, self._room)
                if isinstance(command, StepCommand)
                else batch.try_add(queue, command, account.holdings, 0)
            ):
                if not joined and not cost:  # nothing of it is in the wave that it could conflict with
                    following = _Next.MISFIT
                break
            self._room -= size
            self._long += size if size > FEW else 0
            self._backlog.parts -= size
            stage = max(stage, call.stage)
            taken += 1
            cost += size + COMMAND_COST
            if self._left is not None:
                self._left -= 1
        self._backlog.remove(queue, taken)
        if cost:
            if following is not _Next.RUNS:  # which wakes nobody
                self._note(queue, stage)
            if queue.line is not None:
                queue.charge(cost, lagging=False)
        return following

    def _try_begin_run(self, queue: CommandQueue, command: DecodeCommand) -> bool:
        """Takes the first step of a run, if it fits."""
        run = self._steps.try_begin(queue, command, queue.account.holdings)
        if run is None:
            return False
        self._backlog.begin_run(queue, run)
        if self._left is not None:
            self._left -= 1
        return True

    def _may_pass(self, command: Command, stage: Stage, last: Stage | int) -> bool:
        """Whether a command may run before those of its queue that are in this wave, at a later stage up to `last`."""
        later = (batch for call, batch in self._batches.items() if stage < call.stage <= last and batch.commands)
        return all(batch.lets_pass(command) for batch in later)

    def _refuse_long(self, batch: LongBatch[Any], queue: CommandQueue, command: LongCommand, size: int) -> _Next:
        """What becomes of a queue whose long command, with `size` parts left, cannot be added as one part."""
        if not batch.can_add(queue, command):
            return _Next.DONE
        if size <= FEW and command.whole:
            return _Next.MISFIT
        queue.wait_in(Line.LONG, min(size, self._part))
        return _Next.AGAIN

    def _grant(self, queue: CommandQueue) -> _Next:
        """Grants a part of the long command that comes first. With the last one it is added to its batch, and what
        comes behind it has its turn."""
        command = queue.commands[0]
        assert isinstance(command, LongCommand)
        size = command.size - queue.done - queue.granted
        part = size if command.whole else min(size, self._part, self._room, max(1, self._long_room()))
        batch = self._batches.get(command.call) or self._new_batch(command.call)
        room = batch.room_for(command) if command.bounded else part
        if room < part:
            part = 0 if command.whole else room
            if not part and queue.granted:
                return _Next.DONE
        if not queue.granted:
            if not batch.can_add(queue, command):
                return _Next.DONE
            if not part or part > self._room:
                return _Next.MISFIT
            self._granted[queue] = None
            self._note(queue, command.call.stage)
            if self._left is not None:
                self._left -= 1
        if command.bounded:
            batch.reserve(command, part)
        queue.grant(part)
        self._room -= part
        self._long += part
        queue.charge(part, lagging=True)
        if part < size:
            queue.lag = min(size - part, self._part)
            return _Next.AGAIN
        del self._granted[queue]
        self._backlog.bounded.discard(command)
        self._add_granted(queue)
        self._backlog.remove(queue, 1)
        queue.wait_in(Line.SHORT)
        return self._take_prefix(queue)

    def _add_granted(self, queue: CommandQueue) -> None:
        """Adds what was granted of a long command to its batch."""
        command = queue.commands[0]
        assert isinstance(command, LongCommand)
        begin, end = queue.take_granted()
        self._batches[command.call].add(queue, command, queue.account.holdings, begin, end)
        self._backlog.parts -= end - begin

    def _take_local(self, queue: CommandQueue, command: Command) -> bool:
        """Lets a command take effect in the control layer; False if it has to wait for memory."""
        if isinstance(command, Bind):
            holdings = queue.account.holdings
            if holdings.returns:
                queue.account.take_back(self._memory, queue.account.oldest_now())
            if not self._memory.try_bind(holdings, command, self._backlog.now):
                self._backlog.starve(queue)
                return False
        else:
            self._memory.keep(queue.account.holdings, command.future, command.keeps())
            self.reached.append((queue, command))
        self.progress = True
        self._backlog.remove_local(queue)
        return True

    # ---- batches ----

    def _batch(self, call: Call) -> Any:
        return self._batches.get(call) or self._new_batch(call)

    def _new_batch(self, call: Call) -> Any:
        assert call.new_batch is not None
        batch = self._batches[call] = call.new_batch(self._context)
        return batch

    def _note(self, queue: CommandQueue, stage: int) -> None:
        """The wave has commands of the queue, the last one at this stage."""
        if queue.join_wave(self._context.wave, stage):
            self._used[queue.account] = self._used.get(queue.account, 0) + 1

    # ---- the end ----

    def _settle(self) -> None:
        """Every queue that was visited finds its place again."""
        for account in self.visited:
            account.settle()
            if account.holdings.returns:
                account.take_back(self._memory, account.oldest_waiting)
            if account.blocked:
                self._backlog.unblock(account)
        for queue in self._set_aside:
            if queue.commands:
                self._backlog.place(queue)
            elif queue.closing:
                queue.account.forget_if_closed(queue)
        for queue, line in self._misfits:
            queue.wait_in(line, queue.lag)
