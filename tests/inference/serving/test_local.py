"""The wire between a control process and a worker that it has started, at the worker's end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_inference.protocol import (
    ProtocolError,
    RunWave,
    Sample,
    Shutdown,
    WaveDone,
    WorkerFailed,
    decode_from_worker,
    encode,
)
from pie_inference.protocol.frames import LENGTH, MOST_BYTES, MOST_UNTRUSTED, FrameReader, FrameTooLong, pack, unpack
from pie_inference.serving.local import LocalTransport
from testing.worker_batches import ints, sample_batch

LONG = b"x" * (3 << 20)
"""More than a socket holds."""


@contextmanager
def pair() -> Iterator[tuple[LocalTransport, socket.socket]]:
    theirs, ours = socket.socketpair()
    transport = LocalTransport(f"fd:{theirs.detach()}")
    with ours:
        yield transport, ours
    transport.close()


def wave(number: int, commands: int) -> RunWave:
    return RunWave(number, "m", (sample_batch(ints(list(range(commands)))),) if commands else ())


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(1, 90), min_size=1))
@settings(max_examples=60, deadline=None)
def test_messages_may_be_cut_anywhere_and_arrays_are_aligned(sizes: list[int], cuts: list[int]) -> None:
    sent = [encode(wave(number, size)) for number, size in enumerate(sizes)]
    data, turn = b"".join(part for frames in sent for part in pack(frames)), 0
    reader, read = FrameReader(), []
    while data:
        size = cuts[turn % len(cuts)]
        reader.feed(data[:size])
        data, turn = data[size:], turn + 1
        while (frame := reader.next()) is not None:
            header, arrays = unpack(frame)
            assert np.frombuffer(arrays, np.uint8).ctypes.data % 8 == 0
            read.append([bytes(header), bytes(arrays)])
    assert read == sent


def test_what_was_handed_out_stays_as_it_is() -> None:
    reader = FrameReader()
    reader.feed(LENGTH.pack(3) + b"one" + LENGTH.pack(3))
    one = reader.next()
    reader.feed(b"tw")
    reader.feed(b"o" + LENGTH.pack(1))
    two = reader.next()
    reader.feed(b"!")
    last = reader.next()
    assert [bytes(frame) for frame in (one, two, last) if frame is not None] == [b"one", b"two", b"!"]


@pytest.mark.parametrize("frame", [b"", b"\x01", LENGTH.pack(9) + b"12345678", LENGTH.pack(1) + b"1234"])
def test_a_frame_without_what_it_announces_is_no_message(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(memoryview(frame))


class Long(bytes):
    """As long as no frame can be."""

    def __len__(self) -> int:
        return MOST_BYTES


def test_messages_are_bounded() -> None:
    reader = FrameReader(MOST_UNTRUSTED)
    reader.feed(LENGTH.pack(MOST_UNTRUSTED + 1))
    with pytest.raises(FrameTooLong, match=f"a frame of {MOST_UNTRUSTED + 1} bytes"):
        reader.next()
    with pytest.raises(FrameTooLong, match="a message of"):
        pack([b"", Long()])


def test_a_wave_reaches_the_worker_however_much_it_is() -> None:
    with pair() as (transport, control):
        parts = pack([b"", bytes(MOST_UNTRUSTED)])
        control.sendall(parts[0])
        assert transport.receive_nowait() is None, "it waits for the rest"


def test_waves_come_in_order_and_the_end_of_control_ends_the_worker() -> None:
    with pair() as (transport, control):
        assert transport.receive_nowait() is None
        first, second, third = (b"".join(pack(encode(wave(number, number)))) for number in range(3))
        control.sendall(first + second + third[:30])
        for number in range(2):
            message = transport.receive_nowait()
            assert isinstance(message, RunWave)
            assert message.wave == number
        assert transport.receive_nowait() is None
        later = threading.Timer(0.02, lambda: control.sendall(third[30:]))
        later.start()
        message = transport.receive()
        later.join()
        assert isinstance(message, RunWave)
        assert isinstance(message.batches[0], Sample)
        assert message.batches[0].count() == 2
        control.close()
        assert isinstance(transport.receive_nowait(), Shutdown)
        assert isinstance(transport.receive(), Shutdown)
        transport.send(WaveDone(1, (), 0.0))  # to nobody


def test_an_answer_that_the_socket_does_not_hold_arrives_whole() -> None:
    with pair() as (transport, control):
        sender = threading.Thread(target=transport.send, args=(WorkerFailed(LONG.decode()),))
        sender.start()
        reader = FrameReader()
        while (frame := reader.next()) is None:
            reader.feed(control.recv(1 << 16))
        sender.join()
        message = decode_from_worker(unpack(frame))
        assert isinstance(message, WorkerFailed)
        assert message.message == LONG.decode()


def test_nonsense_is_told() -> None:
    with pair() as (transport, control):
        control.sendall(LENGTH.pack(12) + LENGTH.pack(4) + b"nonsense")
        with pytest.raises(ProtocolError, match="malformed message"):
            transport.receive()


@pytest.mark.parametrize("endpoint", ["fd:", "fd:x", "fd:999999"])
def test_a_socket_that_was_not_handed_over_is_told(endpoint: str) -> None:
    with pytest.raises(ProtocolError, match="no socket that was handed over"):
        LocalTransport(endpoint)
