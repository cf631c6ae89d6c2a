"""The worker alone: each wave is awaited before the next is made (the closed loop), with the most probable tokens or
with drawn ones; or the next is launched while one runs, as the scheduler does when inferlets run ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pie_inference.config import WorkerConfig
from pie_inference.serving.loop import WAVES_IN_FLIGHT

from ..support.closed_loop import ClosedLoop
from .plan import Plan, prompts
from .results import Measured, log, row, tell

TOP_P = {"temperature": 0.8, "top_p": 0.9}


def run(model: str, folder: Path, plan: Plan) -> None:
    """Sends rows of all ways for each number of sequences."""
    options: dict[str, Any] = {"device": plan.device, "attention": plan.attention, "pages": plan.pages}
    loop = ClosedLoop(WorkerConfig(folder, model, dtype="bfloat16", **options))
    log(f"{model}: loaded on {loop.description.device}")
    for concurrent in plan.concurrent:
        tell(_measure(model, loop, concurrent, plan))


def _measure(model: str, loop: ClosedLoop, concurrent: int, plan: Plan) -> list[Measured]:
    texts = prompts(concurrent, plan.prompt, loop.description.vocab_size)
    loop.generate(texts, plan.warm_up)  # compiles, and records the graph of this size
    loop.generate(texts, plan.warm_up, sampler=TOP_P)
    ways: dict[str, dict[str, Any]] = {
        "closed loop": {},
        "closed loop, ahead": {"ahead": WAVES_IN_FLIGHT - 1},
        "closed loop, top-p": {"sampler": TOP_P},
    }
    found = {way: [loop.generate(texts, plan.tokens, **how) for _ in range(plan.rounds)] for way, how in ways.items()}
    same = len({one.tokens.tobytes() for way, how in ways.items() if "sampler" not in how for one in found[way]}) == 1
    note = f"{loop.kernels(concurrent)}{'' if same else ', tokens differ between runs'}"
    return [
        row(model, way, concurrent, min(one.seconds_per_token for one in runs), note) for way, runs in found.items()
    ]
