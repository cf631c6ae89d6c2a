"""All queues that hold commands, over all inferlets, by what they wait for.

A queue with commands is in one of these places, and only an event that concerns this place moves it; so a wave costs
what is in it, not what waits beside it:

- *new*: its first command can go to the worker, since the last wave.
- *in a line* of the tree of shares (fairness.py): the same, but not everything fitted into one wave.
- *local*: its first command takes effect in the control layer, and has not been tried.
- *searching*: the same, but it looks at many exports or pages, of which a turn has time for a few (searches.py).
- *starved*: its first command takes memory, or a slot for a tile of an image, and there is too little. Memory says
  when it is granted.
- *held*: the same as in a line, but its tenant or key has spent its budget (held.py).
- *blocked*: its first command waits for others of its inferlet. They are looked at when these have been dispatched.
- in the hands of the wave under formation, which has visited it.

A queue whose run is under way is in none of these places, whatever it holds: the table of runs (decoding/) says whether
it is ready. Then it may stand in a line. It is local or starved while its run has to go on to another page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add
from typing import Any

import numpy as np

from pie_control.calls.kind import Command, LongCommand
from pie_control.ids import Owner
from pie_control.resources.contention import Stalled
from pie_control.resources.holdings import Holdings
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import ServiceClass, Standing

from .account import Account, CommandQueue
from .decoding.run import DecodeRun
from .decoding.runs import Rows, Runs, TakenSteps
from .fairness import Line, Tenants
from .held import Held
from .searches import Searches

PATIENCE = 6
"""Waves between two that begin with a command which did not fit into what others left of the one before. Only a forward
that must not be split can be so large. So all others have six of seven waves, and such forwards the seventh, in fair
order: one goes within eight waves, and within seven more for each that goes before it. There are few of these, for
nobody is far behind the clock (fairness.py)."""


class Backlog:
    """The only place that puts commands into queues and takes them out."""

    def __init__(self, page_size: int, wave: int, meters: Meters, has_states: bool = False) -> None:
        """`wave`: input tokens of one. `has_states`: whether texts have states at this model. `meters`: what counts
        them, and who may spend how many."""
        self.meters = meters
        self.held = Held()
        self.runs: Runs[CommandQueue] = Runs(page_size, has_states)
        self.now = 0.0  # seconds; of the turn
        self.queues = 0  # that hold commands
        self.commands = 0  # in them
        self.local_commands = 0  # of these, those that take effect in the control layer
        self.parts = 0  # of long commands, in all queues
        self.bounded: set[LongCommand] = set()  # of these, those that a batch has its own bound for
        self.ready = [0] * len(ServiceClass)  # queues that are new or in a line, by class
        self.since = 0.0  # when something began to wait, or the last wave was sent
        self.new: dict[CommandQueue, None] = {}
        self.local: dict[CommandQueue, None] = {}
        self.searches = Searches()
        self.starved: dict[tuple[Owner, int], CommandQueue] = {}  # by inferlet and sequence number of the command
        self.tenants: Tenants[CommandQueue] = Tenants(wave)
        self._unranked: dict[Account, None] = {}  # whose guests' priorities have to be looked at anew
        self._misfit: CommandQueue | None = None  # did not fit into the last wave, the first such
        self._since_misfit = PATIENCE  # waves, since one was let first

    def turn_begins(self, now: float) -> None:
        self.now = now
        self.searches.turn_begins()
        if self.held:
            for queue in self.held.take(now):
                if queue.run is not None:
                    self.runs.hold(queue.run.row, held=False)
                else:
                    self.place(queue)

    def next(self, now: float) -> float | None:
        """When something goes on though nothing happens."""
        return now if self.local or self.searches.waiting else self.held.next(now)

    @property
    def goes_on_locally(self) -> bool:
        """Whether a command that takes effect in the control layer may have its turn in this one."""
        return bool(self.local or self.starved) or self.searches.can_go_on

    def fields(self, now: float) -> dict[str, Any]:
        """Those of `SchedulerStatistics`."""
        return {
            "queues_waiting": self.queues,
            "queues_ready": sum(self.ready) + len(self.local) + len(self.searches),
            "queues_starved": len(self.starved),
            "queues_held": len(self.held),
            "waits_seconds": max(0.0, now - self.since) if self.queues else 0.0,
            "commands_waiting": self.commands,
            "runs": self.runs.live,
        }

    # ---- inferlets ----

    def open(self, owner: Owner, holdings: Holdings, standing: Standing, host: int) -> Account:
        return Account(owner, holdings, standing, self.tenants.enter(standing), self.meters.of(standing), host)

    def drop(self, account: Account) -> None:
        """Forgets an inferlet, and the commands of it that wait."""
        for queue in account.drop_queues():
            self.local.pop(queue, None)
            self.queues -= bool(queue.commands)
            self.commands -= len(queue.commands)
            self.local_commands -= sum(command.call is None for command in queue.commands)
            self.parts -= queue.parts()
            self.bounded.difference_update(queue.commands)
            if queue in self.new or queue.line is not None:
                self.set_aside(queue)
            self.starved.pop((account.owner, queue.first_seq), None)
            self.held.discard(queue)
            if queue.run is not None:
                self.runs.end(queue.run)
        self._unranked.pop(account, None)
        self.searches.drop(account)
        self.tenants.leave(account.standing)

    def prioritize(self, queue: CommandQueue, priority: int) -> None:
        """Its guest wants it to go before, or after, other queues of its own."""
        queue.prioritize(priority)
        self._unranked[queue.account] = None

    # ---- commands ----

    def add(self, queue: CommandQueue, command: Command) -> None:
        if not self.queues:
            self.since = self.now
        queue.put(command)
        self.commands += 1
        if isinstance(command, LongCommand):
            self.parts += command.size
            if command.bounded:
                self.bounded.add(command)
        elif command.call is None:
            self.local_commands += 1
        if len(queue.commands) == 1:
            self.queues += 1
            queue.account.head_changed(queue)
            if queue.run is None:
                self.place(queue)

    def remove(self, queue: CommandQueue, count: int) -> None:
        """Takes the first commands, which go to the worker, out of a queue."""
        if not count:
            return
        queue.take(count)
        self.commands -= count
        if queue.commands:
            queue.account.head_changed(queue)
        else:
            self.queues -= 1

    def remove_local(self, queue: CommandQueue) -> None:
        """Takes the first command, which has taken effect, out of a queue."""
        self.local_commands -= 1
        self.remove(queue, 1)

    # ---- decode runs ----

    def begin_run(self, queue: CommandQueue, run: DecodeRun[CommandQueue]) -> None:
        """The wave takes the first step of a run of this queue, which holds the queue from now on."""
        self.ready[queue.account.standing.service_class] -= 1
        queue.begin_run(run)
        queue.account.holdings.freed.leaves(queue.commands, run.line)

    def end_run(self, queue: CommandQueue) -> None:
        """The run of a queue is over: what is behind it has its turn."""
        run = queue.run
        assert run is not None
        if queue.line is not None:
            self.set_aside(queue)
        self.local.pop(queue, None)
        self.starved.pop((queue.account.owner, run.command.seq), None)
        self.held.discard(queue)
        queue.end_run(self.runs.end(run))
        if queue.commands:
            self.place(queue)
        else:
            queue.account.forget_if_closed(queue)

    def go_on(self, runs: Iterable[DecodeRun[CommandQueue]]) -> None:
        """These have to go on to another page before their next step."""
        for run in runs:
            self.local[run.queue] = None

    # ---- budgets ----

    def hold(self, queue: CommandQueue) -> None:
        """A ready queue waits until its tenant and its key have something to spend again."""
        if queue.run is None or queue.line is not None:
            self.set_aside(queue)
        if queue.run is not None:
            self.runs.hold(queue.run.row, held=True)
        self.held.add(queue)

    def hold_runs(self) -> bool:
        """Ready runs whose budgets are spent wait; whether there are such."""
        spent = [one.number for one in self.meters.all if one.limited and one.is_spent(self.now)]
        runs = self.runs.ready(spent) if spent and self.runs.live else []
        for run in runs:
            self.hold(run.queue)
        return bool(runs)

    def steps_taken(self, taken: TakenSteps, sign: int = 1) -> None:
        """A wave has these steps; -1: they were for nothing."""
        counts = np.bincount(taken.meters)
        for number in counts.nonzero()[0].tolist():
            self.meters.all[number].generates(sign * int(counts[number]), self.now)

    def stalled(self) -> Stalled:
        """Who waits for a budget, and of which classes something stands in line."""
        return Stalled(self.held.owners, tuple(one for one in ServiceClass if self.tenants.classes[one].ready))

    # ---- places ----

    def place(self, queue: CommandQueue) -> None:
        """Finds the place of a queue with commands that is in none."""
        command, account = queue.commands[0], queue.account
        if command.after and command.after >= account.oldest_waiting:
            account.block(queue, command.after)
            if account.ranked:
                self._unranked[account] = None
        elif command.searches:
            self.searches.add(queue)
        elif command.call is None:
            self.local[queue] = None
        else:
            self.ready[account.standing.service_class] += 1
            self.new[queue] = None

    def line_up(self) -> None:
        """Not everything fits into one wave: what is new stands in line."""
        for queue in self.new:
            self.stand_in_line(queue)
        self.new.clear()
        for run in self.runs.ready() if self.runs.live else ():
            if run.queue.line is None:
                self.stand_in_line(run.queue)

    def stand_in_line(self, queue: CommandQueue) -> None:
        """A ready queue waits in the tree of shares."""
        queue.become_ready()
        queue.wait_in(Line.SHORT)
        if queue.account.ranked:
            self._unranked[queue.account] = None

    def does_not_fit(self, queue: CommandQueue) -> None:
        """A new queue stands in line, though there is room for all others."""
        self.new.pop(queue)
        self.stand_in_line(queue)

    def set_aside(self, queue: CommandQueue) -> None:
        """A ready queue is not ready any more."""
        if queue.run is None:
            self.ready[queue.account.standing.service_class] -= 1
        if queue.line is None:
            self.new.pop(queue, None)
        else:
            queue.leave_line()
            queue.become_idle()

    def take_locals(self) -> Iterator[CommandQueue]:
        """The queues whose first command has not been tried, and those whose search has its turn; whoever takes them
        finds a place for each."""
        local, self.local = self.local, {}
        yield from local
        yield from self.searches.take()

    def starve(self, queue: CommandQueue) -> None:
        """The first command of a queue, or its run, waits for memory."""
        self.starved[queue.account.owner, queue.first_seq] = queue

    def granted(self, owner: Owner, seq: int) -> None:
        """There is memory for a command that waits for it."""
        queue = self.starved.pop((owner, seq), None)
        if queue is not None:
            self.local[queue] = None

    def unblock(self, account: Account) -> None:
        """Commands of an inferlet were dispatched: others may have waited for them."""
        for queue in account.unblocked():
            self.place(queue)

    # ---- for the wave ----

    def parts_taken(self, parts: int) -> None:
        """A wave takes so many parts of long commands."""
        self.parts -= parts

    def bounds_met(self, command: LongCommand) -> None:
        """Its batch has room for all of a command that has a bound of its own there."""
        self.bounded.discard(command)

    def wave_sent(self) -> None:
        self.since = self.now

    def all_ready(self) -> list[int]:
        """Queues whose next command, or step of a run, can go to the worker, by class."""
        return list(map(add, self.ready, self.runs.ready_by_class()))

    def ready_behind(self, wave: int) -> tuple[int, ...]:
        """Ready queues that this wave or a later one has commands or steps of, by class. What stands in line counts as
        well: there is more than a wave of it."""
        counts = list(map(add, self.ready, self.runs.ready_by_class(wave)))
        for queue in self.new:
            if queue.last_wave < wave:
                counts[queue.account.standing.service_class] -= 1
        return tuple(counts)

    def first_of_new(self, number: int | None) -> list[CommandQueue]:
        """This number of new queues (None: all), and those that the inferlet of the last one has beside it."""
        new = list(self.new)
        if number is None:
            return new
        while 0 < number < len(new) and new[number].account is new[number - 1].account:
            number += 1
        return new[:number]

    def fits(self, parts: int, steps: Rows) -> bool:
        """Whether a wave of so many parts has room for everything that waits, and for these steps of runs. Then nobody
        has to go before others, and nobody's share is touched: there is enough."""
        enough = self.parts + len(steps) <= parts and not self.bounded
        return enough and not any(root.ready for root in self.tenants.classes)

    def rank_queues(self) -> None:
        """Takes notice of guests' priorities."""
        for account in self._unranked:
            account.rank_queues()
        self._unranked.clear()

    def overdue(self) -> CommandQueue | None:
        """A queue whose turn it was in the last wave, but whose command needs one almost of its own. Nobody gets that
        from those of a higher class."""
        queue = self._misfit
        if queue is None or queue.line is None or self._since_misfit < PATIENCE:
            return None
        own = queue.account.standing.service_class
        if any(self.all_ready()[:own]):
            return None
        self._since_misfit = -1  # this wave does not count
        return queue

    def note_misfit(self, queue: CommandQueue | None) -> None:
        """The first queue whose command did not fit into the wave that was formed."""
        self._misfit = queue
        self._since_misfit += 1
