"""The whole system: concurrent inferlets that stream tokens to a client, as in `tpot`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pie_control.client import Client

from ..support.generation import Generated, run_inferlets
from ..support.guests import source
from ..support.server import serving
from .plan import Plan, prompts
from .results import Measured, log, tell
from .shapes import SHAPES


def run(model: str, folder: Path, plan: Plan) -> None:
    """Sends a row for each number of inferlets."""
    asyncio.run(_serve(model, folder, plan))


async def _serve(model: str, folder: Path, plan: Plan) -> None:
    settings: dict[str, Any] = {"model": folder, "device": plan.device, "attention": plan.attention}
    async with serving(**settings, dtype="bfloat16", pages=plan.pages) as server, Client(server.url) as client:
        log(f"{model}: served")
        program = await client.upload(source("generate"), "generate")
        for concurrent in plan.concurrent:
            texts = prompts(concurrent, plan.prompt, SHAPES[model].vocab_size)
            await run_inferlets(client, program, texts, plan.warm_up, at_once=True)
            runs = [await run_inferlets(client, program, texts, plan.tokens, at_once=True) for _ in range(plan.rounds)]
            tell([_row(model, concurrent, min(runs, key=lambda one: one.per_token))])


def _row(model: str, concurrent: int, best: Generated) -> Measured:
    note = f"batch {best.waves.batch:.1f}, worker {best.waves.worker:.3f} ms"
    return Measured(model, "pie", concurrent, round(best.per_token, 4), round(best.tokens_per_second, 1), note)
