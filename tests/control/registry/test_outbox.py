"""Events of an inferlet on their way to its client: order, bounds, listeners that come late or fail; and how the
inferlet hears of room."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.config import InferletLimits
from pie_control.errors import QuotaExceeded
from pie_control.inferlets import mailbox
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.inferlets.mailbox import EVENT_BYTES, Sender
from pie_control.registry import outbox as module
from pie_control.registry.outbox import TOLD_BYTES, Outbox

LIMITS = InferletLimits(max_message_bytes=100, max_log_bytes=1000)
END = Ended("finished", inferlet="i1")


def texts(events: list[Event]) -> list[str]:
    return [event.status if isinstance(event, Ended) else event.text for event in events]


class Mail(Outbox):
    """An outbox with the sender at its other end, which hears at once what is told."""

    __slots__ = ("has_room", "log", "send", "sender", "when_room", "write")

    def __init__(self, inferlet: str, limits: InferletLimits) -> None:
        self.sender = sender = Sender(inferlet, limits, self.said, self.logged)
        super().__init__(inferlet, limits, sender.room)
        self.send, self.log, self.write = sender.send, sender.log, sender.write
        self.has_room, self.when_room = sender.has_room, sender.when_room

    def end(self, ended: Ended) -> None:
        self.sender.close()
        self.ended(ended)


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender hears of each message that was taken."""
    monkeypatch.setattr(module, "TOLD_BYTES", 0)


def test_a_listener_hears_what_was_kept_then_what_comes() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    outbox.send("1")
    outbox.log("log", "2")
    outbox.send("3")
    outbox.push_to(heard.append)
    outbox.send("4")
    outbox.end(END)
    assert texts(heard) == ["1", "2", "3", "4", "finished"]


def test_what_comes_while_a_listener_catches_up_comes_behind() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()

    def listener(event: Event) -> None:
        heard.append(event)
        if texts([event]) == ["1"]:
            outbox.send("3")

    outbox.send("1")
    outbox.send("2")
    outbox.push_to(listener)
    assert texts(heard) == ["1", "2", "3"]


def test_events_are_kept_again_after_a_listener_left() -> None:
    outbox, first, second = Mail("i1", LIMITS), list[Event](), list[Event]()
    outbox.push_to(first.append)
    outbox.send("1")
    outbox.detach()
    outbox.send("2")
    outbox.push_to(second.append)
    assert (texts(first), texts(second)) == (["1"], ["2"])


def test_a_listener_that_fails_hears_no_more_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    outbox, calls = Mail("i1", LIMITS), list[Event]()

    def listener(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("of the listener")

    outbox.push_to(listener)
    with caplog.at_level(logging.ERROR):
        outbox.send("1")
        outbox.send("2")
    assert texts(calls) == ["1"]
    assert "a listener failed" in caplog.text


def notify_nobody() -> None:
    """A reader that takes nothing."""


def fill(outbox: Mail) -> None:
    """Sends until there is no room."""
    while outbox.has_room():
        outbox.send("x" * 1000)


def test_a_sender_should_wait_sooner_while_a_client_reads() -> None:
    unread, read = Mail("i1", LIMITS), Mail("i2", LIMITS)
    read.attach(notify_nobody)
    fill(unread)
    assert unread.kept_bytes > mailbox.UNREAD_BYTES
    assert unread.kept_bytes <= mailbox.UNREAD_BYTES + 1000 + EVENT_BYTES
    fill(read)
    assert mailbox.IN_FLIGHT_BYTES < read.kept_bytes <= mailbox.IN_FLIGHT_BYTES + 1000 + EVENT_BYTES


@pytest.mark.usefixtures("told_at_once")
def test_senders_go_on_in_order_when_there_is_room_again() -> None:
    outbox, gone = Mail("i1", LIMITS), list[str]()
    outbox.attach(notify_nobody)
    outbox.when_room(lambda: gone.append("at once"))
    fill(outbox)
    outbox.when_room(lambda: gone.append("first"))
    outbox.when_room(lambda: gone.append("second"))
    outbox.when_room(given_up := lambda: gone.append("given up"))
    outbox.sender.forget(given_up)
    assert gone == ["at once"]
    outbox.take()
    assert outbox.has_room()
    assert gone == ["at once", "first", "second"]


def test_senders_go_on_when_the_client_leaves() -> None:
    outbox, gone = Mail("i1", LIMITS), list[str]()
    outbox.attach(notify_nobody)
    fill(outbox)
    outbox.when_room(lambda: gone.append("x"))
    outbox.detach()  # there is more room for what nobody reads
    assert gone == ["x"]


@pytest.mark.parametrize(("reader", "why"), [(None, "no client reads"), (notify_nobody, "its client reads slowly")])
def test_a_sender_that_does_not_wait_is_refused_and_nothing_is_lost(
    reader: Callable[[], None] | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_KEPT_BYTES", 5000)
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    if reader:
        outbox.attach(reader)
    for number in range(5000 // (EVENT_BYTES + 1) + 1):
        outbox.send(str(number % 10))
    with pytest.raises(QuotaExceeded, match=f"{why}.*await the future"):
        outbox.send("more")
    assert outbox.kept_bytes <= 5000 + EVENT_BYTES + 1
    outbox.end(END)  # always fits
    outbox.push_to(heard.append)
    assert texts(heard) == [str(number % 10) for number in range(len(heard) - 1)] + ["finished"]
    assert outbox.kept_bytes == 0


@given(st.lists(st.one_of(st.integers(0, 3000), st.sampled_from(["take", "attach", "detach"]))))
def test_bytes_are_counted_right_and_every_sender_is_called_once(steps: list[int | str]) -> None:
    outbox, kept = Mail("i1", LIMITS), deque[int]()
    waiting: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOLD_BYTES", 300)
        patch.setattr(mailbox, "IN_FLIGHT_BYTES", 1000)
        patch.setattr(mailbox, "UNREAD_BYTES", 4000)
        for place, step in enumerate(steps):
            match step:
                case int():
                    outbox.send("x" * step)
                    kept.append(step + EVENT_BYTES)
                    waiting.append(place)
                    outbox.when_room(partial(waiting.remove, place))
                case "take":
                    assert (outbox.take() is None) == (not kept)
                    if kept:
                        kept.popleft()
                case "attach":
                    outbox.attach(notify_nobody)
                case "detach":
                    outbox.detach()
            assert outbox.kept_bytes == sum(kept)
        while outbox.take():
            kept.popleft()
        assert not kept
        assert not waiting  # calling one twice would raise ValueError


def test_every_reader_gets_the_end_and_only_the_first_gets_the_rest() -> None:
    outbox, first, second = Mail("i1", LIMITS), list[Event](), list[Event]()
    outbox.send("1")
    outbox.end(END)
    outbox.push_to(first.append)
    outbox.push_to(second.append)
    assert (texts(first), texts(second)) == (["1", "finished"], ["finished"])


def test_a_reader_is_told_of_lines_that_were_left_out() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    for number in range(100):
        outbox.log("log", str(number))
    outbox.end(END)
    outbox.push_to(heard.append)
    *lines, notice, end = texts(heard)
    assert lines == [str(number) for number in range(len(lines))]
    assert notice.startswith(f"{100 - len(lines)} lines are left out")
    assert end == "finished"


def test_log_lines_leave_room_for_messages() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    for number in range(1000):
        outbox.log("log", str(number))
    outbox.send("message")
    outbox.push_to(heard.append)
    assert texts(heard)[-1] == "message"
    assert len(heard) < 21
    assert outbox.logs()[-1].text == "999"


def test_lines_have_numbers_behind_which_a_log_is_read_on() -> None:
    outbox = Mail("i1", LIMITS)
    for number in range(1, 1001):
        outbox.log("log", str(number))
    kept = [line.number for line in outbox.logs()]
    assert kept == list(range(kept[0], 1001))
    for after, found in ((998, ["999", "1000"]), (1000, []), (10**30, []), (-1, [str(number) for number in kept])):
        assert [line.text for line in outbox.logs(after)] == found
        assert [str(line.number) for line in outbox.logs(after)] == found


def test_empty_lines_are_bounded_too() -> None:
    outbox = Mail("i1", LIMITS)
    outbox.write("stdout", b"\n" * 10_000)
    assert len(outbox.logs()) <= LIMITS.max_log_bytes // EVENT_BYTES
    assert outbox.kept_bytes <= 2 * LIMITS.max_log_bytes


def test_output_becomes_whole_lines_of_its_stream() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    outbox.push_to(heard.append)
    outbox.write("stdout", b"one\ntw")
    outbox.write("stderr", b"other\n")
    outbox.write("stdout", b"o\xc3")
    outbox.write("stdout", b"\xbc\nrest\xff")
    outbox.end(END)
    lines = [(event.stream, event.text) for event in heard if isinstance(event, LogLine)]
    assert lines == [("stdout", "one"), ("stderr", "other"), ("stdout", "twoü"), ("stdout", "rest�")]
    assert heard[-1] is END


def test_a_line_without_end_is_cut() -> None:
    outbox = Mail("i1", LIMITS)
    for _ in range(100):
        outbox.write("stdout", b"x" * 10)
    assert {len(line.text) for line in outbox.logs()} == {100}


def test_a_long_line_is_cut_to_the_size_of_a_message() -> None:
    outbox = Mail("i1", LIMITS)
    outbox.log("log", "ü" * 100)
    assert outbox.logs()[0].text == "ü" * 50


def test_an_ending_that_nobody_heard_is_kept() -> None:
    outbox, heard = Mail("i1", LIMITS), list[Event]()
    outbox.send("1")
    outbox.end(END)
    outbox.push_to(heard.append)
    assert heard == [Message("1", inferlet="i1"), END]


def test_the_sender_hears_now_and_then_how_much_was_taken() -> None:
    told: list[tuple[int, bool]] = []
    outbox = Outbox("i1", LIMITS, lambda taken, read: told.append((taken, read)))
    for _ in range(3 * TOLD_BYTES // (100 + EVENT_BYTES)):
        outbox.said("x" * 100)
    outbox.attach(notify_nobody)
    while outbox.take():
        pass
    assert [read for _, read in told] == [True] * len(told)
    assert 3 <= len(told) <= 4, "when it was attached, and for each part that was taken"
    outbox.detach()
    assert told[-1] == (3 * TOLD_BYTES // (100 + EVENT_BYTES) * (100 + EVENT_BYTES), False)


def test_a_sender_that_waits_goes_on_however_late_it_is_told() -> None:
    """What is not told yet is less than what makes it wait."""
    outbox, gone = Mail("i1", LIMITS), list[str]()
    outbox.attach(notify_nobody)
    fill(outbox)
    outbox.when_room(lambda: gone.append("x"))
    while outbox.take():
        pass
    assert gone == ["x"]


def test_an_inferlet_that_has_ended_is_told_nothing() -> None:
    told: list[tuple[int, bool]] = []
    outbox = Outbox("i1", LIMITS, lambda taken, read: told.append((taken, read)))
    outbox.said("x" * TOLD_BYTES)
    outbox.ended(END)
    outbox.attach(notify_nobody)
    while outbox.take():
        pass
    outbox.detach()
    assert told == []
