"""A server without WebAssembly and without a worker: its programs are coroutines of this file.

The HTTP server and the clients see the methods of `pie_control.server_api.ServerApi`; the mailboxes are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pie_control.config import InferletLimits, build_config, find_accounts
from pie_control.durable.accounts.audit import AuditRecord
from pie_control.durable.accounts.bills import Bills
from pie_control.durable.keys import Keys
from pie_control.durable.responses import AtOnce
from pie_control.engine.adapters import AdapterInfo
from pie_control.errors import BadProgram, Conflict, UnknownName
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.inferlets.events import WHERE, Ended, LogLine
from pie_control.inferlets.mailbox import Inbox, Sender
from pie_control.programs.store import ProgramInfo
from pie_control.registry.entry import InferletInfo
from pie_control.registry.outbox import Listener, Outbox
from pie_control.server_api import ServerApi
from pie_control.tenants.audit import AuditTrail
from pie_control.tenants.meters import Meter, Meters
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_inference.protocol import ModelDescription
from tests.helpers.guard import HANG_SECONDS

LIMITS = InferletLimits()

MODEL = ModelDescription(
    name="fake",
    architecture="LlamaForCausalLM",
    calls=("forward",),
    dtype="float32",
    device="cpu",
    vocab_size=256,
    hidden_size=8,
    max_context=512,
    page_size=16,
    num_pages=64,
    num_embeds=64,
    num_host_pages=0,
    num_token_slots=64,
    max_batch_tokens=64,
    max_batch_rows=64,
    max_dist=64,
    max_swap_pages=0,
    stop_tokens=(0,),
    tokenizer=b"{}",
    tokenizer_config={"chat_template": "{{ messages }}"},
    page_bytes=1024,
    weight_bytes=4096,
)


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
        self.sender = Sender(id, LIMITS, self.outbox.add)
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
        while (message := self._inbox.try_get()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return message.text

    def logs(self) -> tuple[LogLine, ...]:
        return self.outbox.logs()

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
            self.outbox.add(Ended(status, result, error, inferlet=self.id))


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
    """Lets the server store its answer, and says each message that it gets, until one is `end`, `fail` or `refuse`."""
    told = {"id": inferlet.environment["request_id"], "body": {"status": "in_progress"}, "input": [{"id": "a"}]}
    background = inferlet.environment["request_id"].startswith("background")
    inferlet.sender.send(json.dumps({"served_store": {**told, "background": background}}))
    while (text := await inferlet.receive()) not in ("end", "fail", "refuse"):
        inferlet.sender.send(json.dumps({"type": text}))
    if text == "fail":
        raise ValueError("no good")
    return await refuse(inferlet) if text == "refuse" else json.dumps({"status": "completed"})


BODIES: tuple[Body, ...] = (store, refuse, environment, hello, echo, fail, rude, wait, flood, heedless, tick, burst)


class FakeServerApi:
    """Has the methods of a `ServerApi`. It knows the programs of this file; an uploaded text runs as `kwargs`."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        self.tenants: dict[str, FakeServerApi] = {}  # the last one of each
        self.keys_shown: list[tuple[str, bool]] = []  # with whether what they launch may send requests
        self._ids = ids or itertools.count(1)  # of the inferlets of all tenants
        self.uploads = 0
        self.adapters = FakeAdapters()
        self.responses = AtOnce.responses(30.0, 1 << 20)
        self.standing = DEFAULT_STANDING
        self.meters = Meters()
        self.audit = AuditTrail(lambda: None)
        self.bills = Bills(self.meters, None, time.time)
        self.is_ready = True
        self.is_stopping = False
        self.compiles = True
        self.blobs: dict[str, bytes] = {}
        self.launched_with: dict[str, bytes] = {}  # the last inferlet
        self.sent_with: dict[str, bytes] = {}  # the last message
        self._bodies: dict[str, Body] = {}
        self._programs: dict[str, ProgramInfo] = {}
        self._inferlets: dict[str, FakeInferlet] = {}
        for body in BODIES:
            self._add(getattr(body, "__name__", "").encode(), getattr(body, "__name__", ""), body)

    def _add(self, data: bytes, name: str, body: Body, file: str = "") -> ProgramInfo:
        digest = hashlib.sha256(data).hexdigest()
        names = (name,) if name else ()
        told = names, file, time.time()
        self._programs[digest] = info = ProgramInfo(digest, name or digest[:12], "python", len(data), None, *told)
        self._bodies[digest] = body
        return info

    async def upload(self, data: bytes, name: str = "", file: str = "") -> ProgramInfo:
        try:
            if self.compiles:
                compile(data, name, "exec")
        except SyntaxError as error:
            raise BadProgram(f"{name or file}, line {error.lineno}: {error.msg}") from None
        self.uploads += 1
        before = [each.program for each in self._programs.values() if name and each.name == name]
        info = self._add(data, name, kwargs, file)
        return replace(info, replaced=next((each for each in before if each != info.program), None))

    def of(self, standing: Standing) -> FakeServerApi:
        self.tenants[standing.tenant.name] = found = FakeServerApi(self._ids)
        found.use(standing)
        return found

    def use(self, standing: Standing) -> None:
        self.standing = standing

    def of_key(self, key: str, may_send: bool) -> FakeServerApi:
        self.keys_shown.append((key, may_send))
        return self

    @property
    def meter(self) -> Meter:
        return self.meters.of(self.standing)

    def note(self, action: str, subject: str) -> None:
        self.audit.note(self.standing.tenant.name, "", action, subject)

    def read_audit(self, most: int) -> list[AuditRecord]:
        return [AuditRecord(1.0, 2.0, 3, "alice", "", "upload", "hello")][:most]

    def check_budget(self) -> None:
        self.meter.check(time.monotonic(), 3600.0)

    def programs(self) -> tuple[ProgramInfo, ...]:
        return tuple(self._programs.values())

    async def upload_blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def remove_program(self, program: str) -> ProgramInfo:
        for digest, info in self._programs.items():
            if program in (digest, info.name):
                return self._programs.pop(digest)
        raise UnknownName(f"no program {program!r}: upload it first")

    async def launch(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, str] | None = None,
        contents: Mapping[str, bytes] | None = None,
        owner: str = "",
        listener: Listener | None = None,
    ) -> FakeInferlet:
        found = [each for each in self._programs.values() if program in (each.program, each.name)]
        if not found:
            raise UnknownName(f"no program {program!r}: upload it first")
        self.check_budget()
        self.meter.requests(time.monotonic())
        self.launched_with = {name: self.blobs[digest] for name, digest in (blobs or {}).items()}
        self.launched_with |= contents or {}
        inferlet = FakeInferlet(f"i{next(self._ids)}", found[-1], arguments, environment or {})
        self._inferlets[inferlet.id] = inferlet
        if listener is not None:
            inferlet.attach(listener)
        inferlet.task = asyncio.create_task(self._run(inferlet, self._bodies[found[-1].program]))
        return inferlet

    def send(self, id: str, text: str, blobs: Mapping[str, str] | None = None) -> None:
        self.inferlet(id).send(text)
        self.sent_with = {name: self.blobs[digest] for name, digest in (blobs or {}).items()}

    async def _run(self, inferlet: FakeInferlet, body: Body) -> None:
        try:
            inferlet.end("finished", await body(inferlet), None)
        except asyncio.CancelledError:
            return
        except Exception as error:
            inferlet.end("failed", None, f"Traceback (most recent call last):\n{type(error).__name__}: {error}")

    def inferlet(self, id: str) -> FakeInferlet:
        if id not in self._inferlets:
            raise UnknownName(f"no inferlet {id!r}: it never existed, or ended long ago")
        return self._inferlets[id]

    def inferlets(self) -> tuple[InferletInfo, ...]:
        return tuple(inferlet.info() for inferlet in self._inferlets.values())

    async def look_at_all(self) -> tuple[InferletInfo, ...]:
        return self.inferlets()

    async def look_at(self, id: str, stack: bool = False) -> InferletInfo:
        inferlet = self.inferlet(id)
        if stack and inferlet.waits_for:
            inferlet.sender.log("log", f"{WHERE}\n  Task-1: main (line 4 of main.py)")
        return inferlet.info()

    def terminate(self, id: str, reason: str) -> None:
        inferlet = self.inferlet(id)
        inferlet.end("terminated", None, reason)
        inferlet.task.cancel()

    def models(self) -> tuple[ModelDescription, ...]:
        return (MODEL,)

    def outages(self) -> tuple[str, ...]:
        return ()

    observer = None
    keys: Keys | None = None

    def metrics(self) -> bytes:
        raise UnknownName("nothing is measured")

    def statistics(self) -> FakeStatistics:
        return FakeStatistics(FakeCounts(launched=len(self._inferlets)))

    async def close(self) -> None:
        for inferlet in self._inferlets.values():
            self.terminate(inferlet.id, "the server is shutting down")


class FakeAdapters:
    """None."""

    def all(self) -> tuple[AdapterInfo, ...]:
        return ()


@dataclass(frozen=True)
class FakeCounts:
    launched: int


@dataclass(frozen=True)
class FakeStatistics:
    inferlets: FakeCounts
    models: Mapping[str, object] = field(default_factory=dict)
    hosts: tuple[()] = ()
    outages: tuple[()] = ()


@contextlib.asynccontextmanager
async def serving(api: FakeServerApi, **settings: object) -> AsyncIterator[str]:
    """An HTTP server over `api` on this loop; yields its address."""
    config = build_config(settings)
    config = replace(config, accounts=find_accounts(config.tenants) if config.tenants else None)
    server = HttpServer(cast(ServerApi, api), bind("127.0.0.1", 0), config)
    await server.start()
    try:
        yield server.url
    finally:
        await api.close()
        await server.close()


def serve_async(
    test: Callable[[str, FakeServerApi], Coroutine[Any, Any, None]], api: FakeServerApi | None = None, **options: Any
) -> None:
    """Runs an asynchronous test against a server in its own loop."""

    async def run() -> None:
        runtime = api or FakeServerApi()
        async with serving(runtime, **options) as url:
            await asyncio.wait_for(test(url, runtime), HANG_SECONDS)

    asyncio.run(run())


@contextlib.contextmanager
def serving_thread() -> Iterator[str]:
    """A server in a thread, for synchronous clients."""
    started = threading.Event()
    found: list[Any] = []

    async def run() -> None:
        stop = asyncio.Event()
        async with serving(FakeServerApi()) as url:
            found.extend((url, asyncio.get_running_loop(), stop))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(30)
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(found[2].set)
        thread.join()
