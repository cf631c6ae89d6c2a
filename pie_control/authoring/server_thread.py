"""A server without a network, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..client.programs.packages import read_file
from ..client.running import Content
from ..errors import Conflict, Overloaded, PieError
from ..inferlets.events import Ended, Event

if TYPE_CHECKING:
    from ..server_api import ServerApi

T = TypeVar("T")

FULL_SECONDS = 0.05
"""A message is sent again after this time, as long as the inferlet does not keep up."""


@dataclass
class Heard:
    """A listener of an inferlet, on the server's thread; `tell` hears each event there."""

    tell: Callable[[Event], None]
    end: Ended | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event) -> None:
        self.tell(event)
        if isinstance(event, Ended):
            self.end = event
            self._ended.set()

    def wait(self) -> Ended:
        """The end of the inferlet."""
        self._ended.wait()
        assert self.end is not None
        return self.end


class ServerThread:
    """Starts, calls and stops a server on a thread."""

    _api: ServerApi

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pie-server", daemon=True)
        self._sending = asyncio.Lock()
        self._under_way: set[Future[None]] = set()  # messages

    async def _begin(self) -> None:
        """Makes `_api`, and starts it."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the server and its workers. Raises PieError."""
        self._thread.start()
        try:
            self.call(self._begin())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Stops them."""
        for message in tuple(self._under_way):
            message.cancel()
        try:
            self.call(self._api.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns, on the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def upload(self, blobs: Mapping[str, Content]) -> dict[str, str]:
        """Keeps files and bytes; gives their hashes. Raises BadRequest, StorageFull."""
        contents = {name: blob if isinstance(blob, bytes) else read_file(Path(blob)) for name, blob in blobs.items()}
        return {name: await self._api.upload_blob(content) for name, content in contents.items()}

    def send(self, inferlet: str, text: str, blobs: Mapping[str, Content] | None = None) -> Future[None]:
        """Sends a message to an inferlet, with blobs by name, after those before it, and when there is room; the future
        tells of that. An inferlet that has ended gets none; one whose message cannot be sent is ended."""
        uploaded = self.call(self.upload(blobs)) if blobs else {}
        sent = asyncio.run_coroutine_threadsafe(self._send(inferlet, text, uploaded), self._loop)
        self._under_way.add(sent)
        sent.add_done_callback(self._under_way.discard)
        return sent

    async def _send(self, inferlet: str, text: str, blobs: Mapping[str, str]) -> None:
        async with self._sending:  # those that wait for it get it in their order
            while True:
                try:
                    return self._api.send(inferlet, text, blobs)
                except Overloaded:
                    await asyncio.sleep(FULL_SECONDS)
                except Conflict:
                    return None
                except PieError as error:
                    return self._api.terminate(inferlet, str(error))
