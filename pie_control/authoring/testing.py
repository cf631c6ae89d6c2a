"""What `inferlet_sdk.testing` runs programs with: one server for all tests of a process; and a plugin for pytest."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inferlet_sdk.guest.arguments import Args
from inferlet_sdk.testing import InferletFailed, Outcome

from ..client.programs.packages import name_of, read_program
from ..client.programs.passing import passed
from ..client.programs.shipping import program_of
from ..client.running import Content
from ..config import ServerConfig, build_config
from ..errors import ConfigError, UnknownName
from ..inferlets.events import Ended, Event, LogLine, Message
from ..runtime import ClientFactory, build_server
from .native.debugging import stop_at
from .native.program import Source, source_of
from .native.server import NativeServer
from .server_thread import Heard, ServerThread

if TYPE_CHECKING:
    from ..config import ModelPath
    from ..inference_client.interface import InferenceClient


NOTHING: Mapping[str, Any] = MappingProxyType({})
Mail = str | tuple[str, Mapping[str, Content]]
"""A message, or one with blobs."""


class SandboxedServer(ServerThread):
    """Runs programs in the sandbox, one at a time; the calling thread waits."""

    def __init__(self, config: ServerConfig, make_client: ClientFactory | None = None) -> None:
        super().__init__()
        self._config = replace(config, hosts=0, warm_pool=1)
        self._make_client = make_client

    async def _begin(self) -> None:
        self._api = build_server(self._config, self._make_client)
        await self._api.start()

    def run(
        self,
        content: bytes,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[Event], None],
        began: Callable[[str], object],
        blobs: Mapping[str, Content],
    ) -> Ended:
        """Runs the program of a content to its end; `tell` hears its events, `began` its id. `blobs`: files or bytes by
        name. Raises PieError."""
        heard, program = Heard(tell), self.call(self._api.upload(content, file=name)).program
        given: dict[str, Any] = {"environment": environment, "blobs": self.call(self.upload(blobs)), "listener": heard}
        began(self.call(self._api.launch(program, arguments, **given)).id)
        return heard.wait()


class TestingServer:
    """The server of this process's tests, started when it is first needed. `tests` have one at a time."""

    def __init__(self) -> None:
        self._server: NativeServer | SandboxedServer | None = None
        self._busy = False
        self.config: ServerConfig | None = None
        self.fake = False
        self.sandbox = False
        self.debug = False

    def choose(self, config: ServerConfig, *, fake: bool, sandbox: bool, debug: bool) -> None:
        """For servers that start from now on."""
        self.close()
        self.config, self.fake, self.sandbox, self.debug = config, fake, sandbox, debug

    def run(
        self,
        program: Path | Source | Callable[..., Any],
        arguments: Sequence[str],
        inbox: Sequence[Mail] = (),
        environment: Mapping[str, str] = NOTHING,
        blobs: Mapping[str, Content] = NOTHING,
    ) -> tuple[Ended, Outcome]:
        """Runs a program; a `Source` only outside of the sandbox."""
        self._check_free()
        server, events, tokens = self._started(), list[Event](), list[int]()

        def began(inferlet: str) -> None:
            for mail in inbox:
                text, with_it = (mail, NOTHING) if isinstance(mail, str) else mail
                server.send(inferlet, text, with_it)

        self._busy = True
        try:
            if isinstance(server, NativeServer):
                failed, source = stop_at if self.debug else None, _source(program)
                ended = server.run(source, arguments, environment, events.append, began, tokens.extend, blobs, failed)
            else:
                content, name = _content(program)
                ended = server.run(content, name, arguments, environment, events.append, began, blobs)
        finally:
            self._busy = False
        return ended, Outcome(
            None if ended.result is None else json.loads(ended.result),
            [event.text for event in events if isinstance(event, Message)],
            [event.text for event in events if isinstance(event, LogLine)],
            None if self.sandbox else tokens,
        )

    def _check_free(self) -> None:
        if self._busy:
            raise RuntimeError("a program of this process runs already: call `run` from a test that is a plain `def`")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("`run` cannot be called on an event loop: make the test a plain `def`")

    def _started(self) -> NativeServer | SandboxedServer:
        if self._server is None:
            config = self.config or build_config({}, os.environ).resolved()
            server = (SandboxedServer if self.sandbox else NativeServer)(config, fake_client if self.fake else None)
            server.start()
            self._server = server
            atexit.register(self.close)
        return self._server

    def close(self) -> None:
        """Stops the server. Idempotent."""
        if self._server is not None:
            atexit.unregister(self.close)
            self._server.close()
            self._server = None


def _source(program: Path | Source | Callable[..., Any]) -> Source:
    """What runs outside of the sandbox."""
    if isinstance(program, Source):
        return program
    if isinstance(program, Path):
        return source_of(program)
    return Source(Path(inspect.getfile(program)), program.__name__, lambda: program)


def _content(program: Path | Source | Callable[..., Any]) -> tuple[bytes, str]:
    """What the sandbox gets, and its name."""
    if isinstance(program, Path):
        return read_program(program), name_of(program)
    assert not isinstance(program, Source), "runs outside of the sandbox only"
    return program_of(program).encode(), program.__name__


session = TestingServer()


def fake_client(_config: ServerConfig, model: ModelPath) -> InferenceClient:
    """A worker without weights, in this process."""
    from ..testing.fake_model import FakeModel
    from ..testing.in_process import InProcessClient

    return InProcessClient(FakeModel(model.name))


# ---- for inferlet_sdk.testing ----------------------------------------------------------------------------------------


def run_program(
    program: Path | Callable[..., Any],
    args: Sequence[Any],
    inbox: Sequence[Mail],
    kwargs: Mapping[str, Any],
    blobs: Mapping[str, Content],
    environment: Mapping[str, str] | None,
) -> Outcome:
    """Raises InferletFailed, PieError."""
    if isinstance(program, Path) and not program.exists():
        raise UnknownName(f"there is no file {program}")
    words, passed_on = passed(args, kwargs, environment)
    ended, outcome = session.run(program, words, inbox, passed_on, blobs)
    if ended.status != "finished":
        raise InferletFailed(f"the inferlet {ended.status}: {ended.error}", outcome)
    return outcome


def choose_fake_model() -> None:
    """Until the process ends."""
    session.fake = True


# ---- for pytest ------------------------------------------------------------------------------------------------------


def run_function(path: Path, name: str, function: Callable[[], Any]) -> None:
    """Calls a coroutine function as an inferlet; raises what it raises."""
    raised: list[BaseException] = []

    async def main(_args: Args) -> None:
        try:
            await function()
        except BaseException as error:
            raised.append(error)

    ended, _ = session.run(Source(path, name, lambda: main), ())
    if raised:
        raise raised[0]
    if ended.status != "finished":
        raise RuntimeError(f"the inferlet {ended.status}: {ended.error}")


def run_tests(arguments: Sequence[str], config: ServerConfig, *, fake: bool, sandbox: bool, debug: bool = False) -> int:
    """Runs pytest; returns its exit code. `debug`: with a debugger, where a program or a test fails. Raises ConfigError
    if it is not installed."""
    try:
        import pytest
    except ImportError:
        raise ConfigError(f"`pie test` needs pytest: {sys.executable} -m pip install pytest") from None

    class Plugin:
        """Runs asynchronous tests; gives them `args`."""

        @pytest.fixture
        def args(self) -> Args:
            return Args()

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
            test = pyfuncitem.obj
            if not inspect.iscoroutinefunction(test):
                return None
            if session.sandbox:
                pytest.skip("an `async def` test runs outside of the sandbox")
            names = pyfuncitem._fixtureinfo.argnames
            given = {name: pyfuncitem.funcargs[name] for name in names}
            run_function(pyfuncitem.path, pyfuncitem.name, lambda: test(**given))
            return True

    session.choose(config if not fake else replace(config, replicas=1), fake=fake, sandbox=sandbox, debug=debug)
    options = ["--pdb", "--capture=no"] if debug else []
    try:
        return int(pytest.main([*arguments, *options], plugins=[Plugin()]))
    finally:
        session.close()
