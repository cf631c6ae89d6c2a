"""The client without `async`: the same calls, run by an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from pie_control.config import DEFAULT_SERVER
from pie_control.errors import PieError
from pie_control.inferlets.events import Event

from .client import Client, Program
from .running import Content, Running

T = TypeVar("T")
P = ParamSpec("P")


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pie-client", daemon=True)
        self._dropped: asyncio.Future[None] | None = None
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop; Ctrl-C while waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def drop(self, client: Client) -> None:
        """Closes the client and stops, without waiting: it may be called in this thread, by the garbage collector."""

        async def close() -> None:
            await client.close()
            self._loop.stop()

        def start() -> None:
            self._dropped = asyncio.ensure_future(close())

        self._loop.call_soon_threadsafe(start)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method of `SyncClient` or `SyncRunning` that waits for this one of `Client` or `Running`."""

    @functools.wraps(method)
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = self._call(method(self._asynchronous, *args, **kwargs))
        return found

    return wait


def _starting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Running]],
) -> Callable[Concatenate[Any, P], SyncRunning]:
    """The method of `SyncClient` that waits for this one of `Client`, and gives its inferlet without `async`."""

    @functools.wraps(method)
    def start(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> SyncRunning:
        running = self._call(method(self._asynchronous, *args, **kwargs))
        return SyncRunning(running, self, self._open_thread)

    return start


class SyncRunning:
    """`Running` without `async`."""

    def __init__(self, running: Running, client: SyncClient, thread: _LoopThread) -> None:
        self._asynchronous = running
        self._client = client  # which must not be dropped before
        self._call = thread.call

    @property
    def id(self) -> str:
        """The inferlet's id; another one after it was lost and launched again."""
        return self._asynchronous.id

    send = _blocking(Running.send)
    receive = _blocking(Running.receive)
    result = _blocking(Running.result)
    info = _blocking(Running.info)
    logs = _blocking(Running.logs)
    terminate = _blocking(Running.terminate)

    def __iter__(self) -> Iterator[str]:
        """The messages, until the inferlet ends."""
        messages = aiter(self._asynchronous)
        while (text := self._call(_next(messages))) is not None:
            yield text

    def events(self) -> Iterator[Event]:
        """Messages, log lines (if `launch` asked for them), and Ended as the last; raises ServerUnavailable if the
        connection breaks."""
        events = self._asynchronous.events()
        while (event := self._call(_next(events))) is not None:
            yield event


async def _next(iterator: Any) -> Any:
    return await anext(iterator, None)


async def _next_of(results: AsyncIterator[Any]) -> tuple[Any] | None:
    """The next result, which may be None, in a tuple."""
    async for result in results:
        return (result,)
    return None


async def _close(results: Any) -> None:
    await results.aclose()


class SyncClient:
    """`Client` without `async`, used as `with SyncClient(url) as client`, or without `with`, in a notebook. Then it
    connects when it is used first, and closes at the end of Python or when nothing holds it any more."""

    def __init__(self, server: str = DEFAULT_SERVER, token: str | None = None) -> None:
        """`token`: see `Client`."""
        self._asynchronous = Client(server, token)
        self._thread: _LoopThread | None = None
        self._at_end: weakref.finalize[Any, SyncClient] | None = None
        self._opening = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._closed = False
        self._open()
        return self

    def _open(self) -> _LoopThread:
        """The thread, with a connection: it is made once, however many threads ask first."""
        with self._opening:
            if self._thread is None:
                thread = _LoopThread()
                try:
                    thread.call(self._asynchronous.connect())
                except BaseException:
                    thread.stop()
                    raise
                self._at_end = weakref.finalize(self, thread.drop, self._asynchronous)
                self._thread = thread
            return self._thread

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects. Idempotent."""
        thread, self._thread, self._closed = self._thread, None, True
        if self._at_end is not None:
            self._at_end.detach()
        if thread is not None:
            thread.call(self._asynchronous.close())
            thread.stop()

    upload = _blocking(Client.upload)
    store = _blocking(Client.store)
    remove_program = _blocking(Client.remove_program)
    upload_blob = _blocking(Client.upload_blob)
    adapters = _blocking(Client.adapters)
    load_adapter = _blocking(Client.load_adapter)
    drop_adapter = _blocking(Client.drop_adapter)
    programs = _blocking(Client.programs)
    inferlets = _blocking(Client.inferlets)
    inferlet = _blocking(Client.inferlet)
    logs = _blocking(Client.logs)
    terminate = _blocking(Client.terminate)
    models = _blocking(Client.models)
    statistics = _blocking(Client.statistics)

    launch = _starting(Client.launch)
    attach = _starting(Client.attach)

    def run(
        self,
        program: Program,
        /,
        *args: Any,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, Content] | None = None,
        on_message: Callable[[str], Any] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Launches what `launch` takes, such as a function, and returns its result. `on_message` gets what it sends, as
        it comes, in this thread. Raises as `launch`, and InferletEnded with the traceback if it fails."""
        options: dict[str, Any] = {"environment": environment, "blobs": blobs, "timeout": timeout, "retries": retries}
        if on_message is None:
            return self._call(self._asynchronous.run(program, *args, **options, **kwargs))
        running = self.launch(program, *args, **options, **kwargs)
        try:
            for text in running:
                on_message(text)
            return running.result()
        except BaseException:
            with contextlib.suppress(PieError):  # it, or the connection, has ended
                running.terminate()
            raise

    def map(
        self,
        program: Program,
        inputs: Iterable[Any],
        /,
        *,
        at_once: int = 16,
        ordered: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """The results of one inferlet for each input, as `Client.map` gives them. Inputs are taken by another thread,
        while this one waits for a result."""
        options: dict[str, Any] = {"environment": environment, "timeout": timeout, "retries": retries}
        results = self._asynchronous.map(program, inputs, at_once=at_once, ordered=ordered, **options, **kwargs)
        try:
            while (found := self._call(_next_of(results))) is not None:
                yield found[0]
        finally:
            self._call(_close(results))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._open_thread
        except BaseException:
            coroutine.close()
            raise
        return thread.call(coroutine)

    @property
    def _open_thread(self) -> _LoopThread:
        if self._closed:
            raise RuntimeError("the client was closed: make another one")
        return self._thread or self._open()
