"""Formation of one wave.

Queues are visited in fair order (fairness.py), class by class: a lower class gets what a higher one leaves. A visit
takes what it can of a queue (taking.py). It ends where the queue can contribute no more to this wave, at a long
command, which waits in the long line, or when it has cost as much as FEW tokens: then others have their turn. Beside
short steps, long commands get no more of a wave than these can wait for (chunks.py).

The further steps of decode runs are taken from the table of runs (decoding/): all at once where everything fits, else
one at each visit of its queue.

What it takes counts for tenants and keys (tenants/meters.py). A queue is not visited, but held, once its tenant or key
has spent its budget. A tile of an image that has begun goes on all the same: it has a slot that others wait for.
"""

from __future__ import annotations

from math import inf

from pie_control import calls
from pie_control.resources.memory import Memory
from pie_inference.protocol import ModelDescription

from ..account import Account, CommandQueue
from ..answers import Wave
from ..backlog import Backlog
from ..decoding.run import DecodeRun
from ..decoding.runs import NO_ROWS, Rows, TakenSteps
from ..fairness import Line, Share, goes_before
from .taking import Next, Taking

RANKS = {call: rank for rank, call in enumerate(sorted(calls.CALLS.values(), key=lambda call: (call.stage, call.name)))}
"""Order of the batches in a wave."""
MISFITS = 16
"""Queues that a wave visits in vain, for their commands do not fit, before it is complete. It keeps the cost of a wave
in bounds."""


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
        self._backlog = backlog
        self._memory = memory
        self.taking = Taking(model, backlog, memory, max_commands, most)
        self._set_aside: list[CommandQueue] = []  # visited, can contribute no more
        self._misfits: list[tuple[CommandQueue, Line]] = []  # with their lines

    def take_local(self) -> None:
        """Takes commands that take effect in the control layer from the heads of queues."""
        searches = self._backlog.searches
        for queue in self._backlog.take_locals():
            self.visited[queue.account] = None
            if queue.run is not None:
                self._go_on(queue, queue.run)
                continue
            has_turn, searched = queue.commands[0].searches > 0, False
            while queue.goes_on_locally:
                command = queue.commands[0]
                if command.searches and searches.waiting and not has_turn:
                    searches.add(queue)
                    break
                if command.searches and not searches.has_time(queue.account, searched):
                    searches.come_back(queue)
                    break
                if not self.taking.take_local(queue, command):
                    break
                searched = searched or command.searches > 0
            else:
                self._set_aside.append(queue)
        self._settle()

    def _go_on(self, queue: CommandQueue, run: DecodeRun[CommandQueue]) -> None:
        """Gives a run its next page, or has it wait for memory."""
        if queue.account.holdings.returns:
            queue.account.take_back(self._memory, queue.account.oldest_now())
        if self._backlog.runs.go_on(run, self._memory):
            self.taking.took_effect()
        else:
            self._backlog.starve(queue)

    def take_all(self, portion: int | None = None) -> Wave | None:
        """The wave, or None if nothing can go to the worker. `portion`: queues that take part, or a few more, for those
        of one inferlet stay together, and all runs do; None: all. Where all do not fit into one wave, it does not
        matter."""
        taking = self.taking
        if self._backlog.meters.limited and self._backlog.hold_runs():
            taking.took_effect()
        steps = self._backlog.runs.ready_rows() if self._backlog.runs.live else NO_ROWS
        if taking.left is None and self._backlog.fits(taking.most, steps) and taking.steps.fit(steps):
            self._take_everything(portion, steps)
        else:
            self._take_in_order()
        self._backlog.note_misfit(self._misfits[0][0] if self._misfits else None)
        self._settle()
        taken = self._add_steps() if taking.steps else None
        if not taking.used and taken is None:
            return None
        filled = (call for call, batch in taking.batches.items() if batch.count)
        batches = [taking.batches[call] for call in sorted(filled, key=RANKS.__getitem__)]
        work = sum(batch.work for batch in batches)
        tokens = work + sum(batch.tokens for batch in batches)
        return Wave(taking.context.wave, batches, taking.used, taken, tokens=tokens, long=taking.long)

    # ---- visits ----

    def _take_everything(self, portion: int | None, steps: Rows) -> None:
        """There is room for all that waits, as is the rule: no order is needed, and no account of it."""
        self.taking.take_everything(steps)
        for queue in self._backlog.first_of_new(portion and max(0, portion - len(steps))):
            self.visited[queue.account] = None
            following = self._prefix(queue)
            if following is Next.HELD:
                continue
            if following is Next.MISFIT:  # of another kind than long commands there is not enough
                self._backlog.does_not_fit(queue)
                continue
            self._backlog.set_aside(queue)
            if following is Next.DONE:
                self._set_aside.append(queue)

    def _take_in_order(self) -> None:
        self._backlog.line_up()
        self._backlog.rank_queues()
        overdue = self._backlog.overdue()
        if overdue is not None:
            self._visit(overdue)
        for root in self._backlog.tenants.classes:
            self._take_class(root)
        self.taking.add_granted()

    def _take_class(self, root: Share[CommandQueue]) -> None:
        taking = self.taking
        while taking.room and taking.left != 0 and len(self._misfits) < MISFITS:
            queue = root.first(Line.SHORT)
            long = root.first(Line.LONG) if root.heaps[Line.LONG] and taking.long_room > 0 else None
            if queue is None or (long is not None and not goes_before(queue, long)):
                queue = long
            if queue is None:
                return
            self._visit(queue)

    def _visit(self, queue: CommandQueue) -> None:
        self.visited[queue.account] = None
        line = queue.line
        following = self._prefix(queue) if line is Line.SHORT and queue.run is None else self._other(queue)
        if following is Next.AGAIN or following is Next.HELD:
            return
        if following is Next.MISFIT:
            assert line is not None
            queue.leave_line()  # for the rest of this wave; it stays ready, so that it is not behind who comes later
            self._misfits.append((queue, line))
            return
        self._backlog.set_aside(queue)
        if following is Next.DONE:
            self._set_aside.append(queue)

    def _prefix(self, queue: CommandQueue) -> Next:
        """Takes what fits of a queue."""
        if self._is_spent(queue):
            return self._hold(queue)
        taking, meter = self.taking, queue.account.meter
        room = taking.room
        following = taking.prefix(queue)
        meter.computes(room - taking.room, self._backlog.now)
        return following

    def _other(self, queue: CommandQueue) -> Next:
        """A step of a run, which counts with all others of the wave, or a part of a long command."""
        if self._is_spent(queue):
            return self._hold(queue)
        taking, meter = self.taking, queue.account.meter
        if queue.run is not None:
            return taking.step(queue, queue.run)
        room = taking.room
        following = taking.grant(queue)
        meter.computes(room - taking.room, self._backlog.now)
        return following

    def _is_spent(self, queue: CommandQueue) -> bool:
        meter = queue.account.meter
        return meter.limited and meter.is_spent(self._backlog.now) and not self.taking.is_tile_under_way(queue)

    def _hold(self, queue: CommandQueue) -> Next:
        self._memory.tiles.give_up(queue.account.owner, queue.first_seq)
        self._backlog.hold(queue)
        self.taking.took_effect()  # if nothing else is in the wave, others may go
        return Next.HELD

    def _add_steps(self) -> TakenSteps:
        taken, at_page_end = self.taking.steps.join_batches()
        self._backlog.steps_taken(taken)
        self._backlog.go_on(at_page_end)
        return taken

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
