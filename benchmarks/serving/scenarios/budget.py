"""Does a tenant that floods get the tokens of its budget, and does another one notice?

The flood has streams that never end while they may run, and asks again half a second after each refusal. It begins
with a bucket that is full. Tokens are those that `--metrics` counts, which knows nothing of budgets. The other tenant
asks for one completion after the other, first alone, then beside the flood. The worker is paced, so that what the other
one notices is the server and the waves.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ...opponents.sides import settings_of
from ...support.server import serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, Loaded, closed_loop
from ..plan import Plan
from ..rows import Row, over, row

NAME = "budget"
MODEL = "paced:10ms+20us"
A_MINUTE = 6000
STREAMS, LONG, SHORT = 16, 2000, 32
"""Streams of the flood, and tokens of its requests and of the other tenant's."""
PAUSE_SECONDS = 0.5
BESIDE = "beside over alone"
COUNTED = re.compile(rb'^pie_tokens_total\{[^}]*tenant="flood"[^}]*\} ([\d.e+]+)', re.MULTILINE)
MINUTE = 60.0


async def measure(plan: Plan) -> list[Row]:
    """Tokens of the flood in two minutes, or as long as the plan says; times of the other tenant."""
    seconds, tokens = plan.overload_seconds, {name: secrets.token_urlsafe(24) for name in ("flood", "calm")}
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-") as folder:
        file = Path(folder) / "tenants.toml"
        file.touch(0o600)
        tables = "\n".join(f'[tenants.{name}]\ntokens = ["{token}"]' for name, token in tokens.items())
        file.write_text(tables.replace("[tenants.calm]", f"tokens_per_minute = {A_MINUTE}\n[tenants.calm]"))
        settings = {**settings_of(MODEL), "tenants": file, "metrics": True}
        async with (
            serving(tree=plan.tree, **settings) as server,
            HttpClient(server.url, tokens["flood"]) as flood,
            HttpClient(server.url, tokens["calm"]) as calm,
        ):
            await _ask(calm, 1.0)  # warm
            alone = await _ask(calm, min(seconds, plan.seconds))
            async with _flooding(flood):
                first, beside = await asyncio.gather(_spent(calm, seconds), _ask(calm, seconds))
                second, _ = await asyncio.gather(_spent(calm, seconds), _ask(calm, seconds))
    at = f"{A_MINUTE} tokens a minute, {STREAMS} streams, {seconds:g} s"
    share = A_MINUTE * seconds / MINUTE
    is_minute = seconds >= MINUTE
    return [
        row(NAME, "first_minute", first / share, at=at, bound="<= 1.02" if is_minute else ""),
        row(NAME, "second_minute", second / share, at=at, bound="<= 1.02" if is_minute else ""),
        row(NAME, "second_minute_at_least", second / share, at=at, bound=">= 0.98" if is_minute else ""),
        row(NAME, "others_rate", over(beside.rate, alone.rate), at=at, bound=">= 0.95" if is_minute else ""),
        *(
            row(NAME, f"others_{what}_p50", over(beside.of(what, 50), alone.of(what, 50)), at=at, note=BESIDE)
            for what in ("ttft", "tpot")
        ),
    ]


async def _ask(client: HttpClient, seconds: float) -> Loaded:
    body = {"prompt": "A dog went to the river", "max_tokens": SHORT, **STREAM, **GREEDY}
    request = client.request("/v1/completions", body)
    return await closed_loop(client, lambda _: request, 1, seconds)


@contextlib.asynccontextmanager
async def _flooding(client: HttpClient) -> AsyncIterator[None]:
    request = client.request("/v1/completions", {"prompt": "Again and again", "max_tokens": LONG, **STREAM, **GREEDY})

    async def one() -> None:
        while True:
            if (await client.send(request)).status != 200:
                await asyncio.sleep(PAUSE_SECONDS)

    tasks = [asyncio.create_task(one()) for _ in range(STREAMS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _spent(client: HttpClient, seconds: float) -> float:
    """Tokens of the flood in this time."""
    before, began = await _counted(client), time.perf_counter()
    await asyncio.sleep(began + seconds - time.perf_counter())
    return await _counted(client) - before


async def _counted(client: HttpClient) -> float:
    return sum(float(found) for found in COUNTED.findall((await client.get("/metrics")).body()))
