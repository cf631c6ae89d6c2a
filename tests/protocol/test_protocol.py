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
    BATCHES,
    CopyKvpage,
    Failure,
    GetNextDistResult,
    Hello,
    Message,
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
from pie_inference.protocol.codec import CODE_BITS, CODES
from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch

DESCRIPTION = ModelDescription(
    name="name",
    architecture="LlamaForCausalLM",
    calls=("forward",),
    dtype="float32",
    device="cpu",
    vocab_size=1,
    hidden_size=2,
    max_context=3,
    page_size=4,
    num_pages=5,
    num_host_pages=6,
    num_embeds=7,
    num_token_slots=8,
    max_batch_tokens=9,
    max_batch_rows=10,
    max_dist=11,
    max_swap_pages=12,
    stop_tokens=(1, 2),
    tokenizer=b"{}",
    tokenizer_config={"chat_template": "x", "deep": {"list": [1, None, True, {"a": "b"}]}},
    page_bytes=13,
    weight_bytes=14,
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
    moves = SwapOut(ints([1]), ints([2])), SwapIn(ints([3]), ints([4])), CopyKvpage(ints([]), ints([]), ints([0]))
    return RunWave(3, "model", (*moves, embed, forward, sample_batch(ints([4, 5]))))


@pytest.mark.parametrize("message", [Hello(1), Shutdown(), a_wave(), a_wave(np.ones((3, 3), bool))], ids=repr)
def test_round_trip_to_worker(message: Message) -> None:
    assert equal(decode_to_worker(encode(message)), message)


@pytest.mark.parametrize(
    "message",
    [
        Ready(1, 2, (DESCRIPTION,)),
        WorkerFailed("no"),
        WaveDone(1, (None, SampleResult(ints([1]))), 0.5, (Failure(0, 2, "why"), Failure(1, 0, "why"))),
        WaveDone(
            2, (GetNextDistResult(ints([0, 1]), ints([7]), np.ones(1, np.float32), np.zeros(1, np.float32)),), 0.5
        ),
    ],
    ids=repr,
)
def test_round_trip_from_worker(message: Message) -> None:
    assert equal(decode_from_worker(encode(message)), message)


@pytest.mark.parametrize("call", BATCHES)
def test_batches_and_their_results_are_decoded_by_name(call: str) -> None:
    kind = BATCHES[call]
    none = {name: ints([0]) if name.endswith("indptr") else ints([]) for name in kind.__struct_fields__}
    batch = kind(**none)
    assert equal(decode_to_worker(encode(RunWave(1, "m", (batch,)))), RunWave(1, "m", (batch,)))
    done = WaveDone(1, (batch.zeros(),), 0.5)
    assert equal(decode_from_worker(encode(done)), done)


@given(
    st.lists(arrays.arrays(st.sampled_from([np.int32, np.int64, np.float32, np.uint8, np.bool_]), st.integers(0, 9)))
)
def test_arrays_survive_at_every_offset(values: list[np.ndarray]) -> None:
    message = RunWave(1, "m", tuple(CopyKvpage(value, value[::-1], value) for value in values))
    assert equal(decode_to_worker(encode(message)), message)


def test_decoded_arrays_are_aligned_views() -> None:
    wave = decode_to_worker(encode(RunWave(1, "m", (CopyKvpage(ints([1]), np.arange(3), ints([0, 1])),))))
    assert isinstance(wave, RunWave)
    [batch] = wave.batches
    assert isinstance(batch, CopyKvpage)
    assert batch.target.flags.aligned
    assert not batch.target.flags.writeable


def encode_length(length: int, code: int = CODES[np.dtype("<i4")]) -> int:
    """An array of one dimension, as headers name it."""
    return length << CODE_BITS | code


@dataclass
class Bad:
    """An array as a hostile peer would describe it."""

    description: object

    def frames(self) -> list[bytes]:
        none = encode_length(0)
        batch = {"type": "CopyKvpage", "source": self.description, "target": none, "indptr": none}
        return [msgspec.msgpack.encode({"type": "RunWave", "wave": 1, "model": "m", "batches": [batch]}), bytes(8)]


@pytest.mark.parametrize(
    "description",
    [
        encode_length(1, code=6),
        encode_length(3),
        encode_length(-1),
        encode_length(2**57),
        encode_length(2**60),
        [2],
        [2, -1],
        [2, 2, -1],
        [2, -1, -1],
        [2, 3],
        [6, 1],
        [6, 0],
        [-7, 1],
        [2, 2**62, 4],
        [2, "x"],
        ["x", 1],
        [],
        True,
        1.0,
        "<i4",
        None,
        pytest.param(msgspec.Raw(b"\x91" * 2000), id="deep"),
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
        encode(CopyKvpage(np.array(["text"]), ints([1]), ints([0, 1])))
