"""The table of an inferlet's life."""

from __future__ import annotations

import itertools

import pytest

from pie_control.inferlets.lifecycle import ENDINGS, TRANSITIONS, IllegalTransition, Status, check_transition

BEFORE_ITS_FIRST_TURN = (Status.RUNNING, Status.FAILED, Status.TERMINATED, Status.EXCEEDED, Status.LOST)
ALLOWED = {
    *((Status.CREATED, after) for after in BEFORE_ITS_FIRST_TURN),
    *((Status.RUNNING, after) for after in ENDINGS),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_only_what_the_table_allows(before: Status, after: Status) -> None:
    if (before, after) in ALLOWED:
        check_transition(before, after)
        return
    with pytest.raises(IllegalTransition, match=f"{before} cannot become {after}"):
        check_transition(before, after)


def test_the_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {Status.CREATED, Status.RUNNING} | ENDINGS == set(Status)
    assert all(not TRANSITIONS[ending] for ending in ENDINGS)
