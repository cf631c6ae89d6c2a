"""Frames over a socket: however the bytes are cut, the frames are those that were sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.processes.stream import FrameStream
from pie_inference.protocol.frames import LENGTH, MOST_UNTRUSTED
from tests.helpers.guard import HANG_SECONDS


class Peer:
    """A stream, and the bare other end of its socket."""

    def __init__(self, *, answers: bool = False, on_frame: Callable[[bytes], None] | None = None) -> None:
        ours, self.socket = socket.socketpair()
        self.socket.setblocking(False)
        self.frames: list[bytes] = []
        self.ends: list[str | None] = []
        self.on_frame = on_frame or (lambda frame: None)
        self.stream = FrameStream(ours, self._take, self.ends.append, answers=answers, most_bytes=MOST_UNTRUSTED)

    def _take(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.on_frame(self.frames[-1])

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not done():
                await asyncio.sleep(0.001)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()


def framed(*frames: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1))
@settings(max_examples=60, deadline=None)
def test_frames_may_be_cut_anywhere(frames: list[bytes], cuts: list[int]) -> None:
    async def check() -> None:
        with Peer() as peer:
            data, turn = framed(*frames), 0
            while data:
                size = cuts[turn % len(cuts)]
                peer.socket.send(data[:size])
                peer.stream.read()
                data, turn = data[size:], turn + 1
            assert peer.frames == frames

    asyncio.run(check())


def test_a_peer_that_does_not_read_gets_everything_later() -> None:
    frames = [bytes([number]) * 100_000 for number in range(20)]

    async def check() -> None:
        with Peer() as peer:
            for frame in frames:
                peer.stream.send(frame)
            assert 0 < peer.stream.unsent < len(framed(*frames))
            received = b""
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(HANG_SECONDS):
                while len(received) < len(framed(*frames)):
                    received += await loop.sock_recv(peer.socket, 1 << 16)
            assert received == framed(*frames)
            assert peer.stream.unsent == 0

    asyncio.run(check())


def test_a_frame_that_fails_costs_no_other() -> None:
    def fail(frame: bytes) -> None:
        if frame == b"two":
            raise RuntimeError("at two")

    async def check() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        with Peer(on_frame=fail) as peer:
            peer.socket.send(framed(b"one", b"two", b"three") + b"\x04")
            await peer.until(lambda: len(peer.frames) == 3)
            peer.socket.send(framed(b"four")[1:])
            await peer.until(lambda: len(peer.frames) == 4)
            assert peer.frames == [b"one", b"two", b"three", b"four"]
        assert [str(failure["exception"]) for failure in failures] == ["at two"]

    asyncio.run(check())


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_what_announces_too_much_is_no_frame(cut: int) -> None:
    async def check() -> None:
        with Peer() as peer:
            data = LENGTH.pack(MOST_UNTRUSTED + 1)
            peer.socket.send(data[:cut])
            peer.stream.read()
            with suppress(BrokenPipeError):  # it may be known already
                peer.socket.send(data[cut:] + b"more")
            peer.stream.read()
            assert peer.ends == [f"a frame of {MOST_UNTRUSTED + 1} bytes, more than {MOST_UNTRUSTED}"]
            assert peer.frames == []

    asyncio.run(check())


def test_the_end_of_the_peer_is_told_once_and_after_what_it_said() -> None:
    async def check() -> None:
        with Peer() as peer:
            peer.socket.send(framed(b"last"))
            peer.socket.close()
            peer.stream.read_all()
            assert peer.frames == [b"last"]
            assert peer.ends == [None]
            peer.stream.send(b"to nobody")
            peer.stream.read_all()
            peer.stream.close()
            assert peer.ends == [None]

    asyncio.run(check())


def test_a_stream_that_closes_while_it_takes_frames_takes_no_more() -> None:
    async def check() -> None:
        with Peer() as peer:
            peer.on_frame = lambda _: peer.stream.close()
            peer.socket.send(framed(b"one", b"two"))
            peer.stream.read()
            assert peer.frames == [b"one"]
            assert peer.ends == []

    asyncio.run(check())


def test_signs_of_life() -> None:
    async def check() -> None:
        with Peer(answers=True) as peer:
            peer.socket.send(framed(b""))
            peer.stream.read()
            assert peer.socket.recv(10) == framed(b"")
        with Peer() as peer:
            peer.stream.ask()
            peer.stream.ask()
            assert peer.stream.unanswered == 2
            peer.socket.send(framed(b""))
            peer.stream.read()
            assert peer.stream.unanswered == 0
            assert peer.frames == []

    asyncio.run(check())
