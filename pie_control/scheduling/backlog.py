"""All queues that hold commands, over all inferlets."""

from __future__ import annotations

from pie_control.calls.kind import Command

from .account import Account, CommandQueue


class Backlog:
    """The only place that puts commands into queues and takes them out."""

    def __init__(self) -> None:
        self.queues: dict[CommandQueue, None] = {}
        self.commands = 0
        self.since = 0.0  # when something began to wait, or the last wave was sent
        self._tickets = 0

    def add(self, queue: CommandQueue, command: Command, now: float) -> None:
        if not queue.commands:
            if not self.queues:
                self.since = now
            self.queues[queue] = None
            self._line_up(queue)
        queue.commands.append(command)
        queue.account.waiting += 1
        self.commands += 1

    def remove(self, queue: CommandQueue, count: int) -> None:
        """Takes the first commands out of a queue."""
        if not count:
            return
        commands, account = queue.commands, queue.account
        for _ in range(count):
            commands.popleft()
        queue.done = 0
        account.waiting -= count
        account.taken += count
        self.commands -= count
        if not commands:
            del self.queues[queue]

    def served(self, queue: CommandQueue) -> None:
        """A wave took something of the queue: it goes to the end of the line."""
        self._line_up(queue)

    def _line_up(self, queue: CommandQueue) -> None:
        self._tickets += 1
        queue.ticket = self._tickets

    def drop(self, account: Account) -> None:
        """Forgets what waits of an inferlet."""
        for queue in account.queues.values():
            if queue.commands:
                self.commands -= len(queue.commands)
                queue.commands.clear()
                del self.queues[queue]
        account.waiting = 0
        account.queues.clear()

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues."""
        assert self.commands == sum(len(queue.commands) for queue in self.queues)
        assert all(queue.commands for queue in self.queues), "an empty queue waits"
