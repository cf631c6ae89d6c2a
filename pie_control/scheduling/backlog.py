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
            self.line_up(queue)
        queue.put(command)
        self.commands += 1

    def remove(self, queue: CommandQueue, count: int) -> None:
        """Takes the first commands out of a queue."""
        if not count:
            return
        queue.take(count)
        self.commands -= count
        if not queue.commands:
            del self.queues[queue]

    def line_up(self, queue: CommandQueue) -> None:
        """The queue goes to the end of the line."""
        self._tickets += 1
        queue.take_place(self._tickets)

    def drop(self, account: Account) -> None:
        """Forgets the commands of an inferlet that wait."""
        for queue in account.drop_queues():
            self.commands -= len(queue.commands)
            del self.queues[queue]

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues."""
        assert self.commands == sum(len(queue.commands) for queue in self.queues)
        assert all(queue.commands for queue in self.queues), "an empty queue waits"
