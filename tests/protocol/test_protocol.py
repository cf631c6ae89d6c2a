"""The codec: what goes in comes out, and what is no message is refused."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pie_inference.protocol import (
    CopyKvpage,
    Failure,
    GetNextDistResult,
    Hello,
    ModelDescription,
    ProtocolError,
    Ready,
    RunWave,
    SampleResult,
    Shutdown,
    SwapIn,
    SwapOut,
    WaveDone,
    WorkerFailed,
    decode_from_worker,
    decode_to_worker,
    encode,
)
from pie_inference.protocol.messages import Message
from pie_inference.testing.worker_batches import Driver, Extend, Keys, ints, sample_batch

DESCRIPTION = ModelDescription(
    *("name", "LlamaForCausalLM", ("Forward",), "float32", "cpu"),
    *range(12),
    (1, 2),
    b"{}",
    {"chat_template": "x", "deep": {"list": [1, None, True, {"a": "b"}]}},
    7,
    8,
)


def equal(a: object, b: object) -> bool:
    """Structural equality, with dtype and shape of arrays."""
    if isinstance(a, Message) and isinstance(b, Message):
        names = a.__struct_fields__
        return type(a) is type(b) and all(equal(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def a_wave(mask: np.ndarray | None = None) -> RunWave:
    driver = Driver(lambda wave: WaveDone(0, (), 0.0), "model")
    embed, forward = driver.forward_batch([Extend(Keys(), [1, 2, 3], mask)])
    swaps = SwapOut(ints([1]), ints([2])), SwapIn(ints([3]), ints([4]))
    return RunWave(3, "model", (*swaps, CopyKvpage(ints([]), ints([])), embed, forward, sample_batch(ints([4, 5]))))


@pytest.mark.parametrize("message", [Hello(1), Shutdown(), a_wave(), a_wave(np.ones((3, 3), bool))], ids=repr)
def test_round_trip_to_worker(message: Message) -> None:
    assert equal(decode_to_worker(encode(message)), message)


@pytest.mark.parametrize(
    "message",
    [
        Ready(1, 2, (DESCRIPTION,)),
        WorkerFailed("no"),
        WaveDone(1, (None, SampleResult(ints([1])), Failure("why")), 0.5),
        WaveDone(
            2, (GetNextDistResult(ints([0, 1]), ints([7]), np.ones(1, np.float32), np.zeros(1, np.float32)),), 0.5
        ),
    ],
    ids=repr,
)
def test_round_trip_from_worker(message: Message) -> None:
    assert equal(decode_from_worker(encode(message)), message)


@given(
    st.lists(arrays.arrays(st.sampled_from([np.int32, np.int64, np.float32, np.uint8, np.bool_]), st.integers(0, 9)))
)
def test_arrays_survive_at_every_offset(values: list[np.ndarray]) -> None:
    message = RunWave(1, "m", tuple(CopyKvpage(value, value[::-1]) for value in values))
    assert equal(decode_to_worker(encode(message)), message)


def test_decoded_arrays_are_aligned_views() -> None:
    wave = decode_to_worker(encode(RunWave(1, "m", (CopyKvpage(ints([1]), np.arange(3)),))))
    assert isinstance(wave, RunWave)
    [batch] = wave.batches
    assert isinstance(batch, CopyKvpage)
    assert batch.target.flags.aligned
    assert not batch.target.flags.writeable


@dataclass
class Bad:
    """An array as a hostile peer would describe it."""

    description: object

    def frames(self) -> list[bytes]:
        batch = {"type": "CopyKvpage", "source": self.description, "target": ["<i4", [0], 0]}
        return [msgspec.msgpack.encode({"type": "RunWave", "wave": 1, "model": "m", "batches": [batch]}), bytes(8)]


@pytest.mark.parametrize(
    "description",
    [
        ["|O", [1], 0],
        ["<i4", [3], 0],
        ["<i4", [-1], 0],
        ["<i4", [1], -4],
        ["<i4", [1], 99],
        ["<i4", [2**62, 4], 0],
        ["<i4", ["x"], 0],
        ["<i4", [1]],
        ["<c8", [1], 0],
        7,
        None,
    ],
    ids=str,
)
def test_malformed_arrays_are_refused(description: object) -> None:
    with pytest.raises(ProtocolError):
        decode_to_worker(Bad(description).frames())


@pytest.mark.parametrize("frames", [[], [b""], [b"", b""], [b"\x93\x01", b""], encode(Shutdown())[:1], [b"x"] * 3])
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode_to_worker(frames)


def test_a_message_for_the_other_direction_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_from_worker(encode(Hello(1)))


def test_arrays_that_no_peer_would_accept_are_not_sent() -> None:
    with pytest.raises(NotImplementedError, match="cannot be sent"):
        encode(CopyKvpage(np.array(["text"]), ints([1])))
