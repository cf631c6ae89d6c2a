"""How benchmarks time a stream of tokens."""

from __future__ import annotations

from benchmarks.support.generation import Stream, _while_all_run, counts_at
from pie_control.services.tokenizer import Tokenizer
from pie_inference.testing import byte_tokenizer


def test_a_stream_is_timed_from_its_first_message_to_the_one_with_its_last_token() -> None:
    stream = Stream([5, 6, 7], [1, 2, 3, 3], 10.0, [11.0, 12.0, 13.0, 13.5])
    assert (stream.first, stream.last, stream.between, stream.per_token) == (11.0, 13.0, 2, 1.0)


def test_special_tokens_at_its_end_do_not_count_for_its_own_pace() -> None:
    stream = Stream([5, 6, 7, 256], [1, 2, 3, 4], 10.0, [11.0, 12.0, 13.0, 19.0])
    assert (stream.last, stream.between, stream.per_token) == (19.0, 3, 1.0)


def test_a_stream_that_comes_in_one_message_is_timed_from_its_start() -> None:
    stream = Stream([5, 6, 7], [3, 3], 10.0, [11.5, 12.0])
    assert (stream.first, stream.last, stream.between, stream.per_token) == (10.0, 11.5, 3, 0.5)


def test_a_stream_without_text_is_timed_from_its_start() -> None:
    stream = Stream([256, 256], [2], 10.0, [11.5])
    assert (stream.first, stream.last, stream.between, stream.per_token) == (10.0, 11.5, 2, 0.75)


def test_a_token_takes_what_it_takes_while_all_run() -> None:
    """With fewer, waves are smaller: here they take 1 s in place of 3."""
    first = Stream([7] * 7, [1, 2, 3, 4, 5, 6, 7, 7], 0.0, [0.0, 1.0, 2.0, 5.0, 8.0, 11.0, 14.0, 99.0])
    second = Stream([7] * 4, [1, 3, 4, 4], 0.0, [5.0, 11.0, 14.0, 99.0])
    assert _while_all_run([first, second]) == 3.0
    late = Stream([7] * 2, [1, 2, 2], 0.0, [14.0, 17.0, 99.0])
    assert _while_all_run([first, late]) == (14 / 6 + 3) / 2, "they hardly run together: each has its own pace"
    assert _while_all_run([Stream([256, 256], [2], 10.0, [11.5])]) == 0.75


def test_tokens_of_a_message_are_found_by_its_text() -> None:
    tokenizer = Tokenizer(byte_tokenizer.tokenizer_json(), {}, byte_tokenizer.VOCAB_SIZE)
    tokens = [*"aé".encode(), byte_tokenizer.END]
    assert counts_at(tokenizer, tokens, ["a", "é", ""]) == [1, 3, 4]
    assert counts_at(tokenizer, [*b"abc"], ["ab", "c", ""]) == [2, 3, 3]
