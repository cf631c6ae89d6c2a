"""A server on the test's own thread, for tests of the SDK: the real host functions and scheduler, on a scripted model.

A test calls the SDK as an inferlet does, and is the inferlet: a call that has to wait runs the server's event loop
until it is answered. So nothing happens between calls, and nothing depends on time but what sleeps.
"""

from __future__ import annotations

import asyncio
import functools
import json
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferlet_sdk import bindings
from pie_control import runtime
from pie_control.authoring.native.instance import NativeInstance
from pie_control.authoring.native.program import HostRefused, host_modules
from pie_control.authoring.native.programs import NativePrograms
from pie_control.config import AdapterPath, InferletLimits, ModelPath, build_config
from pie_control.errors import CallError
from pie_control.inferlets.events import Event, LogLine, Message
from pie_control.services.tokenizer import Tokenizer
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import RunWave
from tests.helpers.outside import Child, Web, read_image
from tests.helpers.scripted_model import IMAGES, STOP, ScriptedModel, State

CONFIG = replace(
    build_config({}, {}),
    http_allow=("*",),
    warm_pool=0,
    run_ahead=1,
    max_guest_bytes=1 << 62,
    models=(ModelPath("toy", "toy"),),
)
LIMITS = {one.name for one in fields(InferletLimits)}
LONGEST_WAIT = 10.0
"""Seconds after which a guest waits for ever."""


@types.coroutine
def _turn() -> Iterator[None]:
    """A turn of the event loop, whatever a test makes of `asyncio.sleep`."""
    yield


class _Instance(NativeInstance):
    """One whose program is on the thread of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.host_loop = loop

    def _ask(self, asked: Any) -> Any:
        with _within(self.host_loop):
            if self._take(asked):
                self._wake()
        if not asked.answer.done():
            asked.answer.add_done_callback(lambda _: self.host_loop.stop())
            with _within(None):
                timer = self.host_loop.call_later(LONGEST_WAIT, self.host_loop.stop)
                self.host_loop.run_forever()
                timer.cancel()
            assert asked.answer.done(), "the guest waits for ever"
        return asked.answer.result()


@contextmanager
def _within(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Another loop is the running one, or none."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class _Worker(InProcessClient):
    """A wave takes some turns of the event loop, so that a guest that waits hears of each."""

    def _run_inline(self, wave: RunWave, epoch: int, turns: int = 4) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._run_inline, wave, epoch, turns - 1)
        else:
            super()._run_inline(wave, epoch)


class _Programs(NativePrograms):
    def instance(self, program: str, name: str, owner: Any, tenant: str = "") -> Any:
        kind = Child if owner.inferlet.parent is not None else _Instance
        owner.instance = self.instances[owner.inferlet.id] = instance = kind(asyncio.get_running_loop())
        instance.owner = owner
        return instance


class NativeHost:
    """One inferlet on a server of its own, whose modules are installed in the SDK. `calls`: names of its calls, in
    order; a test may replace functions of the modules, `host.fused.decode = ...`."""

    core: Any
    allocate: Any
    children: Any
    forward: Any
    fused: Any
    input_text: Any
    output_text: Any
    tokenize: Any

    def __init__(
        self,
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        adapters: Sequence[str] = (),
        page_size: int = 4,
        max_context: int = 256,
        **options: Any,
    ) -> None:
        """`options`: of the model, and limits of the inferlet."""
        limits = {name: options.pop(name) for name in LIMITS & options.keys()}
        self.calls: list[str] = []
        self.events: list[Event] = []
        self.model = ScriptedModel(name="toy", vision=IMAGES, page_size=page_size, max_context=max_context, **options)
        self.tokens_at_once = 1
        self._loop = asyncio.SelectorEventLoop()
        self._folder = tempfile.TemporaryDirectory()
        found = tuple(AdapterPath(name, "toy", self._adapter(name)) for name in adapters)
        config = replace(CONFIG, adapters=found, limits=replace(CONFIG.limits, **limits))
        client = _Worker(self.model, inline=True)
        self._programs: _Programs
        self._api = runtime.build_server_without_sandbox(
            config, self._make_programs, Path(self._folder.name), lambda *_: client
        )
        self._run(self._launch(argv, environment or {}, blobs or {}))
        self._instance: Any = self._programs.instances[self.id]
        self.web = Web()
        self.guest.reach.http.network = self.web.network
        self.guest.reach.images.read = read_image
        modules = host_modules(self._instance, self._programs.contract, lambda _: None)
        for name in bindings.INTERFACES:
            module = vars(modules)[name]
            functions = {function: self._recorded(function, call) for function, call in vars(module).items()}
            setattr(self, name, SimpleNamespace(**functions))
        bindings.install(self, HostRefused)

    def _adapter(self, name: str) -> str:
        folder = Path(self._folder.name, name)
        folder.mkdir()
        folder.joinpath("adapter_config.json").write_text(json.dumps({"name": name}))
        return str(folder)

    def _make_programs(self, *given: Any) -> _Programs:
        self._programs = _Programs(*given)
        return self._programs

    async def _launch(self, argv: Sequence[str], environment: Mapping[str, str], blobs: Mapping[str, bytes]) -> None:
        await self._api.start()
        await self._api.upload(b"# a writer", "writer")
        program = (await self._api.upload(b"# a test", "test")).program
        kept = {name: await self._api.upload_blob(data) for name, data in blobs.items()}
        entry = await self._api.launch(program, argv, environment=environment, blobs=kept, listener=self.events.append)
        self.id = entry.id
        while self.id not in self._programs.instances:
            await _turn()

    def _run(self, work: Any) -> Any:
        with _within(None):
            return self._loop.run_until_complete(work)

    def _recorded(self, name: str, call: Any) -> Any:
        if not callable(call):
            return call  # the cases of an enum

        def host_call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name.startswith("take_run"):
                self._lag(arguments[0])
            return call(*arguments)

        return host_call

    def _lag(self, run: int) -> None:
        """The program takes tokens of a run when so many have come."""
        found = self.guest.futures.find_run(run)
        if found is not None and not found.is_watched:
            while len(found._tokens) < self.tokens_at_once and not found._over:
                self.settle(1)

    def settle(self, turns: int = 20) -> None:
        """Lets the server do what it has to do, and that does not wait for time."""

        async def wait() -> None:
            self._instance._wake()
            for _ in range(turns):
                await _turn()

        self._run(wait())

    # ---- what the client sees and says ----

    @property
    def sent(self) -> list[str]:
        self.settle()
        return [event.text for event in self.events if isinstance(event, Message)]

    @property
    def logs(self) -> list[str]:
        self.settle()
        return [event.text for event in self.events if isinstance(event, LogLine)]

    @property
    def result(self) -> Any:
        text = self.guest.inferlet.life._result
        return None if text is None else json.loads(text)

    def post(self, text: str, blobs: Mapping[str, bytes] | None = None) -> None:
        """A message of the client."""

        async def post() -> None:
            kept = {name: await self._api.upload_blob(data) for name, data in (blobs or {}).items()}
            self._api.send(self.id, text, kept)

        self._run(post())

    @property
    def tokenizer(self) -> Tokenizer:
        found: Tokenizer = self.guest.models["toy"].tokenizer
        return found

    # ---- what the inferlet holds ----

    @property
    def guest(self) -> Any:
        return self._instance.owner

    @property
    def pages(self) -> int:
        return int(self.guest.usage()[0])

    @property
    def embeds(self) -> int:
        return int(self.guest.usage()[1])

    @property
    def queues(self) -> list[int]:
        return list(self.guest.queues)

    @property
    def futures(self) -> int:
        return len(self.guest.futures)

    @property
    def handles(self) -> list[object]:
        """Samplers, detokenizers, matchers, blobs and the like."""
        return list(self.guest._handles.values())

    @property
    def runs(self) -> int:
        return len(self.guest.futures._runs)

    @property
    def held(self) -> tuple[int, int, int, int, int]:
        """Pages, embeds, queues, futures, and handles."""
        return self.pages, self.embeds, len(self.queues), self.futures, len(self.handles)

    def close(self) -> None:
        self._run(self._api.close())
        self._loop.close()
        self._folder.cleanup()


_last: list[NativeHost] = []


def install(*given: Any, **options: Any) -> NativeHost:
    """A host for the calls from now on; the last one is closed."""
    close_last()
    _last.append(NativeHost(*given, **options))
    return _last[0]


def close_last() -> None:
    while _last:
        _last.pop().close()


def nothing_held(host: NativeHost) -> bool:
    host.settle()
    return not any(host.held)


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens of the installed host's model, computed without any cache."""
    return _last[0].model.expected(prompt, count)


def refuse(code: str, message: str) -> HostRefused:
    """What a host function raises."""
    error = CallError(message)
    error.code = code
    return HostRefused(error)


def saying(text: str, after: int) -> Callable[[State], int]:
    """A script: `text`, then the end, after a prompt of `after` tokens."""
    tokens = [*tokenized(text), STOP]
    return lambda state: tokens[min(state[-1][1] + 1 - after, len(tokens) - 1)]


def tokenized(text: str) -> list[int]:
    """Tokens of the model."""
    return _tokenizer().encode(text)


@functools.cache
def _tokenizer() -> Tokenizer:
    about = ScriptedModel().describe()[0]
    return Tokenizer(about.tokenizer, about.tokenizer_config, about.vocab_size)
