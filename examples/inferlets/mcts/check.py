"""The search solves more puzzles than one sample, and than the best of as many samples as take its tokens."""

from __future__ import annotations

from examples.checks import Measure
from examples.inferlets.tree_of_thought.check import search
from pie_control.client import Client

MODELS = ["demo-reasoner"]
PAPER_LINES = 0  # the paper has none
LEAST = 6


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    measures, best = await search(client, "mcts", problems, seed)
    return [*measures, Measure("solved by the search above the best of samples", best, at_least=0.01)]
