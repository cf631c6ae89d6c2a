"""Proves that ranks can share a model: its small form, split in two, must be exact, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from ....device.ranks import Ranks, run_ranks
from ..code import first_line
from ..survey import StatePart, Survey

SIZE = 2


def shared(survey: Survey, program: Callable[[Survey, Ranks], float], tolerance: float) -> Survey:
    """The survey of a model, with how ranks share it, or why they cannot. `program(survey, rank)` gives the largest
    difference of a logit on one of the ranks. Code that sees a share of the features where it needs them all may do
    with all of them, and code that goes on from states in ways that nobody knows with whole ones."""
    reason, divided = "", all(part.shape_on(SIZE) != part.shape for part in survey.state if part.shared is not None)
    whole_state = whole_states(survey.state)
    for state in dict.fromkeys((survey.state if divided else whole_state, whole_state)):
        for whole in (False, True):
            found = msgspec.structs.replace(survey, whole=whole, state=state)
            failed = _failure(partial(program, found), tolerance)
            if not failed:
                return found
            reason = reason or failed
    return msgspec.structs.replace(survey, one_rank=f"split in two, {reason}")


def whole_states(state: Iterable[StatePart]) -> tuple[StatePart, ...]:
    """The parts of a state, of which each rank has all."""
    return tuple(msgspec.structs.replace(part, shared=None) for part in state)


def _failure(program: Callable[[Ranks], float], tolerance: float) -> str:
    try:
        worst = max(run_ranks(SIZE, program))
    except Exception as error:
        return f"a small form of it fails: {first_line(error)}"
    return "" if worst <= tolerance else f"the logits of a small form of it differ by {worst:.1e}"
