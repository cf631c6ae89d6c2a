"""Talking to a session as a test does: frame by frame, or as slowly as it likes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

from pie_control.inferlets.mailbox import IN_FLIGHT_BYTES
from pie_control.registry.outbox import TOLD_BYTES, Outbox
from tests.helpers.guard import HANG_SECONDS

SHORT = 0.1
"""Seconds in which a client that does not read its session to the end closes it; 10 without."""


def open_session(url: str, **options: Any) -> connect:
    return connect("ws" + url.removeprefix("http") + "/v1/session", proxy=None, compression=None, **options)


async def frame_of(socket: ClientConnection) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(await asyncio.wait_for(socket.recv(), HANG_SECONDS))
    return messages


async def exchange(socket: ClientConnection, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Sends requests in one frame and returns the messages of the next one."""
    await socket.send(json.dumps(list(requests)))
    return await frame_of(socket)


async def until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    """Messages up to and with the first of `kind`."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != kind:
        found += await frame_of(socket)
    return found


async def until_it_waits(outbox: Outbox) -> None:
    """Returns when an inferlet sends no more, because its client does not read."""
    before = -1
    while outbox.kept_bytes <= IN_FLIGHT_BYTES - TOLD_BYTES or outbox.kept_bytes != before:
        before = outbox.kept_bytes
        await asyncio.sleep(0.1)


class RawSession:
    """A session over a plain socket with a small receive buffer, which reads only what it is told to. Blocks: for
    threads."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(HANG_SECONDS)
        self._socket.connect((address.hostname, address.port))
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /v1/session HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while not self._read(1).endswith(b"\r") or self._read(3) != b"\n\r\n":
            pass

    def __enter__(self) -> RawSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request of less than 126 bytes."""
        data = json.dumps(request).encode()
        self._socket.sendall(struct.pack("!BB4x", 0x81, 0x80 | len(data)) + data)  # the mask is zero

    def send_part(self, final: bool) -> None:
        """Sends the beginning of a frame, or a whole frame that is the beginning of a message."""
        self._socket.sendall(struct.pack("!BB4x", 0x81 if final else 0x01, 0x80 | 10) + (b"[" if final else b"[" * 10))

    def close_code(self) -> int:
        """The code of the frame that closes the session, which comes next."""
        kind, size = self._read(2)
        assert kind == 0x88
        return int.from_bytes(self._read(size)[:2], "big")

    def _read(self, size: int) -> bytes:
        """Reads byte by byte."""
        data = bytearray()
        while len(data) < size:
            data += self._socket.recv(1)
        return bytes(data)

    def frame(self) -> list[dict[str, Any]]:
        """The messages of the next frame, read byte by byte."""
        _, size = self._read(2)
        if size >= 126:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        messages: list[dict[str, Any]] = json.loads(self._read(size))
        return messages
