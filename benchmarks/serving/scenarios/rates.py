"""How long do requests take that come at random times, at shares of what the server carries?

Its capacity first: as many clients as `--streams`, one request after the other. Then Poisson arrivals at shares of it.
A request is good if its first token comes within `--slo-ttft-ms` and each further one within `--slo-tpot-ms`.
"""

from __future__ import annotations

from ...opponents.sides import settings_of
from ...support.server import serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, Loaded, closed_loop, poisson
from ..plan import Plan
from ..rows import Row, row

NAME = "rates"
TOKENS = 64
STORY = "one day a dog went to the river and looked at the boats, and then"
WARM_SECONDS = 1.0


async def measure(plan: Plan) -> list[Row]:
    """Rows for each share of the capacity."""
    async with serving(tree=plan.tree, **settings_of(plan.model)) as server, HttpClient(server.url) as client:

        def request(number: int) -> bytes:
            asked = {"prompt": f"{number}: {STORY}", "max_tokens": TOKENS, **GREEDY, **STREAM}
            return client.request("/v1/completions", asked)

        await closed_loop(client, request, plan.streams, WARM_SECONDS)
        full = await closed_loop(client, request, plan.streams, plan.seconds)
        loads = {percent: percent / 100 * full.rate for percent in plan.percents}
        found = {percent: await poisson(client, request, rate, plan.seconds) for percent, rate in loads.items()}
    at = f"{plan.model}, {TOKENS} tokens, {plan.streams} clients"
    rows = [row(NAME, "capacity", full.rate, "1/s", at=at), *_rows(full, plan, at)]
    for percent, loaded in found.items():
        rows += _rows(loaded, plan, f"{plan.model}, {TOKENS} tokens, {percent} % of the capacity")
    return rows


def _rows(loaded: Loaded, plan: Plan, at: str) -> list[Row]:
    good = [one for one in loaded.served if one.ttft <= plan.slo_ttft_ms and one.tpot <= plan.slo_tpot_ms]
    slo = f"of {len(loaded.answers)}; within {plan.slo_ttft_ms} and {plan.slo_tpot_ms} ms"
    return [
        row(NAME, "ttft_p50", loaded.of("ttft", 50), "ms", at=at),
        row(NAME, "ttft_p99", loaded.of("ttft", 99), "ms", at=at),
        row(NAME, "tpot_p50", loaded.of("tpot", 50), "ms", at=at),
        row(NAME, "tpot_p99", loaded.of("tpot", 99), "ms", at=at),
        row(NAME, "tokens_s", loaded.tokens_s, "1/s", at=at),
        row(NAME, "goodput", len(good) / loaded.seconds, "1/s", at=at, note=slo),
    ]
