"""Proves that ranks can share a model: its small form, split in two, must be exact, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from ....device.ranks import Ranks, run_ranks
from ..code import first_line
from ..survey import Survey

SIZE = 2


def shared(survey: Survey, program: Callable[[bool, Ranks], float], tolerance: float) -> Survey:
    """The survey of a model, with how ranks share it, or why they cannot. `program(whole, rank)` gives the largest
    difference of a logit on one of the ranks, `whole` as in `Survey`: code that sees a share of the features where it
    needs them all may do with all of them."""
    reason = ""
    for whole in (False, True):
        failed = _failure(partial(program, whole), tolerance)
        if not failed:
            return msgspec.structs.replace(survey, whole=whole)
        reason = reason or failed
    return msgspec.structs.replace(survey, one_rank=f"split in two, {reason}")


def _failure(program: Callable[[Ranks], float], tolerance: float) -> str:
    try:
        worst = max(run_ranks(SIZE, program))
    except Exception as error:
        return f"a small form of it fails: {first_line(error)}"
    return "" if worst <= tolerance else f"the logits of a small form of it differ by {worst:.1e}"
