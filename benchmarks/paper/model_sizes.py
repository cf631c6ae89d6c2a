"""How much does Pie add to the time per output token, for models of several sizes (Table 4)?

It is `tpot` with `concurrent` inferlets on models that are larger and larger: what Pie adds is about the same for all.
The paper's table is of text completion, which is `piped` here; by `stream` the program reads each piece. With fewer
tokens, beginnings and ends weigh more than steps. Small models have many rounds, as their rows change most from one to
the next.
"""

from __future__ import annotations

from ..control import tpot
from ..support.models.random_models import LLAMA_1B, LLAMA_160M

SIZES = (tpot.DEMO, "demo-reasoner", LLAMA_160M, LLAMA_1B)
FULL = tpot.Plan(SIZES, ("piped", "stream"), (32,), prompt=64, tokens=192, rounds=3, seconds=60.0)
QUICK = tpot.Plan((tpot.DEMO, LLAMA_160M), ("piped",), (32,), prompt=64, tokens=192, rounds=2, seconds=30.0)


async def run(plan: tpot.Plan) -> list[tpot.Row]:
    """A row for each model."""
    return await tpot.run(plan)
