"""Command queues, and the backlog of all of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .commands import Command

if TYPE_CHECKING:
    from .account import Account


class CommandQueue:
    """Commands of one inferlet that take effect in order."""

    __slots__ = ("account", "closing", "commands", "id", "last_wave", "passed", "priority")

    def __init__(self, account: Account, number: int) -> None:
        self.account = account
        self.id = number
        self.priority = 0
        self.closing = False
        self.commands: deque[Command] = deque()
        self.last_wave = -1  # the newest wave that holds a command of this queue
        self.passed = 0  # waves sent in a row that took nothing of it


class Backlog:
    """All queues that hold commands, over all inferlets."""

    def __init__(self) -> None:
        self.queues: dict[CommandQueue, None] = {}
        self.commands = 0
        self.since = 0.0  # when something began to wait, or the last wave was sent
        self.issued = 0  # the last sequence number

    def add(self, queue: CommandQueue, command: Command, now: float) -> None:
        if not queue.commands:
            if not self.queues:
                self.since = now
            self.queues[queue] = None
        queue.commands.append(command)
        queue.account.waiting += 1
        self.commands += 1

    def remove_first(self, queue: CommandQueue) -> None:
        queue.commands.popleft()
        queue.account.waiting -= 1
        self.commands -= 1
        if not queue.commands:
            del self.queues[queue]

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues."""
        assert self.commands == sum(len(queue.commands) for queue in self.queues)
        assert all(queue.commands for queue in self.queues), "an empty queue waits"

    def drop(self, queue: CommandQueue) -> None:
        """Forgets what waits in a queue."""
        if queue.commands:
            self.commands -= len(queue.commands)
            queue.account.waiting -= len(queue.commands)
            queue.commands.clear()
            del self.queues[queue]
