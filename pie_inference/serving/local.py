"""The connection of a worker that the control process has started: one end of a pair of sockets."""

from __future__ import annotations

import socket

from ..protocol import FromWorker, ProtocolError, Shutdown, ToWorker, decode_to_worker, encode
from ..protocol.frames import DESCRIPTOR, READ_BYTES, FrameReader, pack, unpack


class LocalTransport:
    """A `Transport` over the socket that `endpoint` names. The end of the control process is a `Shutdown`. Raises
    ProtocolError if there is no such socket."""

    def __init__(self, endpoint: str) -> None:
        self._reader = FrameReader()
        try:
            self._socket = socket.socket(fileno=int(endpoint.removeprefix(DESCRIPTOR)))
            self._socket.set_inheritable(False)  # else a process that the worker starts would keep it open
            self._socket.setblocking(True)
        except (ValueError, OSError) as error:
            raise ProtocolError(f"{endpoint} is no socket that was handed over to this process: {error}") from None

    def receive(self) -> ToWorker:
        while (message := self._next()) is None:
            if not self._read(0):
                return Shutdown()
        return message

    def receive_nowait(self) -> ToWorker | None:
        message = self._next()
        if message is None:
            try:
                if not self._read(socket.MSG_DONTWAIT):
                    return Shutdown()
            except BlockingIOError:
                return None
            message = self._next()
        return message

    def _next(self) -> ToWorker | None:
        """The next message of what has come already."""
        frame = self._reader.next()
        return None if frame is None else decode_to_worker(unpack(frame))

    def _read(self, flags: int) -> bool:
        """Takes what has come; False if the control process has ended. Raises BlockingIOError."""
        try:
            data = self._socket.recv(READ_BYTES, flags)
        except ConnectionError:
            return False
        self._reader.feed(data)
        return bool(data)

    def send(self, message: FromWorker) -> None:
        parts = pack(encode(message))
        try:
            sent = self._socket.sendmsg(parts)
            if sent < sum(map(len, parts)):  # a signal came in between
                self._socket.sendall(b"".join(parts)[sent:])
        except ConnectionError:
            return  # which receiving tells

    def close(self) -> None:
        self._socket.close()
