"""A server without a network, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..client.programs.packages import read_file
from ..client.running import Content
from ..errors import Conflict
from ..inferlets.events import Ended, Event

if TYPE_CHECKING:
    from ..server_api import ServerApi

T = TypeVar("T")


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

    def send(self, inferlet: str, text: str, blobs: Mapping[str, Content] | None = None) -> None:
        """Sends a message to an inferlet, with blobs by name; one that has ended gets none."""
        uploaded = self.call(self.upload(blobs)) if blobs else {}

        def send() -> None:
            with contextlib.suppress(Conflict):
                self._api.send(inferlet, text, uploaded)

        self._loop.call_soon_threadsafe(send)
