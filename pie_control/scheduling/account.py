"""What the scheduler keeps of one inferlet: its queues, the futures to be answered, what its addresses are bound to.

Accounts and queues change themselves; others call their methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pie_control.calls.kind import Command
from pie_control.errors import CallError
from pie_control.ids import Owner
from pie_control.resources.holdings import Forgotten, Freed, Holdings, TokenSource
from pie_control.resources.memory import Memory

from .turn import Progress


class CommandQueue:
    """Commands of one inferlet that take effect in order."""

    __slots__ = ("account", "closing", "commands", "done", "id", "last_wave", "passed", "priority", "ticket")

    def __init__(self, account: Account, number: int) -> None:
        self.account = account
        self.id = number
        self.priority = 0
        self.closing = False  # it ends when it is empty
        self.commands: deque[Command] = deque()
        self.done = 0  # parts of the first command that earlier waves took
        self.last_wave = -1  # the newest wave that holds a command of this queue
        self.passed = 0  # waves sent in a row that took nothing of it
        self.ticket = 0  # its place in the line of all queues

    def put(self, command: Command) -> None:
        self.commands.append(command)
        self.account.waiting += 1

    def take(self, count: int) -> None:
        """The first commands leave the queue."""
        for _ in range(count):
            self.commands.popleft()
        self.done = 0
        self.account.waiting -= count
        self.account.taken += count

    def take_part(self, done: int) -> None:
        """A wave took the first command up to this part."""
        self.done = done

    def take_place(self, ticket: int) -> None:
        """A place in the line of all queues."""
        self.ticket = ticket

    def join_wave(self, wave: int) -> bool:
        """The wave holds a command of this queue; whether that is news."""
        if self.last_wave == wave:
            return False
        self.last_wave = wave
        return True

    def wave_sent(self, wave: int) -> bool:
        """A wave was formed; whether it took something of this queue."""
        served = self.last_wave == wave
        self.passed = 0 if served else self.passed + 1
        return served


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
        self.returned: list[int] = []  # numbers under which memory was given back that is not bound any more
        self.oldest_waiting = 0  # every command below this number was taken by a wave formed before, or locally

    # ---- queues ----

    def open_queue(self, number: int) -> None:
        self.queues[number] = CommandQueue(self, number)

    def close_queue(self, queue: CommandQueue) -> None:
        """The queue ends after the commands that it holds."""
        queue.closing = True
        self.forget_if_closed(queue)

    def forget_if_closed(self, queue: CommandQueue) -> None:
        if queue.closing and not queue.commands:
            self.queues.pop(queue.id, None)

    def drop_queues(self) -> Iterator[CommandQueue]:
        """Forgets all queues, and gives those that held commands."""
        queues, self.queues, self.waiting = self.queues, {}, 0
        return (queue for queue in queues.values() if queue.commands)

    # ---- what arrives ----

    def command_arrived(self, command: Command) -> CallError | None:
        """Notes the future of a command, and the tokens that it names; the error of such a token, if it failed: the
        inferlet could not know that yet."""
        self.newest = command.seq
        if command.future is not None:
            self.futures.add(command.future)
            if command.gives_token:
                self.holdings.tokens[command.future] = TokenSource()
        for _, future in command.references:
            source = self.holdings.tokens[future]
            source.named = True
            if source.error is not None:
                return source.error
        return None

    def addresses_freed(self, freed: Freed) -> None:
        """The inferlet gave addresses back."""
        self.newest = freed.seq
        self.holdings.freed.add(freed, (queue.commands for queue in self.queues.values()))
        self.settle()  # otherwise a command behind the note would wait for it

    def tokens_forgotten(self, forgotten: Forgotten) -> None:
        """No further command names these tokens."""
        self.holdings.forgotten.append(forgotten)

    # ---- what is done ----

    def oldest_now(self) -> int:
        """Sequence number that no waiting command is below."""
        oldest = self.newest + 1
        if self.waiting:
            for queue in self.queues.values():
                if queue.commands and queue.commands[0].seq < oldest:
                    oldest = queue.commands[0].seq
        return oldest

    def settle(self) -> None:
        """What has left the queues was dispatched: later waves may rely on it."""
        self.oldest_waiting = self.oldest_now()

    def take_back(self, memory: Memory, oldest: int) -> None:
        """Takes back what commands that wait do not use any more; none is older than `oldest`."""
        self.returned += memory.run_frees(self.holdings, oldest)

    def progress(self) -> Progress:
        """What its address space should hear; told once."""
        if not self.returned:
            return Progress(self.owner, self.oldest_waiting, self.taken)
        returned, self.returned = tuple(self.returned), []
        return Progress(self.owner, self.oldest_waiting, self.taken, returned)

    def answer(self, future: int) -> bool:
        """Whether a future is still to be answered; it is answered now."""
        if future not in self.futures:
            return False
        self.futures.remove(future)
        return True

    def relies_on(self, command: Command) -> bool:
        """Whether the inferlet is wrong about its state if this command failed. A failed output is told by its future,
        unless a later command names its token."""
        if command.future is None:
            return True
        source = self.holdings.tokens.get(command.future)
        return source is not None and source.named

    def check_integrity(self) -> None:
        """Asserts that the counts are those of the queues, and that no waiting command is older than is claimed."""
        assert self.waiting == sum(len(queue.commands) for queue in self.queues.values())
        assert self.oldest_waiting <= self.oldest_now()
        waiting = (command.future for queue in self.queues.values() for command in queue.commands)
        assert self.futures.issuperset(future for future in waiting if future is not None)
