"""Messages that an inferlet gets, the futures by which it receives them, and those by which it sends others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..mailbox import NO_BLOBS, Inbox, Pace, Received
from ..waiting.waits import Waits


class Letter(NamedTuple):
    """A message that a future holds; None in place of it means: no further one comes. Not taken, it goes back."""

    message: Received | None
    box: Mailbox
    future: int = 0

    def taken(self) -> None:
        """The program has the message."""
        self.box.was_taken(self)

    def not_taken(self) -> None:
        """The future is given up: the next one gets the message."""
        self.box.put_back(self)


class Mailbox:
    """Messages from one side, in order; each goes to one future, in the order in which they were asked for. `taken`
    hears of each message that the program has taken: until then it counts, whether a future holds it or none."""

    def __init__(self, owner: Waits, taken: Callable[[Received], None], what: str) -> None:
        """`what` the owner waits for while no message is there, as for `Waits.begin`."""
        self._owner = owner
        self._what = what
        self._taken = taken
        self._inbox = Inbox()
        self._waiting: OrderedDict[int, None] = OrderedDict()  # futures
        self._given: set[int] = set()  # futures that hold a message
        self._over: Any = None  # what futures get when no message is left; None: they wait

    def put(self, text: str, sender: str = "", blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """Adds a message."""
        self._inbox.put(text, sender, blobs)
        self._deliver()

    def put_back(self, letter: Letter) -> None:
        """A message that a future had got waits again, in its place."""
        if letter.message is not None:
            self._given.discard(letter.future)
            self._inbox.put_back(letter.message)
            self._deliver()

    def was_taken(self, letter: Letter) -> None:
        """The program has it."""
        if letter.message is not None:
            self._given.discard(letter.future)
            self._taken(letter.message)

    def receive(self, future: int) -> None:
        """A future, pending until now, gets the next message."""
        self._waiting[future] = None
        self._owner.begin(future, lambda: self._waiting.pop(future), self._what)
        self._deliver()

    def end(self, value: Any = None) -> None:
        """No message comes any more; when none is left, futures get a Letter without message. `value`: an error that
        they all get at once, and what was not taken is dropped."""
        self._over = Letter(None, self) if value is None else value
        if value is not None:
            self._inbox = Inbox()
            for future in self._given:
                self._owner.withdraw(future, value)
            self._given.clear()
        self._deliver()

    def _deliver(self) -> None:
        while self._waiting:
            message = self._inbox.try_get()
            if message is None and self._over is None:
                return
            future, _ = self._waiting.popitem(last=False)
            if message is not None:
                self._given.add(future)
            self._owner.conclude(future, self._over if message is None else Letter(message, self, future))


class Source:
    """What an inferlet has a handle of, by which it takes messages."""

    def __init__(self, box: Mailbox) -> None:
        self._box = box

    def receive(self, future: int) -> None:
        """The future gets the next message, as long as one may come."""
        self._box.receive(future)


def send_paced(
    waits: Waits, pace: Pace, size: int, send: Callable[[], None], what: str, value: Any = None
) -> int | None:
    """Sends a message of so many bytes. If its receiver is slow, returns a future that gets a value when there is room
    for more; else None. `what` is waited for then, as for `Waits.begin`. Raises QuotaExceeded, and sends nothing, if
    too much waits already."""
    if pace.has_room(size):
        send()
        return None
    with waits.issuing() as future:
        send()
    waits.begin(future, lambda: None, what)
    pace.when_room(lambda: waits.conclude(future, value))
    return future
