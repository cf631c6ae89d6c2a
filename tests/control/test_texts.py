"""Texts cut to size: never longer than they may be, never half a character."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.texts import byte_size, cut, cut_middle, json_fault

TEXTS = st.text(st.sampled_from("aé世🙂\ud800\n"), max_size=300)


@given(TEXTS, st.integers(0, 200))
def test_a_cut_text_is_a_beginning(text: str, most: int) -> None:
    short = cut(text, most)
    assert byte_size(short) <= most
    assert short == text or text.replace("\ud800", "?").startswith(short)
    if "\ud800" not in text:  # which becomes shorter
        assert short == text or byte_size(short) > most - 4, "no more is cut than must be"


@given(TEXTS, st.integers(0, 400))
def test_what_is_cut_in_the_middle_has_both_ends(text: str, most: int) -> None:
    short = cut_middle(text, most)
    assert byte_size(short) <= most
    if byte_size(text) <= most:
        assert short == text
    elif "cut to" in short:
        begin, _, rest = short.partition("\n[... ")
        end = rest.partition(" ...]\n")[2]
        plain = text.replace("\ud800", "?")
        assert plain.startswith(begin)
        assert plain.endswith(end)


def test_the_last_line_of_a_long_traceback_stays() -> None:
    short = cut_middle("Traceback\n" + "x" * 17_000_000 + "\nValueError: this", 1 << 20)
    assert short.startswith("Traceback")
    assert short.endswith("ValueError: this")
    assert "17000027 characters, cut to 1048576 bytes" in short


@pytest.mark.parametrize(
    ("text", "is_half"),
    [
        (rb'{"a": "\ud83d"}', True),
        (rb'["\uDC1D and more text"]', True),
        (rb'["\\\ud83d\u0041 and more"]', True),
        (rb'["\ud83d\udc1d\udc1d and more"]', True),
        (rb'["\ud83d\udc1d", "\\ud83d and more]', False),
        (b'{"a": "', False),
    ],
)
def test_half_of_a_surrogate_pair_is_told_as_what_it_is(text: bytes, is_half: bool) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(text)
    assert ("half of a surrogate pair" in json_fault(text, caught.value)) == is_half


def test_another_fault_is_told_by_its_decoder() -> None:
    text = rb'{"b": "\ud83d", "a": 1}'
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'{"a": 1}', type=dict[str, str])
    assert json_fault(text, caught.value) == str(caught.value)
