"""How fast are the routes of OpenAI's API alone, under load, in overload, and beside other servers?

Each scenario is a file in `scenarios/`, whose docstring is its question. It starts its own servers and speaks to them
over HTTP, by a client that costs little (`client.py`). A row is one measure; where it has a bound, the verdict says
whether the bound is kept.
"""

from __future__ import annotations

from importlib import import_module

from ..report import noted
from .plan import FULL, QUICK, TINY, Plan
from .rows import Row

__all__ = ["FULL", "QUICK", "TINY", "Plan", "run"]


async def run(plan: Plan) -> list[Row]:
    """The rows of all scenarios; each is told on stderr when it is there."""
    measures = [import_module(f"{__package__}.scenarios.{name}").measure for name in plan.scenarios]
    return [noted(row) for measure in measures for row in await measure(plan)]
