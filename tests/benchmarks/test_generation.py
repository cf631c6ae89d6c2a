"""How benchmarks time a stream of tokens."""

from __future__ import annotations

from benchmarks.support.generation import Stream


def test_a_stream_is_timed_from_its_first_message() -> None:
    assert Stream.of([5, 6, 7], [1, 2, 3, 3], 10.0, [11.0, 12.0, 13.0, 13.5]) == Stream([5, 6, 7], 2, 11.0, 13.5)


def test_a_stream_that_comes_in_one_message_is_timed_from_its_start() -> None:
    assert Stream.of([5, 6, 7], [3, 3], 10.0, [11.0, 11.5]) == Stream([5, 6, 7], 3, 10.0, 11.5)


def test_a_stream_without_text_is_timed_from_its_start() -> None:
    assert Stream.of([256, 256], [2], 10.0, [11.5]) == Stream([256, 256], 2, 10.0, 11.5)
