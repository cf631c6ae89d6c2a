"""The wire to a worker that this process has started, at this process's end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from pie_control.inference_client.local import LocalConnection
from pie_inference.protocol import WaveDone, decode_from_worker, encode
from pie_inference.protocol.frames import LENGTH, FrameReader, pack, unpack
from tests.helpers.guard import HANG_SECONDS


def test_a_worker_that_does_not_read_holds_nothing_up_and_gets_everything() -> None:
    sent = [[bytes([number]) * 9, bytes([number]) * 400_000] for number in range(8)]

    async def test() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            connection = LocalConnection(ours, lambda frames: None, lambda wrong: None)
            for frames in sent:
                connection.send(frames)
            reader, received = FrameReader(), list[list[bytes]]()
            async with asyncio.timeout(HANG_SECONDS):
                while len(received) < len(sent):
                    reader.feed(await asyncio.get_running_loop().sock_recv(theirs, 1 << 16))
                    while (frame := reader.next()) is not None:
                        received.append([bytes(part) for part in unpack(frame)])
            assert received == sent
            connection.close()
            connection.close()
            assert theirs.recv(1) == b""

    asyncio.run(test())


def test_answers_then_nonsense_then_the_end() -> None:
    answers: list[int] = []
    ends: list[str | None] = []

    def take(frames: Sequence[bytes | memoryview]) -> None:
        message = decode_from_worker(frames)
        assert isinstance(message, WaveDone)
        answers.append(message.wave)

    async def test() -> None:
        ours, theirs = socket.socketpair()
        LocalConnection(ours, take, ends.append)
        parts = [part for wave in range(3) for part in pack(encode(WaveDone(wave, (), 0.0)))]
        theirs.sendall(b"".join(parts) + LENGTH.pack(8) + LENGTH.pack(99) + b"____")
        theirs.close()
        async with asyncio.timeout(HANG_SECONDS):
            while len(ends) < 2:
                await asyncio.sleep(0.001)

    asyncio.run(test())
    assert answers == [0, 1, 2]
    assert ends == ["a header of 99 bytes in a frame of 8", None]
