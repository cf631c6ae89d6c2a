"""How many completions of one token are answered in a second, client included?

Beside a paced worker that takes no time, so what is measured is the server, a launch for each request. The processor
time of a request says where it goes.
"""

from __future__ import annotations

import time

from ...opponents.sides import settings_of
from ...support.processes import processor_seconds
from ...support.server import serving
from ..client import HttpClient
from ..load import closed_loop
from ..plan import Plan
from ..rows import Row, row

NAME = "one_token"
MODEL = "paced:0ms"
CLIENTS = 32
WARM_SECONDS = 2.0
PROMPT = "Once upon a time there was"


async def measure(plan: Plan) -> list[Row]:
    """Rate, times and processor time."""
    async with serving(tree=plan.tree, **settings_of(MODEL)) as server, HttpClient(server.url) as client:
        request = client.request("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0})
        await closed_loop(client, lambda _: request, CLIENTS, WARM_SECONDS)
        before, own = processor_seconds(server.pid), time.process_time()
        loaded = await closed_loop(client, lambda _: request, CLIENTS, plan.seconds)
        own = time.process_time() - own
        after = processor_seconds(server.pid)
    at, done = f"{MODEL}, {CLIENTS} clients", len(loaded.served)
    used = {part: after[part] - before.get(part, 0.0) for part in after} | {"client": own}
    return [
        row(NAME, "rate", loaded.rate, "1/s", at=at, bound=">= 300", note=f"{len(loaded.answers) - done} refused"),
        row(NAME, "p50", loaded.of("ms", 50), "ms", at=at),
        row(NAME, "p99", loaded.of("ms", 99), "ms", at=at),
        *(
            row(NAME, f"processor_{part}", 1e3 * seconds / done, "ms a request", at=at)
            for part, seconds in used.items()
        ),
    ]
