from __future__ import annotations

import pytest

from pie_control.errors import InvalidState, NotFound
from pie_control.resources.tables.embeds import EmbedTable


def make_table() -> EmbedTable:
    """Embeds 0 to 5; 0, 1 and 4 are filled."""
    table = EmbedTable()
    table.allocate(6, 0)
    table.fill([(0, 2), (4, 5)], [10, 11, 14], is_output=False)
    return table


def test_positions_come_in_the_order_of_the_ranges() -> None:
    table = make_table()
    assert table.filled_positions([(0, 2)]) == [10, 11]
    assert table.filled_positions([(4, 5), (0, 2)]) == [14, 10, 11]


@pytest.mark.parametrize("ranges", [[(1, 3)], [(0, 2), (3, 4)]])
def test_an_embed_that_was_never_filled_is_named(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidState, match=r"embed [23] was never filled"):
        make_table().filled_positions(ranges)


@pytest.mark.parametrize("ranges", [[(5, 7)], [(0, 2), (6, 7)], [(1000, 1001)]])
def test_an_embed_of_nobody_is_not_found(ranges: list[tuple[int, int]]) -> None:
    for check in (make_table().check_owned, make_table().filled_positions):
        with pytest.raises(NotFound, match=r"embed (6|1000) is not allocated"):
            check(ranges)


def test_an_embed_given_back_is_invalid_at_once_and_empty_when_it_is_had_again() -> None:
    table = make_table()
    table.disown([(0, 1)])
    assert table.owned == 5
    with pytest.raises(NotFound, match="embed 0 is not allocated"):
        table.check_owned([(0, 1)])
    table.release([(0, 1)])
    while table.allocate(1, 0) != 0:
        pass
    with pytest.raises(InvalidState, match="embed 0 was never filled"):
        table.filled_positions([(0, 1)])


def test_outputs_are_told_from_inputs() -> None:
    table = make_table()
    table.fill([(1, 3)], [7, 8], is_output=True)
    table.check_outputs([(1, 3)])
    with pytest.raises(InvalidState, match="embed 0 holds an input token"):
        table.check_outputs([(1, 3), (0, 1)])
    with pytest.raises(InvalidState, match="embed 3 was never filled"):
        table.check_outputs([(1, 4)])
    table.fill([(2, 3)], [9], is_output=False)
    with pytest.raises(InvalidState, match="embed 2 holds an input token"):
        table.check_outputs([(1, 3)])


def test_an_output_stays_one_at_another_position() -> None:
    table = make_table()
    table.fill([(1, 3)], [7, 8], is_output=True)
    table.move([(2, 3), (0, 1)], [20, 21])
    assert table.filled_positions([(0, 3)]) == [21, 7, 20]
    table.check_outputs([(1, 3)])
