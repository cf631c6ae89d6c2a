"""A worker that was started by hand, perhaps on another machine, and listens for servers (`pie worker --listen`)."""

from __future__ import annotations

import asyncio
import logging
import secrets

from pie_inference.protocol import PROTOCOL_VERSION, ModelDescription, Ready

from ..processes.status_line import StatusLine
from .connection import Connection, OnFrames, OnLost
from .interface import differences
from .zeromq import ZeroMQConnection

WAIT_SECONDS = 300.0
REACH_SECONDS = 3.0
"""A worker that has served and was lost must answer within this time. If it does not, it is tried again later."""
NOTICE_SECONDS = 1.0
"""A server that waits for longer says so."""

log = logging.getLogger("pie.worker")


class RemoteWorker:
    """A `Connector` to a worker that listens at `endpoint` (tcp://HOST:PORT). `secret`: the one that the worker has;
    None: neither has one. A server that starts waits `wait_seconds` for it, from its last word on."""

    def __init__(self, endpoint: str, secret: str | None, wait_seconds: float = WAIT_SECONDS) -> None:
        self.server = secrets.token_hex(8)
        self._endpoint = endpoint
        self._secret = secret
        self._wait_seconds = wait_seconds
        self._model: ModelDescription | None = None  # that it served first
        self._since = 0.0  # by the clock of the loop
        self._reached = False
        self._notice: asyncio.TimerHandle | None = None
        self._status = StatusLine(log)

    def open(self, on_frames: OnFrames, on_lost: OnLost) -> Connection:
        loop = asyncio.get_running_loop()
        self._since, self._reached = loop.time(), False
        if self._model is None:
            self._notice = loop.call_later(NOTICE_SECONDS, self._tell_wait)
        return ZeroMQConnection(self._endpoint, self._secret, on_frames, self._on_reached, on_lost)

    def _on_reached(self) -> None:
        self._reached = True
        log.info("the worker at %s is there", self._endpoint)

    def _tell_wait(self) -> None:
        why = "its model is not loaded yet" if self._reached else "nobody answers there"
        log.warning(
            "waits for the worker at %s, for %g s at most (--worker-wait): %s", self._endpoint, self._wait_seconds, why
        )

    def is_told(self, progress: str) -> None:
        """It has as much time again."""
        self._since = asyncio.get_running_loop().time()
        self._forget_notice()
        self._status.show(f"the worker at {self._endpoint}: {progress}")

    @property
    def patience(self) -> float:
        must_reach = self._model is not None and not self._reached
        bound = min(REACH_SECONDS, self._wait_seconds) if must_reach else self._wait_seconds
        return self._since + bound - asyncio.get_running_loop().time()

    def gives_up(self) -> str:
        if self._reached:
            return f"the worker at {self._endpoint} was not ready within {self._wait_seconds:g} s (--worker-wait)"
        return f"no worker answers at {self._endpoint}: start one there with `pie worker --listen`"

    def why_not(self, ready: Ready) -> str | None:
        self._forget_notice()
        self._status.clear()
        if ready.protocol != PROTOCOL_VERSION or len(ready.models) != 1:
            return f"the worker at {self._endpoint} runs another version of Pie: install the same one on both sides"
        (model,) = ready.models
        if model.lacks_pages:
            return f"the worker at {self._endpoint} cannot be used: {model.lacks_pages}"
        known, self._model = self._model, self._model or model
        if known is None:
            return None
        if known.name != model.name:
            return f"the worker at {self._endpoint} serves model {model.name} now, and {known.name} is wanted"
        if different := differences(known, model):
            return f"the worker at {self._endpoint} serves another model {model.name} than before: {different} differ"
        return None

    async def leave(self, seconds: float) -> None:
        self._forget_notice()
        self._status.clear()

    def _forget_notice(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
