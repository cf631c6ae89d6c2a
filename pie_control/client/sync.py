"""The client without `async`: the same calls, run by an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from pie_control.inferlets.events import Event, LogLine

from .client import DEFAULT_SERVER, Client, Program
from .running import Content, Running

T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pie-client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop; Ctrl-C while waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncRunning:
    """`Running` without `async`."""

    def __init__(self, running: Running, thread: _LoopThread) -> None:
        self.id = running.id
        self._running = running
        self._call = thread.call

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


class SyncClient:
    """`Client` without `async`, used as `with SyncClient(url) as client`."""

    def __init__(self, server: str = DEFAULT_SERVER, token: str | None = None) -> None:
        """`token`: see `Client`."""
        self._client = Client(server, token)
        self._thread: _LoopThread | None = None

    def __enter__(self) -> Self:
        self._thread = _LoopThread()
        try:
            self._call(self._client.connect())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(self._client.close())
            thread.stop()

    def upload(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> str:
        """Uploads a file, or the bytes of a program, unless the server has it. Returns its content hash, for `launch`.

        `name` defaults to that of the folder, or of the file without its suffix; it stands for the newest upload. ""
        gives none. Raises BadProgram, StorageFull, BadRequest for a name that looks like a hash.
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
        **kwargs: Any,
    ) -> SyncRunning:
        """Starts an inferlet of a program that the server has, of a file or folder, or of a function, with these
        parameters of its `main`; `Client.launch` says more.

        It ends with this client unless `detached`. With `logs`, `SyncRunning.events` includes its log lines. `blobs`:
        files (paths) or bytes, such as images, by the names under which the inferlet opens them.
        """
        launch = self._client.launch(
            program, *args, environment=environment, blobs=blobs, detached=detached, logs=logs, **kwargs
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
        **kwargs: Any,
    ) -> Any:
        """Launches what `launch` takes, such as a function, and returns its result. Raises as `launch`, and
        InferletEnded with the traceback if it fails."""
        return self._call(self._client.run(program, *args, environment=environment, blobs=blobs, **kwargs))

    def programs(self) -> list[dict[str, Any]]:
        """All programs: program (content hash), name, names, file, kind, size, uploaded (seconds since the epoch)."""
        return self._call(self._client.programs())

    def inferlets(self) -> list[dict[str, Any]]:
        """Running and recently ended inferlets: id, program, program_name, status, created, ended, ..."""
        return self._call(self._client.inferlets())

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
        return SyncRunning(self._call(start), self._open_thread)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._open_thread
        except RuntimeError:
            coroutine.close()
            raise
        return thread.call(coroutine)

    @property
    def _open_thread(self) -> _LoopThread:
        if self._thread is None:
            raise RuntimeError("the client is not open: use it in `with`")
        return self._thread
