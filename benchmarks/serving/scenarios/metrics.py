"""What does it cost to measure, in processor time for each token?

The benchmark `metrics`, whose row says it for two servers that take turns.
"""

from __future__ import annotations

from dataclasses import replace

from ...observation import metrics
from ..plan import Plan
from ..rows import Row, row

NAME = "metrics"


async def measure(plan: Plan) -> list[Row]:
    """Ratio, and what measuring takes by itself."""
    own = replace(metrics.FULL, tokens=plan.tokens, rounds=plan.rounds, tree=plan.tree, streams=2 * plan.streams)
    (found,) = await metrics.run(own)
    at = f"{own.streams} streams, {own.step_ms} ms steps"
    return [
        row(NAME, "server_off", found.off_us, "us a token", at=at),
        row(NAME, "server_on", found.on_us, "us a token", at=at),
        row(NAME, "ratio", found.ratio, at=at, bound="<= 1.01"),
        row(NAME, "observer_share", found.share, at=at, note="what measures, replayed by itself"),
    ]
