"""Adapters that are read beside the waves: a thread reads and checks files, and brings the matrices to the device; then
the worker's loop puts them in."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import AdapterError
from ..protocol import AdapterLoaded, LoadAdapter
from .adapters import Adapters, Prepared


class AdapterReader:
    """Reads one adapter at a time."""

    def __init__(self, adapters: Adapters, device: torch.device) -> None:
        self._adapters = adapters
        self._stream: Any = None  # one: it keeps what it freed
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter")  # starts with the first one

    def begin(self, message: LoadAdapter) -> AdapterLoad:
        """Begins to read an adapter; nothing changes before `AdapterLoad.install`."""
        room = self._adapters.room
        return AdapterLoad(self._adapters, message, self._thread.submit(self._prepare, Path(message.folder), room))

    def _prepare(self, folder: Path, room: int) -> Prepared:
        with torch.inference_mode(), _running_on(self._stream):
            return self._adapters.prepare(folder, room)


class AdapterLoad:
    """An adapter that is read. Implements `execution.interface.Load`."""

    def __init__(self, adapters: Adapters, message: LoadAdapter, prepared: Future[Prepared]) -> None:
        self.number = message.number
        self._adapters = adapters
        self._prepared = prepared

    @property
    def is_ready(self) -> bool:
        return self._prepared.done()

    def install(self) -> AdapterLoaded:
        try:
            return AdapterLoaded(self.number, self._adapters.install(self.number, self._prepared.result()))
        except AdapterError as error:
            return AdapterLoaded(self.number, error=str(error))


@contextmanager
def _running_on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Copies to a GPU run in the stream, beside the waves, and are done at the end. None: there is no GPU."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
