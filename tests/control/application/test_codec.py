"""Whatever may cross to another process arrives as it was said."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from pie_control.application import codec
from pie_control.application.codec import (
    FrameError,
    decode_for_control,
    decode_for_host,
    encode_for_control,
    encode_for_host,
)
from pie_control.application.messages import Commands, FromHost, Ping, Post, Quiet, Results, SpaceEvent, ToHost
from pie_control.calls import COMMANDS
from pie_control.calls.forward.shift_kvpage import ShiftCommand
from pie_control.calls.input_text.embed_txt import EmbedCommand
from pie_control.calls.kind import Bind
from pie_control.calls.output_text.get_next_dist import Dists
from pie_control.calls.values import Completion
from pie_control.inferlets.mailbox import NO_BLOBS
from pie_control.resources.kinds import PAGES
from pie_control.scheduling import Event, Turn
from tests.helpers.random_calls import run_random_programs, write_adapters
from tests.helpers.random_values import VALUES, any_of, any_record, plain
from tests.helpers.scheduling import World

TO_HOST, FROM_HOST = get_args(ToHost), get_args(FromHost)
EVENTS: tuple[type[Any], ...] = get_args(SpaceEvent)


def to_host(*messages: ToHost) -> list[ToHost]:
    return decode_for_host(encode_for_host(messages))


def to_control(*messages: FromHost) -> list[FromHost]:
    return decode_for_control(encode_for_control(messages))


@pytest.mark.parametrize("kind", TO_HOST, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_every_message_reaches_a_host(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(any_record(kind))
    assert plain(to_host(message)) == plain([message])


@pytest.mark.parametrize("kind", FROM_HOST, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_every_message_reaches_control(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(any_record(kind))
    assert plain(to_control(message)) == plain([message])


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_every_command_and_note_reaches_control(kind: type[Any], data: st.DataObject) -> None:
    events = data.draw(st.lists(any_record(kind), min_size=1, max_size=3))
    (arrived,) = to_control(Commands("m", events))
    assert isinstance(arrived, Commands)
    assert plain(arrived.events) == plain(events)


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_values_of_every_call_reach_a_host(kind: type[Any], data: st.DataObject) -> None:
    values = data.draw(st.lists(any_record(kind), min_size=1, max_size=4))
    completions = [Completion(7, future, value) for future, value in enumerate(values)]
    (results,) = to_host(Results("m", completions))
    assert isinstance(results, Results)
    assert plain(results.completions) == plain(completions)
    assert {type(one.value) for one in results.completions} == {kind}


def test_a_message_without_blobs_crosses() -> None:
    assert to_host(Post(1, "hello", NO_BLOBS)) == [Post(1, "hello", {})]


@given(frame=st.lists(any_of(ToHost), max_size=6))
@settings(max_examples=60, deadline=None)
def test_messages_of_a_frame_keep_their_order(frame: list[ToHost]) -> None:
    assert plain(to_host(*frame)) == plain(frame)


def test_all_kinds_are_among_those_that_are_tried() -> None:
    assert {kind.__name__ for kind in COMMANDS} >= {"Bind", "CopyCommand", "SampleCommand", "VerifyCommand"}
    assert {kind.__name__ for kind in VALUES} >= {"Done", "Token", "Dists", "Logprobs", "Verified"}


def test_a_resource_is_the_same_object_on_the_other_side() -> None:
    (commands,) = to_control(Commands("m", [Bind(1, 2, 3, 0, None, (), PAGES, 0, 4)]))
    assert isinstance(commands, Commands)
    (bind,) = commands.events
    assert isinstance(bind, Bind)
    assert bind.resource is PAGES


def test_a_list_may_be_an_array() -> None:
    command = EmbedCommand(1, 2, 3, 0, None, (), array("I", [5, 6]), ((0, 2),))
    (commands,) = to_control(Commands("m", [command]))
    assert isinstance(commands, Commands)
    (arrived,) = commands.events
    assert isinstance(arrived, EmbedCommand)
    assert arrived.tokens == [5, 6]


def test_a_value_does_not_keep_those_that_came_with_it() -> None:
    dists = [Dists(np.arange(4, dtype=np.int32), np.ones(4, np.float32), np.zeros(1, np.float32)) for _ in range(3)]
    (results,) = to_host(Results("m", [Completion(1, future, dist) for future, dist in enumerate(dists)]))
    assert isinstance(results, Results)
    for completion in results.completions:
        assert isinstance(completion.value, Dists)
        assert completion.value.tokens.base is None


# ---- garbage ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    for decode in (decode_for_host, decode_for_control):
        try:
            assert isinstance(decode(data), list)
        except FrameError:
            continue


@given(frame=st.lists(any_of(FromHost), min_size=1, max_size=3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_frames_are_refused_or_hold_messages(frame: list[FromHost], data: st.DataObject) -> None:
    encoded = bytearray(encode_for_control(frame))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(FrameError):
        assert {type(message) for message in decode_for_control(encoded)} <= set(FROM_HOST)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"", "truncated"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x91" * 100_000, "recursion|array"),
        (msgspec.msgpack.encode([["Commands", "m", [["Bind", 1, 2, 3, 0, None, [], "disks", 0, 4]]]]), "disks"),
        (msgspec.msgpack.encode([["Commands", "m", [["FormatCommand", 1]]]]), "Invalid value 'FormatCommand'"),
        (msgspec.msgpack.encode([["Commands", "m", [["Bind", 1, "two"]]]]), "Expected"),
        (msgspec.msgpack.encode([["Post", 1, "hello"]]), "Invalid value 'Post'"),
        (msgspec.msgpack.encode({"a": 1}), "Expected `array`, got `object`"),
    ],
)
def test_the_error_says_what_is_wrong(frame: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        decode_for_control(frame)


@pytest.mark.parametrize(
    "answers",
    [
        ["Token", [1], [2, 3], [[4]]],
        ["Token", [1], [2], []],
        ["Token", [1], [2], [[4, 5]]],
        ["Nothing", [1], [2], [[4]]],
        ["error", [1], [2], [["SystemExit"], ["no"]]],
        ["Dists", [1], [2], [[[2], b"\0\0\0\0"], [[1], b"\0\0\0\0"], [0.5]]],
        ["Dists", [1], [2], [[[1], b"\0\0\0"], [[1], b"\0\0\0\0"], [0.5]]],
    ],
)
def test_columns_that_do_not_fit_are_refused(answers: list[Any]) -> None:
    frame = msgspec.msgpack.encode([["Results", "m", [answers], [], []]])
    with pytest.raises(FrameError):
        decode_for_host(frame)


def test_what_cannot_cross_is_not_sent() -> None:
    with pytest.raises(NotImplementedError, match="complex cannot cross"):
        encode_for_host([Post(1, 1j)])  # type: ignore[arg-type]


# ---- as calls use it -------------------------------------------------------------------------------------------------


def test_what_no_message_to_a_worker_can_hold_is_no_frame() -> None:
    floats: Any = np.zeros(1)
    for wrong in (
        EmbedCommand(1, 1, 1, 0, None, (), [1 << 31], ((0, 1),)),
        EmbedCommand(1, 1, 1, 0, None, (), [1], ((0, 1 << 31),)),
        ShiftCommand(1, 1, 1, 0, None, (), ((0, 1),), floats),
    ):
        with pytest.raises(FrameError):
            to_control(Commands("m", [wrong]))


class CrossingWorld(World):
    """Inferlets and scheduler in processes of their own, as far as they can tell."""

    def hand_on(self, event: Event) -> None:
        (commands,) = to_control(Commands("m", [event]))  # type: ignore[list-item]
        assert isinstance(commands, Commands)
        self.events.extend(commands.events)

    def on_its_way(self, turn: Turn) -> Turn:
        (results,) = to_host(Results("m", turn.completions, turn.progress, turn.endings, turn.runs))
        assert isinstance(results, Results)
        return turn._replace(
            completions=tuple(results.completions),
            progress=tuple(results.progress),
            endings=tuple(results.endings),
            runs=results.runs,
        )


def test_programs_cannot_tell_that_their_calls_cross(tmp_path: Path) -> None:
    made: Counter[str] = Counter()
    adapters = write_adapters(tmp_path)
    for seed in range(60):
        run_random_programs(seed, made, CrossingWorld, adapters)
    assert min(made[name] for name in ("decode", "cancelled", "forward_with_adapter", "imported", "verify")) > 1
    assert made["sample"] > 20
    assert made["copy_kvpage"] > 50


T = TypeVar("T", bound=np.generic)
ALIAS = TypeAliasType("ALIAS", "np.ndarray[Any, np.dtype[T]]", type_params=(T,))
"""What `NDArray` is as of numpy 2.5."""


@pytest.mark.parametrize("kind", [NDArray, ALIAS], ids=["own", "of numpy 2.5"])
def test_arrays_are_known_in_every_numpy(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "NDArray", kind)
    assert codec._scalar(kind[np.float32]) is np.float32
    assert codec._scalar(list[int]) is None


# ---- version ---------------------------------------------------------------------------------------------------------


def test_the_version_is_the_same_in_every_process() -> None:
    code = "from pie_control.application.codec import VERSION; print(VERSION)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == codec.VERSION


def test_frames_are_small() -> None:
    """So a turn costs little to send."""
    command = EmbedCommand(100_000, 2, 3000, 0, None, (), (1000,), ((100, 101),))
    assert len(encode_for_control([Commands("m", [command] * 100), Quiet(0)])) < 100 * 50
    assert len(encode_for_host([Ping(1)])) < 12
