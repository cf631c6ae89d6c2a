"""Adapters that are read beside the waves: a thread reads and checks files, and brings the matrices to the device; then
the worker's loop puts them in.

Whatever is in a folder, there is an answer. A thread that does not end, as with files on a server that is gone, is left
to itself, and neither later loads nor the end of the worker wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import AdapterError
from ..protocol import AdapterLoaded, LoadAdapter
from .adapters import Adapters, Prepared
from .folder import AdapterFolder

SECONDS = 300.0
"""For the files of one adapter: ten times what 1 GiB takes from a slow disk."""


class AdapterReader:
    """Reads adapters. The control process loads one at a time."""

    def __init__(self, adapters: Adapters, device: torch.device) -> None:
        self._adapters = adapters
        self._stream: Any = None  # one: it keeps what it freed
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, message: LoadAdapter) -> AdapterLoad:
        """Begins to read an adapter; nothing changes before `AdapterLoad.install`."""
        inside = Path(message.inside) if message.inside else None
        folder, prepared = AdapterFolder(Path(message.folder), inside), Future[Prepared]()
        arguments = folder, self._adapters.room, prepared
        threading.Thread(target=self._prepare, args=arguments, name="adapter", daemon=True).start()
        return AdapterLoad(self._adapters, message, prepared)

    def _prepare(self, folder: AdapterFolder, room: int, prepared: Future[Prepared]) -> None:
        try:
            with torch.inference_mode(), _running_on(self._stream):
                prepared.set_result(self._adapters.prepare(folder, room))
        except BaseException as error:
            prepared.set_exception(error)


class AdapterLoad:
    """An adapter that is read. Implements `execution.interface.Load`."""

    def __init__(self, adapters: Adapters, message: LoadAdapter, prepared: Future[Prepared]) -> None:
        self.number = message.number
        self._adapters = adapters
        self._prepared = prepared
        self._deadline = time.monotonic() + SECONDS

    @property
    def is_ready(self) -> bool:
        return self._prepared.done() or time.monotonic() >= self._deadline

    def install(self) -> AdapterLoaded:
        left = max(0.0, self._deadline - time.monotonic())
        try:
            return AdapterLoaded(self.number, self._adapters.install(self.number, self._prepared.result(left)))
        except AdapterError as error:
            return AdapterLoaded(self.number, error=str(error))
        except TimeoutError:
            return AdapterLoaded(self.number, error=f"its files took more than {SECONDS:g} s to read: try again later")


@contextmanager
def _running_on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Copies to a GPU run in the stream, beside the waves, and are done at the end. None: there is no GPU."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
