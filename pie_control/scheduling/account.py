"""What the scheduler keeps of one inferlet: its queues, what they hold, and what its addresses are bound to."""

from __future__ import annotations

from collections import deque

from pie_control.calls.kind import Command
from pie_control.ids import Owner
from pie_control.resources.holdings import Holdings


class CommandQueue:
    """Commands of one inferlet that take effect in order."""

    __slots__ = ("account", "closing", "commands", "done", "id", "last_wave", "passed", "priority", "ticket")

    def __init__(self, account: Account, number: int) -> None:
        self.account = account
        self.id = number
        self.priority = 0
        self.closing = False
        self.commands: deque[Command] = deque()
        self.done = 0  # parts of the first command that earlier waves took
        self.last_wave = -1  # the newest wave that holds a command of this queue
        self.passed = 0  # waves sent in a row that took nothing of it
        self.ticket = 0  # its place in the line of all queues


class Account:
    """One inferlet at one worker."""

    def __init__(self, owner: Owner, holdings: Holdings) -> None:
        self.owner = owner
        self.holdings = holdings
        self.queues: dict[int, CommandQueue] = {}
        self.futures: set[int] = set()  # not answered yet
        self.newest = 0  # sequence number of what arrived last
        self.waiting = 0  # commands in the queues
        self.taken = 0  # commands that have left them
        self.oldest_waiting = 0  # every command below this number was taken by a wave formed before, or locally

    def oldest_now(self) -> int:
        """Sequence number that no waiting command is below."""
        oldest = self.newest + 1
        if self.waiting:
            for queue in self.queues.values():
                if queue.commands and queue.commands[0].seq < oldest:
                    oldest = queue.commands[0].seq
        return oldest

    def forget_if_closed(self, queue: CommandQueue) -> None:
        if queue.closing and not queue.commands:
            self.queues.pop(queue.id, None)

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues, and that no waiting command is older than is claimed."""
        assert self.waiting == sum(len(queue.commands) for queue in self.queues.values())
        assert self.oldest_waiting <= self.oldest_now()
        waiting = (command.future for queue in self.queues.values() for command in queue.commands)
        assert self.futures.issuperset(future for future in waiting if future is not None)
