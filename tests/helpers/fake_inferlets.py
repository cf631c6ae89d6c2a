"""Inferlets whose programs are coroutines: those that a `FakeServerApi` knows."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pie_control.config import InferletLimits
from pie_control.errors import Conflict
from pie_control.inferlets.events import Ended, LogLine
from pie_control.inferlets.mailbox import Inbox, Sender
from pie_control.programs.store import ProgramInfo
from pie_control.registry.entry import InferletInfo
from pie_control.registry.outbox import Listener, Outbox

LIMITS = InferletLimits()


class FakeInferlet:
    """An inferlet whose program is a coroutine."""

    def __init__(self, id: str, program: ProgramInfo, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.id = id
        self.program = program
        self.arguments = arguments
        self.environment = environment
        self.status = "running"
        self.created = time.time()
        self.ended: float | None = None
        self.result: str | None = None
        self.error: str | None = None
        self.waits_for: str | None = None
        self.outbox = Outbox(id, LIMITS, lambda taken, read: self.sender.room(taken, read))
        self.sender = Sender(id, LIMITS, self.outbox.said, self.outbox.logged)
        self._inbox = Inbox()
        self._arrived = asyncio.Event()
        self.task: asyncio.Task[None]

    def info(self) -> InferletInfo:
        return InferletInfo(
            id=self.id,
            program=self.program.program,
            program_name=self.program.name,
            status=self.status,
            created=self.created,
            ended=self.ended,
            result=self.result,
            error=self.error,
            cpu_seconds=0.0,
            pages=0,
            embeds=0,
            waits_for=self.waits_for,
            waits_since=None if self.waits_for is None else self.created,
        )

    def send(self, text: str) -> None:
        if self.ended is not None:
            raise Conflict(f"inferlet {self.id} has ended ({self.status})")
        self._inbox.put(text)
        self._arrived.set()

    async def receive(self) -> str:
        self.waits_for = "a message of its client"
        while (message := self._inbox.try_get()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        self.waits_for = None
        return message.text

    def logs(self, after: int = 0) -> tuple[LogLine, ...]:
        return self.outbox.logs(after)

    def attach(self, listener: Listener) -> None:
        self.outbox.push_to(listener)

    async def say(self, text: str) -> None:
        """Sends a message, and waits until there is room for more."""
        self.sender.send(text)
        room = asyncio.Event()
        self.sender.when_room(room.set)
        await room.wait()

    def end(self, status: str, result: str | None, error: str | None) -> None:
        if self.ended is None:
            self.status, self.ended, self.result, self.error = status, time.time(), result, error
            self.waits_for = None
            self.sender.close()
            self.outbox.ended(Ended(status, result, error, inferlet=self.id))


Body = Callable[[FakeInferlet], Awaitable[Any]]


async def hello(inferlet: FakeInferlet) -> str:
    """Greets its arguments; the result is their number."""
    inferlet.sender.log("log", "greeting")
    for name in inferlet.arguments or ("world",):
        inferlet.sender.send(f"Hello, {name}! ")
    return json.dumps(len(inferlet.arguments))


async def echo(inferlet: FakeInferlet) -> None:
    """Sends back what it receives until that is `stop`."""
    while (text := await inferlet.receive()) != "stop":
        inferlet.sender.send(text)


async def fail(inferlet: FakeInferlet) -> None:
    """Fails as a Python inferlet does."""
    inferlet.sender.write("stderr", b"about to fail\n")
    raise ValueError("no good")


RUDE = "a\x1b]0;owned\x07b\x9b2Jc\rd\u202ee\tf"


async def rude(inferlet: FakeInferlet) -> None:
    """Sends, logs and raises what terminals obey."""
    inferlet.sender.log("log", RUDE)
    inferlet.sender.send(RUDE + "\n")
    raise ValueError(RUDE)


async def wait(inferlet: FakeInferlet) -> None:
    """Runs until it is ended."""
    inferlet.waits_for = "a message of its client"
    await asyncio.Event().wait()


async def kwargs(inferlet: FakeInferlet) -> str:
    """Stands for what `Client.run` ships: the result is the program's environment."""
    return inferlet.environment["kwargs"]


async def flood(inferlet: FakeInferlet) -> str:
    """Sends pieces of a size until it has sent as many bytes as its arguments say; the result is their number."""
    size, total = map(int, inferlet.arguments)
    for number in range(0, total, size):
        await inferlet.say(f"{number:09}" + "x" * (size - 9))
    return str(total)


async def heedless(inferlet: FakeInferlet) -> None:
    """Sends for ever and never waits for room."""
    while True:
        inferlet.sender.send("x" * 65536)


async def tick(inferlet: FakeInferlet) -> None:
    """Sends a number whenever there is room."""
    for number in itertools.count():
        await inferlet.say(str(number))
        await asyncio.sleep(0)


async def burst(inferlet: FakeInferlet) -> None:
    """At each message, sends as many events in one loop turn as it says."""
    while (text := await inferlet.receive()) != "stop":
        for number in range(int(text)):
            inferlet.sender.send(str(number))


async def refuse(inferlet: FakeInferlet) -> str:
    """Its request is wrong, which it says after a message if the id of the request is `late`."""
    if inferlet.environment["request_id"] == "late":
        inferlet.sender.send("one\ntwo")
    return json.dumps({"served_error": {"status": 422, "message": "n is too large", "param": "n", "code": "too_many"}})


async def environment(inferlet: FakeInferlet) -> str:
    """The result is its environment; before, it sends each of its values."""
    for value in inferlet.environment.values():
        inferlet.sender.send(value)
    return json.dumps(dict(inferlet.environment))


async def store(inferlet: FakeInferlet) -> str:
    """Logs a line, lets the server store its answer, and says each message that it gets, until one is `end`, `fail` or
    `refuse`."""
    inferlet.sender.log("log", "a request has come")
    told = {"id": inferlet.environment["request_id"], "body": {"status": "in_progress"}, "input": [{"id": "a"}]}
    background = inferlet.environment["request_id"].startswith("background")
    inferlet.sender.send(json.dumps({"served_store": {**told, "background": background}}))
    while (text := await inferlet.receive()) not in ("end", "fail", "refuse"):
        inferlet.sender.send(json.dumps({"type": text}))
    if text == "fail":
        raise ValueError("no good")
    return await refuse(inferlet) if text == "refuse" else json.dumps({"status": "completed"})


async def answer(inferlet: FakeInferlet) -> str:
    """Has a result alone."""
    return '{"answer": 1}'


async def logs(inferlet: FakeInferlet) -> None:
    """Logs many lines, each in a turn of its own, before its only message."""
    for number in range(2000):
        inferlet.sender.log("log", str(number))
        await asyncio.sleep(0)
    inferlet.sender.send("said")


BODIES: tuple[Body, ...] = (
    *(answer, logs, store, refuse, environment, hello, echo, fail, rude, wait),
    *(flood, heedless, tick, burst),
)
