"""Frames over a socket between two processes of this machine, driven by the asyncio loop.

Frames are those of `pie_inference.protocol.frames`. An empty frame asks for a sign of life, which is an empty frame:
whoever answers has a loop that turns. The peer has gone when the socket ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from pie_inference.protocol.frames import LENGTH, MOST_BYTES, READ_BYTES, FrameReader, FrameTooLong


class FrameStream:
    """One end. `on_frame` gets each frame that is not empty. `on_end` is called once when nothing more can come: with
    None if the peer has closed the socket or is gone, else with what is wrong with what it says. `on_pause` is called
    when all frames are taken that have come together. All belong to the thread of the loop in which the stream is made.
    `answers`: it answers empty frames; the other end asks. `most_bytes`: of a frame that comes."""

    def __init__(
        self,
        connection: socket.socket,
        on_frame: Callable[[memoryview], None],
        on_end: Callable[[str | None], None],
        *,
        answers: bool,
        on_pause: Callable[[], None] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        connection.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._on_frame = on_frame
        self._on_end = on_end
        self._answers = answers
        self._on_pause = on_pause
        self._reader = FrameReader(most_bytes)
        self._outgoing: deque[memoryview] = deque()  # what the socket did not take yet
        self.unsent = 0  # bytes of that
        self._ended = False
        self.unanswered = 0  # times that it has asked for a sign of life since something came
        self._loop.add_reader(connection.fileno(), self.read)

    # ---- sending ----

    def send(self, frame: bytes) -> None:
        """Sends now what the socket takes, and the rest as soon as it can. Nothing happens if the peer has gone."""
        self.send_parts([LENGTH.pack(len(frame)), frame])

    def send_parts(self, parts: list[bytes]) -> None:
        """Sends frames with their lengths, in parts."""
        if self._ended:
            return
        size = sum(map(len, parts))
        if self._outgoing:
            self._outgoing += map(memoryview, filter(None, parts))
            self.unsent += size
            return
        sent = self._try_send(parts)
        if sent < size:
            self.unsent = size - sent
            self._outgoing.append(memoryview(b"".join(parts))[sent:])
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def ask(self) -> None:
        """Asks the peer for a sign of life."""
        self.unanswered += 1
        self.send(b"")

    def _try_send(self, parts: list[bytes] | list[memoryview]) -> int:
        """Bytes that the socket has taken."""
        try:
            return self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return 0  # the peer has gone, which reading tells

    def _flush(self) -> None:
        while self._outgoing:
            part = self._outgoing[0]
            sent = self._try_send([part])
            self.unsent -= sent
            if sent < len(part):
                self._outgoing[0] = part[sent:]
                return
            self._outgoing.popleft()
        self._loop.remove_writer(self._socket.fileno())

    # ---- receiving ----

    def read(self) -> bool:
        """Takes what has come; whether there may be more."""
        if self._ended:
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._end(None)
            return False
        self.unanswered = 0
        self._reader.feed(data)
        self._take_frames()
        return not self._ended

    def read_all(self) -> None:
        """Takes all that a peer has said that has ended."""
        while self.read():
            pass

    def _take_frames(self) -> None:
        """Takes the frames that are whole; the rest waits until what is missing has come."""
        try:
            while not self._ended and (frame := self._reader.next()) is not None:
                self._take_frame(frame)
        except FrameTooLong as error:
            self._end(str(error))
        except BaseException:
            self._loop.call_soon(self._take_frames)  # what is whole of the rest would wait for more
            raise
        if self._on_pause is not None and not self._ended:
            self._on_pause()

    def _take_frame(self, frame: memoryview) -> None:
        if frame:
            self._on_frame(frame)
        elif self._answers:
            self.send(b"")

    # ---- the end ----

    def _end(self, wrong: str | None) -> None:
        if not self._ended:
            self.close()
            self._on_end(wrong)

    def close(self) -> None:
        """Closes the socket; the peer notices. Idempotent."""
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
