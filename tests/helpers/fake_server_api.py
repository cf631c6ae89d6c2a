"""A server without WebAssembly and without a worker: its programs are coroutines (fake_inferlets.py).

The HTTP server and the clients see the methods of `pie_control.server_api.ServerApi`; the mailboxes are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pie_control.config import build_config, find_accounts
from pie_control.durable.accounts.audit import AuditRecord
from pie_control.durable.accounts.bills import Bills
from pie_control.durable.keys import Keys
from pie_control.durable.responses import AtOnce
from pie_control.engine.adapters import AdapterInfo
from pie_control.errors import BadProgram, RateLimited, UnknownName
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.inferlets.events import WHERE, LogLine
from pie_control.programs.store import ProgramInfo
from pie_control.registry.entry import InferletInfo
from pie_control.registry.holdings import KeyHoldings
from pie_control.registry.outbox import Listener
from pie_control.server_api import ServerApi
from pie_control.tenants.audit import AuditTrail
from pie_control.tenants.meters import Meter, Meters
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_inference.protocol import ModelDescription
from tests.helpers.fake_inferlets import BODIES, Body, FakeInferlet, kwargs
from tests.helpers.guard import HANG_SECONDS

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


class FakeServerApi:
    """Has the methods of a `ServerApi`. It knows the programs of fake_inferlets.py; an uploaded
    text runs as `kwargs`."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        self.tenants: dict[str, FakeServerApi] = {}  # the last one of each
        self.keys_shown: list[tuple[str, bool]] = []  # with whether what they launch may send requests
        self.priorities: list[int] = []  # of requests, if not 0
        self._ids = ids or itertools.count(1)  # of the inferlets of all tenants
        self.uploads = 0
        self.tenants_told: list[str] = []
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

    def of_key(self, key: str, may_send: bool, most: int | None) -> FakeServerApi:
        self.keys_shown.append((key, may_send))
        return self

    def of_priority(self, priority: int) -> FakeServerApi:
        self.priorities.append(priority)
        return self

    @property
    def meter(self) -> Meter:
        return self.meters.of(self.standing)

    def has_spare_pages(self, share: float) -> bool:
        return True

    def note(self, action: str, subject: str) -> None:
        self.audit.note(self.standing.tenant.name, "", action, subject)

    def tell_tenants(self, names: Iterable[str]) -> None:
        self.tenants_told = sorted(names)

    def read_audit(self, most: int) -> list[AuditRecord]:
        return [AuditRecord(1.0, 2.0, 3, "alice", "", "upload", "hello")][:most]

    def check_budget(self) -> None:
        self.meter.check(time.monotonic(), 3600.0)

    def refusal_today(self) -> RateLimited | None:
        return self.meter.refusal_today(3600.0)

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

    def logs(self, id: str, after: int = 0, *, of_all: bool = False) -> tuple[LogLine, ...]:
        return self.inferlet(id).logs(after)

    def inferlets(self) -> tuple[InferletInfo, ...]:
        return tuple(inferlet.info() for inferlet in self._inferlets.values())

    def held_by_keys(self, *, of_all: bool) -> tuple[KeyHoldings, ...]:
        return ()

    async def look_at_all(self, *, of_all: bool = False) -> tuple[InferletInfo, ...]:
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

    def metrics(self, tenant: str | None) -> bytes:
        return f"of {tenant or 'all'}".encode()

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
async def serving(api: FakeServerApi, port: int = 0, **settings: object) -> AsyncIterator[str]:
    """An HTTP server over `api` on this loop; yields its address. `port`: 0: any free one."""
    config = build_config(settings)
    config = replace(config, accounts=find_accounts(config.tenants) if config.tenants else None)
    server = HttpServer(cast(ServerApi, api), bind("127.0.0.1", port), config)
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
def on_thread(serving: contextlib.AbstractAsyncContextManager[str]) -> Iterator[str]:
    """The address of a server in a loop of its own, for synchronous clients."""
    ready = threading.Event()
    found: list[Any] = []

    async def run() -> None:
        stop = asyncio.Event()
        async with serving as url:
            found.extend((url, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)  # one that is late is not waited for
    thread.start()
    try:
        assert ready.wait(HANG_SECONDS)
        yield found[0]
    finally:
        if found:
            found[1].call_soon_threadsafe(found[2].set)
            thread.join()


def serving_thread() -> contextlib.AbstractContextManager[str]:
    return on_thread(serving(FakeServerApi()))
