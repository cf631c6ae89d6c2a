from __future__ import annotations

from pie_control.resources import FirstComeFirstServed, Holding, Shortage


def owners(missing: int, requester: int, holdings: list[Holding]) -> list[int]:
    shortage = Shortage(requester, "KV pages", missing, missing, 100)
    return [eviction.owner for eviction in FirstComeFirstServed().resolve(shortage, holdings)]


HOLDINGS = [Holding(1, 1.0, 10), Holding(3, 3.0, 10), Holding(2, 2.0, 10), Holding(4, 4.0, 0)]


def test_the_youngest_yield_until_the_request_fits() -> None:
    assert owners(5, 1, HOLDINGS) == [3]
    assert owners(15, 1, HOLDINGS) == [3, 2]


def test_the_requester_ends_when_nobody_is_younger() -> None:
    assert owners(15, 2, HOLDINGS) == [3, 2]
    assert owners(5, 4, HOLDINGS) == [4]


def test_of_two_created_at_once_the_larger_number_is_younger() -> None:
    assert owners(5, 1, [Holding(1, 1.0, 9), Holding(2, 1.0, 9), Holding(3, 1.0, 9)]) == [3]


def test_the_message_says_what_was_missing() -> None:
    (eviction,) = FirstComeFirstServed().resolve(Shortage(1, "embeds", 7, 5, 100), [Holding(1, 1.0, 3)])
    assert "7 were asked for" in eviction.message
    assert "first come, first served" in eviction.message
