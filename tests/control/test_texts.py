"""Texts cut to size: never longer than they may be, never half a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pie_control.texts import byte_size, cut, cut_middle

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
