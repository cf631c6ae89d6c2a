"""What does a prompt cost whose beginning was computed before, and what do many requests with one beginning gain?

The same prompt of 1,000 tokens twice, alone: the time to the first text of the second over that of the first. Then
requests at a time with a common beginning, and with none, in turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...opponents.sides import settings_of
from ...support.samples import median
from ...support.server import serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, Timed, at_once, in_turn
from ..plan import Plan
from ..rows import Row, row

NAME = "prefixes"
PROMPT, OWN = 1000, 32
"""Tokens of the prompt, or of the common beginning; and behind it."""
TOKENS = 8
REQUESTS = 16
PAIRS = 3
"""In a round."""
LETTERS = (65, 250)
"""Token ids of all models that are letters and words."""


class _Prompts:
    """Prompts that nobody has sent before."""

    def __init__(self, client: HttpClient, model: str) -> None:
        self._client = client
        self._model = model
        self._random = np.random.default_rng(0)

    def tokens(self, count: int) -> list[int]:
        found: list[int] = self._random.integers(*LETTERS, count).tolist()
        return found

    def request(self, prompt: list[int]) -> bytes:
        asked: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": TOKENS, **GREEDY, **STREAM}
        return self._client.request("/v1/completions", asked)

    async def twice(self) -> list[Timed]:
        return await in_turn(self._client, 2 * [self.request(self.tokens(PROMPT))])

    async def many(self, is_shared: bool) -> list[Timed]:
        """Requests at once, behind one that has the beginning."""
        beginning = self.tokens(PROMPT)
        await in_turn(self._client, [self.request(beginning)])
        beginnings = [beginning if is_shared else self.tokens(PROMPT) for _ in range(REQUESTS)]
        return await at_once(self._client, [self.request([*one, *self.tokens(OWN)]) for one in beginnings])


async def measure(plan: Plan) -> list[Row]:
    """Ratios, and how much came from the cache."""
    async with serving(tree=plan.tree, **settings_of(plan.model)) as server, HttpClient(server.url) as client:
        model = (await client.get("/v1/models")).value()["data"][0]["id"]
        prompts = _Prompts(client, model)
        await prompts.twice()  # warm
        pairs = [await prompts.twice() for _ in range(PAIRS * plan.rounds)]
        rounds = [[await prompts.many(is_shared) for is_shared in (True, False)] for _ in range(plan.rounds)]
    twice = f"{plan.model}, {PROMPT} tokens twice"
    many = f"{plan.model}, {REQUESTS} at once, {PROMPT} tokens in common, {OWN} of their own"
    return [
        row(NAME, "ttft_first", median([first.ttft for first, _ in pairs]), "ms", at=twice),
        row(NAME, "ttft_second", median([second.ttft for _, second in pairs]), "ms", at=twice),
        row(NAME, "ttft_ratio", median([two.ttft / one.ttft for one, two in pairs]), at=twice, bound="<= 0.2"),
        row(NAME, "cached", median([second.cached for _, second in pairs]) / PROMPT, at=twice),
        row(NAME, "ttft_shared", median([one.ttft for shared, _ in rounds for one in shared]), "ms", at=many),
        row(NAME, "ttft_ratio", median([_middle(one) / _middle(two) for one, two in rounds]), at=many),
        row(NAME, "cached", median([one.cached for shared, _ in rounds for one in shared]) / (PROMPT + OWN), at=many),
    ]


def _middle(answers: list[Timed]) -> float:
    return median([one.ttft for one in answers])
