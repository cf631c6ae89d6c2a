"""One inferlet, for the client that launched it or attached to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from pie_control.errors import BadRequest, InferletEnded, PieError
from pie_control.inferlets.events import Ended, Event, LogLine, Message

Content = str | os.PathLike[str] | bytes
"""What a blob is made of: the path of a file, or bytes."""


TERMINATED = "terminated by a client"
PAUSE_SECONDS = 0.5
"""Before an inferlet that was lost is launched again; longer each time."""


def check_watch(timeout: float | None, retries: int, detached: bool) -> None:
    """Checks what `launch` is asked to look after. Raises BadRequest."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise BadRequest(f"timeout: give seconds, more than 0, or None, not {timeout!r}")
    if type(retries) is not int or retries < 0:
        raise BadRequest(f"retries: give a number of 0 or more, not {retries!r}")
    if detached and (timeout is not None or retries):
        raise BadRequest(
            "timeout and retries are kept by this client, which a detached inferlet outlives: leave out one"
        )


class Relaunch(Protocol):
    """Launches the same again."""

    async def __call__(self, *, running: Running) -> Running:
        """The new inferlet's events go to `running`, which has its id from then on. Raises PieError."""


class Link(Protocol):
    """Where the inferlet runs: behind a connection, or in this process."""

    async def send(self, inferlet: str, text: str, blobs: Mapping[str, Content]) -> None:
        """Sends a message to the inferlet, with blobs by name."""

    async def terminate(self, inferlet: str, reason: str = TERMINATED) -> None:
        """Ends the inferlet."""

    async def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        """What `Client.inferlet` gives."""

    async def logs(self, inferlet: str) -> tuple[LogLine, ...]:
        """The log of the inferlet."""


class Running:
    """A running inferlet.

    It keeps messages until `receive`, `async for message in running` or `events` reads them. Each message goes to one
    reader only.
    """

    def __init__(self, id: str, link: Link) -> None:
        self.id = id
        self._link = link
        self._events: deque[Event] = deque()
        self._ended: Ended | None = None
        self._lost: PieError | None = None
        self._changed = asyncio.Event()
        self._retries = self._tries = 0
        self._relaunch: Relaunch | None = None
        self._attach: Callable[[], Awaitable[object]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwanted = ""  # why it shall not run any more

    # ---- for the link ----

    def deliver(self, event: Event) -> None:
        """Takes an event of the inferlet."""
        if isinstance(event, Ended):
            if event.status == "lost" and self._tries < self._retries and not self._unwanted:
                self._start(self._try_again(event))
                return
            self._ended = event
            if self._timer is not None:
                self._timer.cancel()
        self._events.append(event)
        self._changed.set()

    def attach_by(self, attach: Callable[[], Awaitable[object]]) -> None:
        """No events come before `attach` is called, by the first who waits for one."""
        self._attach = attach

    def watch(self, timeout: float | None, retries: int, relaunch: Relaunch) -> None:
        """Ends it after `timeout` seconds; launches it again where it is lost, so many times."""
        self._retries, self._relaunch = retries, relaunch
        if self._ended is not None:  # already: its events came with the answer to its launch
            self._ended = None
            self.deliver(self._events.pop())
        if timeout is not None and self._ended is None:
            overdue = f"it ran longer than its client gave it (timeout={timeout:g} s)"
            self._timer = asyncio.get_running_loop().call_later(
                timeout, lambda: self._start(self._end_overdue(overdue))
            )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_overdue(self, why: str) -> None:
        self._unwanted = why
        with contextlib.suppress(PieError):  # it has ended, or the connection has
            await self._link.terminate(self.id, why)

    async def _try_again(self, lost: Ended) -> None:
        assert self._relaunch is not None, "it is launched again only where it is watched"
        self._tries += 1
        await asyncio.sleep(PAUSE_SECONDS * self._tries)
        try:
            if self._unwanted:
                self.deliver(replace(lost, error=self._unwanted))
            else:
                await self._relaunch(running=self)
        except PieError as error:
            self.deliver(replace(lost, error=f"{lost.error}; it could not be launched again: {error}"))
            return
        if self._unwanted:
            await self._end_overdue(self._unwanted)

    def lose(self, error: PieError) -> None:
        """No more events will come, such as because the connection broke. Events delivered before can still be read."""
        self._lost = error
        self._changed.set()

    # ---- for users ----

    async def send(self, text: str, *, blobs: Mapping[str, Content] | None = None) -> None:
        """Sends a message, which the inferlet's `receive` returns; raises Conflict if the inferlet has ended,
        Overloaded if it does not keep up. `blobs`: files (paths) or bytes, such as images, that come with the message,
        by name."""
        await self._link.send(self.id, text, blobs or {})

    async def receive(self) -> str:
        """The next message of the inferlet; raises InferletEnded if it has ended and no message is left."""
        while (event := await self._next()) is not None:
            if isinstance(event, Message):
                return event.text
        ended = self._ended
        assert ended is not None, "events end with Ended"
        raise InferletEnded(ended.status, ended.error or f"inferlet {self.id} has ended and sends no more messages")

    async def __aiter__(self) -> AsyncIterator[str]:
        while (event := await self._next()) is not None:
            if isinstance(event, Message):
                yield event.text

    async def events(self) -> AsyncIterator[Event]:
        """Messages, log lines (if `launch` asked for them), and Ended as the last; raises ServerUnavailable if the
        connection breaks."""
        while (event := await self._next()) is not None:
            yield event

    async def _next(self) -> Event | None:
        while not self._events:
            if self._ended is not None:
                return None
            await self._wait()
        return self._events.popleft()

    async def result(self) -> Any:
        """Waits for the end; returns the inferlet's result, or None. Messages stay to be read.

        Raises InferletEnded with the traceback or reason unless the inferlet finished.
        """
        while self._ended is None:
            await self._wait()
        if self._ended.status != "finished":
            raise InferletEnded(self._ended.status, self._ended.error or "")
        return None if self._ended.result is None else json.loads(self._ended.result)

    async def info(self, stack: bool = False) -> dict[str, Any]:
        """Its status, what it uses and waits for, as `Client.inferlet` gives them."""
        return await self._link.inferlet(self.id, stack)

    async def logs(self) -> tuple[LogLine, ...]:
        """The lines of its stdout, stderr and `log` that the server keeps."""
        return await self._link.logs(self.id)

    async def terminate(self) -> None:
        """Ends the inferlet; nothing happens if it has ended. One that was lost is not launched again."""
        self._unwanted = self._unwanted or TERMINATED
        await self._link.terminate(self.id)

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        attach, self._attach = self._attach, None
        if attach is None:
            self._changed.clear()
            await self._changed.wait()
            return
        try:
            await attach()
        except BaseException:
            self._attach = attach  # whoever waits as well tries it next
            self._changed.set()
            raise
