"""The client without `async`: the same calls, run by an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from pie_control.config import DEFAULT_SERVER
from pie_control.errors import PieError
from pie_control.inferlets.events import Event, LogLine

from .client import Client, Program
from .running import Content, Running

T = TypeVar("T")


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


class SyncRunning:
    """`Running` without `async`."""

    def __init__(self, running: Running, client: SyncClient, thread: _LoopThread) -> None:
        self._running = running
        self._client = client  # which must not be dropped before
        self._call = thread.call

    @property
    def id(self) -> str:
        """The inferlet's id; another one after it was lost and launched again."""
        return self._running.id

    def send(self, text: str, *, blobs: Mapping[str, Content] | None = None) -> None:
        """Sends a message, which the inferlet's `receive` returns; raises Conflict if the inferlet has ended,
        Overloaded if it does not keep up. `blobs`: files (paths) or bytes, such as images, that come with the message,
        by name."""
        self._call(self._running.send(text, blobs=blobs))

    def receive(self) -> str:
        """The next message of the inferlet; raises InferletEnded if it has ended and no message is left."""
        return self._call(self._running.receive())

    def __iter__(self) -> Iterator[str]:
        """The messages, until the inferlet ends."""
        messages = aiter(self._running)
        while (text := self._call(_next(messages))) is not None:
            yield text

    def events(self) -> Iterator[Event]:
        """Messages, log lines (if `launch` asked for them), and Ended as the last; raises ServerUnavailable if the
        connection breaks."""
        events = self._running.events()
        while (event := self._call(_next(events))) is not None:
            yield event

    def result(self) -> Any:
        """Waits for the end and returns the inferlet's result, or None; raises InferletEnded unless it finished."""
        return self._call(self._running.result())

    def logs(self) -> tuple[LogLine, ...]:
        """The lines of its stdout, stderr and `log` that the server keeps."""
        return self._call(self._running.logs())

    def terminate(self) -> None:
        """Ends the inferlet; nothing happens if it has ended."""
        self._call(self._running.terminate())


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
        self._client = Client(server, token)
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
                    thread.call(self._client.connect())
                except BaseException:
                    thread.stop()
                    raise
                self._at_end = weakref.finalize(self, thread.drop, self._client)
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
            thread.call(self._client.close())
            thread.stop()

    def upload(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> str:
        """Uploads a file, or the bytes of a program, unless the server has it. Returns its content hash, for `launch`.

        `name` defaults to that of the folder, or of the file without its suffix; it stands for the newest upload. ""
        gives none. Raises BadProgram, StorageFull, BadRequest for a name that looks like a hash or a file.
        """
        return self._call(self._client.upload(program, name))

    def store(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> dict[str, Any]:
        """Does what `upload` does. Returns the program as in `programs`; `replaced` is the hash of the one that had the
        name until now, if another had it."""
        return self._call(self._client.store(program, name))

    def remove_program(self, program: str) -> None:
        """Deletes a program, given by content hash, a unique prefix of the hash, or name; its inferlets go on. Raises
        UnknownName."""
        self._call(self._client.remove_program(program))

    def adapters(self) -> list[dict[str, Any]]:
        """LoRA adapters that inferlets can use: name, model, folder, bytes."""
        return self._call(self._client.adapters())

    def load_adapter(self, name: str, folder: str, model: str = "") -> dict[str, Any]:
        """Loads an adapter for a model, by default the first one. `folder`: on the server, inside its --adapter-dir.
        Raises BadRequest, Conflict if the name is taken, BadAdapter, which says what is wrong with its files."""
        return self._call(self._client.load_adapter(name, folder, model))

    def drop_adapter(self, name: str, model: str = "") -> None:
        """Forgets an adapter: calls that name it fail from now on. Raises UnknownName."""
        self._call(self._client.drop_adapter(name, model))

    def launch(
        self,
        program: Program,
        /,
        *args: Any,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, Content] | None = None,
        detached: bool = False,
        logs: bool = False,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> SyncRunning:
        """Starts an inferlet of a program that the server has, of a file or folder, or of a function, with these
        parameters of its `main`; `Client.launch` says more.

        It ends with this client unless `detached`. With `logs`, `SyncRunning.events` includes its log lines. `blobs`:
        files (paths) or bytes, such as images, by the names under which the inferlet opens them.
        """
        watched: dict[str, Any] = {"timeout": timeout, "retries": retries}
        launch = self._client.launch(
            program, *args, environment=environment, blobs=blobs, detached=detached, logs=logs, **watched, **kwargs
        )
        return self._running(launch)

    def attach(self, inferlet: str, logs: bool = False) -> SyncRunning:
        """A running inferlet, with the messages that nobody has read; raises UnknownName, Conflict."""
        return self._running(self._client.attach(inferlet, logs))

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
            return self._call(self._client.run(program, *args, **options, **kwargs))
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
        results = self._client.map(program, inputs, at_once=at_once, ordered=ordered, **options, **kwargs)
        try:
            while (found := self._call(_next_of(results))) is not None:
                yield found[0]
        finally:
            self._call(_close(results))

    def programs(self) -> list[dict[str, Any]]:
        """All programs: program (content hash), name, names, file, kind, size, uploaded (seconds since the epoch)."""
        return self._call(self._client.programs())

    def inferlets(self, *, of_all: bool = False) -> list[dict[str, Any]]:
        """Running and recently ended inferlets: id, program, program_name, status, created, ended, ... `of_all`: of all
        tenants; raises Forbidden unless this one may see them."""
        return self._call(self._client.inferlets(of_all=of_all))

    def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        """One inferlet, with the same fields as in `inferlets`; raises UnknownName. `stack`: and its log tells soon
        where its tasks are, unless it computes, or waits for the model alone."""
        return self._call(self._client.inferlet(inferlet, stack))

    def logs(self, inferlet: str) -> tuple[LogLine, ...]:
        """The log of any inferlet; raises UnknownName."""
        return self._call(self._client.logs(inferlet))

    def terminate(self, inferlet: str) -> None:
        """Ends any inferlet; raises UnknownName."""
        self._call(self._client.terminate(inferlet))

    def models(self) -> list[dict[str, Any]]:
        """Models: name, traits, page_size, max_context, ..."""
        return self._call(self._client.models())

    def statistics(self) -> dict[str, Any]:
        """Statistics of the server, as nested objects of numbers."""
        return self._call(self._client.statistics())

    def _running(self, start: Coroutine[Any, Any, Running]) -> SyncRunning:
        return SyncRunning(self._call(start), self, self._open_thread)

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
