"""The worker alone, in two ways: each wave is awaited before the next is made (the closed loop), or the next is
launched while one runs, as the scheduler does when inferlets run ahead."""

from __future__ import annotations

from pathlib import Path

from pie_inference.config import WorkerConfig
from pie_inference.serving.loop import WAVES_IN_FLIGHT

from ..support.closed_loop import ClosedLoop
from .plan import Plan, prompts
from .results import Measured, log, row, tell


def run(model: str, folder: Path, plan: Plan) -> None:
    """Sends rows of both ways for each number of sequences."""
    loop = ClosedLoop(WorkerConfig(folder, model, device=plan.device, dtype="bfloat16", pages=plan.pages))
    log(f"{model}: loaded on {loop.description.device}")
    for concurrent in plan.concurrent:
        tell(_measure(model, loop, concurrent, plan))


def _measure(model: str, loop: ClosedLoop, concurrent: int, plan: Plan) -> list[Measured]:
    texts = prompts(concurrent, plan.prompt, loop.description.vocab_size)
    loop.generate(texts, plan.warm_up)  # compiles, and records the graph of this size
    ways = {"closed loop": 0, "closed loop, ahead": WAVES_IN_FLIGHT - 1}
    found = {way: [loop.generate(texts, plan.tokens, ahead) for _ in range(plan.rounds)] for way, ahead in ways.items()}
    same = len({one.tokens.tobytes() for runs in found.values() for one in runs}) == 1
    note = f"{loop.kernels(concurrent)}{'' if same else ', tokens differ between runs'}"
    return [
        row(model, way, concurrent, min(one.seconds_per_token for one in runs), note) for way, runs in found.items()
    ]
