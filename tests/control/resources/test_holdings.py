from __future__ import annotations

import pytest

from pie_control.resources.holdings import UNBOUND, Binding, Freed, Holdings, TokenSource
from pie_control.resources.kinds import EMBEDS, PAGES


def test_addresses_are_bound_and_unbound() -> None:
    binding = Binding()
    binding.bind(2, [7, 8, 9])
    assert binding.physical.tolist() == [UNBOUND, UNBOUND, 7, 8, 9]
    assert binding.bound == 3
    assert binding.unbind([(3, 4), (4, 5)]) == [8, 9]
    binding.bind(3, [5])
    assert binding.physical.tolist() == [UNBOUND, UNBOUND, 7, 5, UNBOUND]
    assert binding.unbind_all() == [7, 5]
    assert binding.bound == 0
    assert binding.unbind_all() == []


def test_what_was_never_bound_gives_nothing_back() -> None:
    binding = Binding()
    binding.bind(0, [4])
    assert binding.unbind([(0, 3), (10, 12)]) == [4]
    assert binding.physical.tolist() == [UNBOUND]


def test_a_token_is_named_by_its_slot_until_its_value_is_known() -> None:
    holdings = Holdings(1, 0.0)
    source = holdings.tokens[7] = TokenSource()
    with pytest.raises(AssertionError, match="ran ahead"):
        source.literal()
    source.slot = 3
    assert holdings.literals([5, 0, 6], [(1, 7)]).tolist() == [5, -4, 6]
    source.value = 65
    assert holdings.literals([5, 0, 6], [(1, 7)]).tolist() == [5, 65, 6]


def test_what_is_returning_is_counted_by_kind() -> None:
    holdings = Holdings(1, 0.0)
    holdings.freed.extend([Freed(1, PAGES, ((0, 2), (5, 6))), Freed(2, EMBEDS, ((0, 7),)), Freed(3, PAGES, ())])
    assert (holdings.returning(PAGES), holdings.returning(EMBEDS)) == (3, 7)
