"""How many requests are served at a time, where memory has room for fewer than are allowed."""

from __future__ import annotations

from pie_control.gateway.waiting.places import CALM, Places


def test_places_come_back_slowly_and_then_faster() -> None:
    places = Places(20)
    places.evicted(8)
    found = []
    for _ in range(5):
        for _ in range(CALM * places.count):
            places.ended()
        found.append(places.count)
    assert found == [9, 11, 15, 20, 20]


def test_one_is_left_and_what_others_left_does_not_count() -> None:
    places = Places(20)
    places.evicted(0)
    assert places.count == 1
    places.evicted(5)
    assert places.count == 1


def test_few_are_evicted_where_memory_has_room_for_some() -> None:
    """12 of 64: places are found at once, and what is tried later costs little."""
    places, evicted, ends = Places(64), 0, 0
    while ends < 2000:
        if places.count > 12:
            evicted += places.count - 12
            places.evicted(12)
        ends += 1
        places.ended()
    assert evicted < 52 + 0.06 * ends
