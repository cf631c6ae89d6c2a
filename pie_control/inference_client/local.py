"""The connection to a worker that this process has started, over a pair of sockets that nobody else has.

A wave is one system call there and one back. ZeroMQ, which remote workers need, has a thread of its own at each end:
four threads more have to wake up for a wave, which takes a small one 1.7 to 2.5 times as long (190-235 against 99-137
us there and back where all slept for 3 ms, 74-106 against 31-37 us where nobody did).
"""

from __future__ import annotations

import socket

from pie_inference.protocol import ProtocolError
from pie_inference.protocol.frames import pack, unpack

from ..children.stream import FrameStream
from .connection import OnDisconnected, OnFrames, Polling


class LocalConnection:
    """A `Connection` over this end of a pair of sockets."""

    def __init__(
        self, end: socket.socket, on_frames: OnFrames, on_disconnected: OnDisconnected, poll_us: int = 0
    ) -> None:
        self._on_frames = on_frames
        self._on_disconnected = on_disconnected
        self._stream = FrameStream(end, self._take, on_disconnected, answers=False)
        self._polling = Polling(poll_us / 1e6, self._stream.read) if poll_us else None

    def send(self, frames: list[bytes]) -> None:
        self._stream.send_parts(pack(frames))
        if self._polling:
            self._polling.begin()

    def _take(self, frame: memoryview) -> None:
        if self._polling:
            self._polling.stop()
        try:
            frames = unpack(frame)
        except ProtocolError as error:
            self._on_disconnected(str(error))
        else:
            self._on_frames(frames)

    def close(self) -> None:
        if self._polling:
            self._polling.stop()
        self._stream.close()
