from __future__ import annotations

from pie_control.resources.contention import Action, End, FirstComeFirstServed, Holder, Shortage, Wait
from pie_control.resources.kinds import EMBEDS, PAGES

HOLDERS = [Holder(1, 1.0, 10), Holder(3, 3.0, 10), Holder(2, 2.0, 10), Holder(4, 4.0, 0)]


def resolve(missing: int, requester: int, holders: list[Holder]) -> tuple[Action, ...]:
    return FirstComeFirstServed().resolve(Shortage(requester, PAGES, missing, missing, 100), holders)


def owners(missing: int, requester: int, holders: list[Holder]) -> list[int]:
    return [action.owner for action in resolve(missing, requester, holders) if isinstance(action, End)]


def test_the_youngest_yield_until_the_request_fits() -> None:
    assert owners(5, 1, HOLDERS) == [3]
    assert owners(15, 1, HOLDERS) == [3, 2]


def test_the_requester_ends_when_nobody_is_younger() -> None:
    assert owners(15, 2, HOLDERS) == [3, 2]
    assert owners(5, 4, HOLDERS) == [4]


def test_of_two_created_at_once_the_larger_number_is_younger() -> None:
    assert owners(5, 1, [Holder(1, 1.0, 9), Holder(2, 1.0, 9), Holder(3, 1.0, 9)]) == [3]


def test_nobody_ends_if_it_does_not_help() -> None:
    assert resolve(5, 9, [Holder(1, 1.0, 0)]) == (Wait(),)


def test_the_message_says_what_was_missing() -> None:
    (action,) = FirstComeFirstServed().resolve(Shortage(1, EMBEDS, 7, 5, 100), [Holder(1, 1.0, 3)])
    assert isinstance(action, End)
    assert "out of embeds: 7 were asked for and 5 of them are missing in a pool of 100" in action.message
    assert "first come, first served" in action.message
