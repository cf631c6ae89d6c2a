"""Stop strings on the host: exactly what the SDK's filter lets through, piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet_sdk.generation.stopping import StopString, TextFilter
from pie_control.errors import InvalidArgument
from pie_control.services.stop_strings import MAX_CHARACTERS, MAX_STRINGS, StopStrings

TEXTS = st.text("abé", max_size=5)


@settings(max_examples=500)
@given(st.lists(st.text("abé", min_size=1, max_size=6), min_size=1, max_size=4), st.lists(TEXTS, max_size=12))
def test_what_is_let_through_is_what_the_sdk_emits(strings: list[str], pieces: list[str]) -> None:
    host, sdk = StopStrings(strings), TextFilter((StopString(*strings),))
    for piece in pieces:
        assert host.push(piece) == sdk.push(piece)
        assert host.found == (sdk.cut is not None)
        if host.found:
            break
    assert host.rest() == sdk.rest()
    assert host.rest() == ""


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3), TEXTS, TEXTS)
def test_another_filter_goes_on_with_what_was_held_back(strings: list[str], one: str, two: str) -> None:
    whole, first = StopStrings(strings), StopStrings(strings)
    assert whole.push(one) == first.push(one)
    if not first.found:
        second = StopStrings(strings, held=first.rest())
        assert second.push(two) == whole.push(two)
        assert second.found == whole.found
        assert second.rest() == whole.rest()


def test_no_part_of_a_stop_string_is_let_through() -> None:
    stop = StopStrings(["the end"])
    assert [stop.push(piece) for piece in ("this is th", "e ", "en", "emy, the", " end", " and more")] == [
        "this is ", "", "", "the enemy, ", "", "",
    ]  # fmt: skip
    assert stop.found
    assert stop.rest() == ""


def test_without_strings_everything_is_let_through() -> None:
    stop = StopStrings([])
    assert [stop.push("a"), stop.push("b"), stop.rest()] == ["a", "b", ""]


@pytest.mark.parametrize(
    ("strings", "held", "message"),
    [
        (["a", ""], "", "must not be empty"),
        (["a"] * (MAX_STRINGS + 1), "", "17 stop strings of 17 characters"),
        (["a" * (MAX_CHARACTERS + 1)], "", "1 stop strings of 1025 characters are more than 16 of 1024: look"),
        (["abc"], "xab", "'xab' is not the beginning of a stop string"),
        ([], "x", "'x' is not the beginning"),
    ],
)
def test_what_cannot_be_is_refused(strings: list[str], held: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StopStrings(strings, held)
