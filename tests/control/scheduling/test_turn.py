"""What a turn hands on of decode runs is joined row by row, and nothing of a row is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pie_control.errors import WorkerError
from pie_control.scheduling.turn import RunTokens, join_tokens

Row = tuple[int, int, int, bool, Any, Any]
"""Owner, future, token, whether it is over, an error or None, scores or None."""

ROWS = st.tuples(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 9),
    st.booleans(),
    st.none() | st.builds(WorkerError, st.text(max_size=3)),
    st.none() | st.builds(object),
)


def tokens_of(rows: Sequence[Row]) -> RunTokens:
    errors = {place: row[4] for place, row in enumerate(rows) if row[4] is not None}
    scores = {place: row[5] for place, row in enumerate(rows) if row[5] is not None}
    owners, futures, tokens = ([row[column] for row in rows] for column in range(3))
    return RunTokens(owners, futures, tokens, [row[3] for row in rows], errors, scores)


def rows_of(found: RunTokens) -> list[Row]:
    columns = zip(found.owners, found.futures, found.tokens, found.over, strict=True)
    return [(*row, found.errors.get(place), found.scores.get(place)) for place, row in enumerate(columns)]


@given(st.lists(st.lists(ROWS, max_size=3), max_size=4))
def test_joined_tokens_have_each_row_with_its_error_and_its_scores(parts: list[list[Row]]) -> None:
    joined = join_tokens([tokens_of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in part]
    assert max([*joined.errors, *joined.scores], default=-1) < len(joined.owners)


@given(st.lists(ROWS, min_size=1, max_size=5), st.data())
def test_a_part_has_its_rows_with_their_errors_and_scores(rows: list[Row], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True))
    assert rows_of(tokens_of(rows).part(chosen)) == [rows[place] for place in chosen]
