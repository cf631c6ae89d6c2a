"""What becomes of ten times the load that a server carries?

Its capacity first, and once more at the end, since machines change their pace: as many clients as it serves at a time.
Between the two requests at random times, ten times as many. Nothing should be lost by it: what is served, how fast the
rest is refused, and whether what was taken ends in its time, which is the longest wait beside what the slowest took
without others.
"""

from __future__ import annotations

from ...opponents.sides import settings_of
from ...support.samples import percentile
from ...support.server import serving
from ..client import HttpClient
from ..load import GREEDY, Loaded, closed_loop, poisson
from ..plan import Plan
from ..rows import Row, row

NAME = "overload"
TIMES = 10
SERVING, WAIT_SECONDS = 16, 2.0
"""Requests that are answered at a time, and how long others wait at most."""
TOKENS = 256
CAPACITY_SECONDS = 8.0


async def measure(plan: Plan) -> list[Row]:
    """Capacity, goodput, times."""
    bounds = {"max_serving": SERVING, "max_wait_seconds": WAIT_SECONDS}
    settings = {**settings_of(plan.model), **bounds, "max_connections_per_client": 768}
    async with serving(tree=plan.tree, **settings) as server, HttpClient(server.url) as client:

        def request(number: int) -> bytes:
            asked = {"prompt": f"{number} times a dog went to the river", "max_tokens": TOKENS, **GREEDY}
            return client.request("/v1/completions", asked)

        await closed_loop(client, request, SERVING, 1.0)  # warm
        before = await closed_loop(client, request, SERVING, min(CAPACITY_SECONDS, plan.overload_seconds))
        loaded = await poisson(client, request, TIMES * before.rate, plan.overload_seconds)
        behind = await closed_loop(client, request, SERVING, before.seconds)
    at = f"{plan.model}, {TOKENS} tokens, {SERVING} at a time"
    flooded = f"{at}, {TIMES} x the load for {plan.overload_seconds:g} s"
    refused = [one for one in loaded.answers if not one.is_served]
    times = [one.ms for one in refused] or [0.0]
    alone = Loaded([*before.answers, *behind.answers], before.seconds + behind.seconds)
    limit = 1e3 * WAIT_SECONDS + alone.of("ms", 99)
    statuses = sorted({one.status for one in refused})
    return [
        row(NAME, "capacity", alone.rate, "1/s", at=at, note=f"{before.rate:.1f} before, {behind.rate:.1f} behind"),
        row(NAME, "goodput_ratio", loaded.rate / alone.rate, at=flooded, bound=">= 0.9"),
        row(NAME, "refused", len(refused), at=flooded, note=f"of {len(loaded.answers)}, status {statuses}"),
        row(NAME, "refusal_p50", percentile(times, 50), "ms", at=flooded),
        row(NAME, "refusal_p99", percentile(times, 99), "ms", at=flooded, bound="<= 50"),
        row(NAME, "taken_p99", loaded.of("ms", 99), "ms", at=flooded, bound=f"<= {limit:.0f}"),
    ]
