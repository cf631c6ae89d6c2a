"""Decode runs on their way to the program, and their text on its way to the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pie_control.errors import InvalidArgument, NotFound, WorkerError
from pie_control.inferlets.futures import FutureTable
from pie_control.inferlets.runs import RunBuffer, Watch
from pie_control.services.stop_strings import StopStrings

END = 0


class Letters:
    """A detokenizer for tokens that are characters."""

    push_one = staticmethod(chr)


class SlowClient:
    """Takes messages while it has room for them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.room = 1000
        self.waiting: dict[Callable[[], None], None] = {}

    def has_room(self, size: int = 0) -> bool:
        return len(self.sent) < self.room

    def when_room(self, call: Callable[[], None]) -> None:
        self.waiting[call] = None

    def forget(self, call: Callable[[], None]) -> None:
        self.waiting.pop(call, None)

    def send(self, text: str) -> None:
        assert text
        self.sent.append(text)

    def read(self, room: int) -> None:
        self.room, waiting, self.waiting = room, self.waiting, {}
        for call in waiting:
            call()


class Runs:
    """A table with one run."""

    def __init__(self) -> None:
        self.table = FutureTable(4)
        self.number = self.table.new(100)
        self.cancelled = 0
        self.used: list[int] = []
        self.table.begin_run(self.number, RunBuffer([END], self.cancel, self.used.append, vocab_size=256))
        self.client = SlowClient()

    def cancel(self) -> None:
        self.cancelled += 1

    def advance(self, tokens: str | list[int], over: bool = False) -> bool:
        run = self.table.run(self.number)
        run.advance([ord(one) for one in tokens] if isinstance(tokens, str) else tokens, over)
        return self.table.settle_run(self.number)

    def take(self, most: int = 100) -> tuple[str, bool]:
        taken = self.table.take_run(self.number, most)
        return "".join(map(chr, taken.tokens)), taken.over

    def watch(
        self,
        *stop: str,
        send: bool = True,
        held: str = "",
        more: bool = False,
        most: int = 100,
        frame: tuple[str, str] | None = None,
    ) -> Watch:
        letters: Any = Letters()
        watch = Watch(letters, StopStrings(stop, held), self.client if send else None, most, more, frame)
        watch.listen(lambda: self.table.settle_run(self.number))
        self.table.run(self.number).watch(watch)
        self.table.settle_run(self.number)
        return watch

    @property
    def done(self) -> bool:
        return self.table.done([self.number]) == [self.number]


# ---- tokens ----


def test_the_future_is_done_while_there_are_tokens_and_at_the_end() -> None:
    runs = Runs()
    assert not runs.done
    assert runs.advance("ab")
    assert runs.advance("c")
    assert (runs.take(), runs.done) == (("abc", False), False)
    assert runs.advance("", over=True)
    assert runs.take() == ("", True)
    assert (len(runs.table), runs.table.bytes) == (0, 0)
    with pytest.raises(NotFound, match=f"no decode run {runs.number}: all of it was taken"):
        runs.take()


def test_a_long_run_is_taken_in_parts() -> None:
    runs = Runs()
    runs.advance("abcde", over=True)
    assert [runs.take(2), runs.take(2), runs.take(2)] == [("ab", False), ("cd", False), ("e", True)]


def test_a_run_that_fails_gives_its_tokens_first() -> None:
    runs = Runs()
    runs.advance("ab")
    assert runs.table.resolve(runs.number, WorkerError("the worker failed"))
    assert runs.take() == ("ab", False)
    assert runs.done
    with pytest.raises(WorkerError, match="the worker failed"):
        runs.take()
    assert len(runs.table) == 0


def test_a_cancelled_run_ends_where_it_is_made_and_takes_no_more() -> None:
    runs = Runs()
    runs.advance("ab")
    runs.table.cancel(runs.number)
    assert runs.cancelled == 1
    assert runs.table.find_run(runs.number) is None
    assert not runs.table.resolve(runs.number, WorkerError("late"))
    assert not runs.table.settle_run(runs.number)
    assert runs.table.bytes == 0


def test_a_run_that_is_over_is_not_cancelled_again() -> None:
    runs = Runs()
    runs.advance("ab", over=True)
    runs.table.cancel(runs.number)
    assert runs.cancelled == 0


@pytest.mark.parametrize("over", [False, True])
def test_a_cancelled_run_tells_how_many_tokens_were_taken(over: bool) -> None:
    runs = Runs()
    runs.advance("abcd", over)
    runs.take(1)
    assert not runs.used
    runs.table.cancel(runs.number)
    assert runs.used == [1]


@pytest.mark.parametrize("over", [False, True])
def test_what_comes_behind_a_stop_string_is_not_taken(over: bool) -> None:
    runs = Runs()
    runs.advance("a")
    runs.take()
    runs.watch("c")
    runs.advance("bcde", over)
    assert (runs.used, runs.take()) == ([3], ("bc", True))


def test_another_future_is_no_run_and_a_run_no_other_value() -> None:
    runs = Runs()
    other = runs.table.new()
    with pytest.raises(InvalidArgument, match=f"future {other} is not a decode run"):
        runs.table.take_run(other, 1)
    runs.advance("a")
    with pytest.raises(InvalidArgument, match="holds a RunBuffer, not a str"):
        runs.table.take(runs.number, str)
    assert runs.take() == ("a", False)


# ---- text ----


def test_text_is_sent_as_it_comes_and_the_tokens_are_given_at_the_end() -> None:
    runs = Runs()
    runs.watch()
    assert not runs.advance("ab")
    assert not runs.advance("c")
    assert runs.client.sent == ["ab", "c"]
    assert runs.advance("d", over=True)
    taken = runs.table.take_run(runs.number, 100)
    assert (taken.tokens, taken.texts, taken.over) == ([*b"abcd"], ["a", "b", "c", "d"], True)
    assert len(runs.table) == 0


def test_a_stop_string_ends_the_run_and_is_not_sent() -> None:
    runs = Runs()
    runs.watch("cat", "xyz")
    runs.advance("a c")
    runs.advance("at and more")
    assert runs.done
    assert runs.cancelled == 1
    assert "".join(runs.client.sent) == "a "
    assert runs.take() == ("a cat", True)


def test_what_comes_after_the_end_is_dropped() -> None:
    runs = Runs()
    runs.watch("b")
    runs.advance("ab")
    runs.advance("cd", over=True)
    assert runs.take() == ("ab", True)
    assert runs.client.sent == ["a"]


def test_a_stop_token_has_no_text_and_what_was_held_back_comes() -> None:
    runs = Runs()
    runs.watch("the end")
    runs.advance([*b"the e", END], over=True)
    assert "".join(runs.client.sent) == "the e"
    taken = runs.table.take_run(runs.number, 100)
    assert list(taken.texts or []) == [*"the e", ""]


@pytest.mark.parametrize(("more", "sent"), [(False, "on the"), (True, "on ")])
def test_what_may_go_on_is_left_to_the_next_run(more: bool, sent: str) -> None:
    runs = Runs()
    runs.watch("the end", more=more)
    runs.advance("on the", over=True)
    assert "".join(runs.client.sent) == sent


def test_a_stop_string_may_span_two_runs() -> None:
    runs = Runs()
    runs.watch("the end", held="the")
    runs.advance(" end")
    assert runs.done
    assert runs.client.sent == []


def test_tokens_that_came_before_it_was_watched_count() -> None:
    runs = Runs()
    runs.advance("abcat")
    runs.watch("cat")
    assert (runs.done, runs.cancelled, runs.client.sent) == (True, 1, ["ab"])


def test_a_client_that_does_not_read_delays_the_end_and_loses_nothing() -> None:
    runs = Runs()
    runs.watch()
    runs.client.room = 1
    for letter in "abcdef":
        assert not runs.advance(letter)
    assert not runs.advance("g", over=True)
    assert runs.client.sent == ["a"]
    assert len(runs.client.waiting) == 1
    runs.client.read(2)
    assert runs.client.sent == ["a", "bcdefg"]  # what had to wait is one message
    assert runs.done
    assert runs.take() == ("abcdefg", True)


def test_messages_are_no_longer_than_messages_may_be() -> None:
    runs = Runs()
    runs.watch(most=8)
    runs.advance("abcde", over=True)
    assert runs.client.sent == ["ab", "cd", "e"]


def test_a_cancelled_run_sends_nothing_more() -> None:
    runs = Runs()
    runs.watch()
    runs.client.room = 0
    runs.advance("abc")
    assert runs.client.waiting
    runs.table.cancel(runs.number)
    assert not runs.client.waiting, "of each run something would be kept, while no client reads"
    runs.client.read(10)
    assert runs.client.sent == []


def test_a_run_may_be_watched_without_a_client() -> None:
    runs = Runs()
    runs.watch("c", send=False)
    runs.advance("abcd")
    assert (runs.take(), runs.client.sent) == (("abc", True), [])


def test_pieces_in_a_frame_are_json() -> None:
    runs = Runs()
    runs.watch(frame=('{"text": "', '"}'), most=48)
    runs.advance('a"\n\\\u00e9\u2028\x01')
    runs.advance("bc", over=True)
    assert [json.loads(sent)["text"] for sent in runs.client.sent] == ['a"\n\\', "\u00e9\u2028\x01", "bc"]
    assert all(len(sent.encode()) <= 48 for sent in runs.client.sent)
