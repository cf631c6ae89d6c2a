"""How do tokens a second and the time to the first one compare with other servers, on the same checkpoint?

Requests come at once, each with a text of its own; the time runs from the first to the end of the last, prompts
included. Pie and each opponent take turns behind a trial with other texts; both run meanwhile, one of them idle.
Opponents are those of `--peers`, which compute on the `--device` that Pie has, and the server at `--opponent URL`. One
that does not run here has a row that says so.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...opponents.client import OpponentError
from ...opponents.sides import settings_of
from ...support.samples import median, percentile
from ...support.server import serving
from ..client import HttpClient
from ..load import STREAM, Timed, at_once
from ..plan import Plan
from ..rows import Row, row
from ..servers import GREEDY, PEERS, CannotServeError, Server, Start, at_address

NAME = "opponents"
WANTED: Mapping[str, tuple[str, str]] = {"llama.cpp": (">= 1.2", "<= 0.8"), "transformers": (">= 1.3", "")}
"""Tokens a second, and the time to the first token of the slowest in a hundred, over those of an opponent."""
PROMPT = 128
"""Letters: a token each, of models without merged tokens."""
TRIED = 2
"""Requests of the trial before the first turn."""
SPARE = 128
"""Tokens for which an opponent has room beyond."""


@dataclass(frozen=True)
class Turn:
    """Of one side."""

    tokens_s: float
    ttft_p99: float
    tokens: int

    @classmethod
    def of(cls, answers: list[Timed], seconds: float) -> Turn:
        tokens = sum(one.tokens for one in answers)
        return cls(tokens / seconds, percentile([one.ttft for one in answers], 99), tokens)


class _Side:
    def __init__(self, client: HttpClient, server: Server, plan: Plan) -> None:
        self._client = client
        self._fields = server.fields
        self._tokens = plan.peer_tokens

    async def turn(self, texts: list[str]) -> Turn:
        requests = [self._client.request("/v1/completions", self._asked(text)) for text in texts]
        start = time.perf_counter()
        answers = await at_once(self._client, requests)
        return Turn.of(answers, time.perf_counter() - start)

    def _asked(self, text: str) -> dict[str, Any]:
        return {"prompt": text, "max_tokens": self._tokens, "stream": STREAM["stream"], **self._fields}


def _texts(count: int, numbers: Iterator[int]) -> list[str]:
    """Of letters that nobody has sent before."""
    return ["".join(random.Random(next(numbers)).choices(string.ascii_lowercase, k=PROMPT)) for _ in range(count)]


async def measure(plan: Plan) -> list[Row]:
    """Rows for each opponent and number of requests at once."""
    peers: dict[str, Start] = {name: PEERS[name] for name in plan.peers}
    if plan.opponent:
        peers[plan.opponent] = lambda *_: at_address(plan.opponent)
    device = plan.device if plan.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    settings = {**settings_of(plan.peer_model), "device": device}
    async with serving(tree=plan.tree, **settings) as server, HttpClient(server.url) as client:
        pie = _Side(client, Server(server.url, GREEDY), plan)
        return [row for name, start in peers.items() for row in await _against(pie, name, start, device, plan)]


async def _against(pie: _Side, name: str, start: Start, device: str, plan: Plan) -> list[Row]:
    at = f"{plan.peer_model} on {device}, {PROMPT} + {plan.peer_tokens} tokens, against {name}"
    faster, sooner = WANTED.get(name, ("", ""))
    rows, numbers = [], iter(range(1 << 30))
    try:
        async with (
            start(plan.peer_model, device, max(plan.peer_streams), PROMPT + plan.peer_tokens + SPARE) as server,
            HttpClient(server.url) as client,
        ):
            other = _Side(client, server, plan)
            for side in (pie, other):
                await side.turn(_texts(TRIED, numbers))
            for streams in plan.peer_streams:
                texts = [_texts(streams, numbers) for _ in range(plan.peer_rounds)]
                turns = [(await pie.turn(each), await other.turn(each)) for each in texts]
                rows += _rows(f"{at}, {streams} at once", turns, faster, sooner)
    except (CannotServeError, OpponentError) as error:
        return [*rows, row(NAME, "tokens_ratio", None, at=at, bound=faster, note=str(error))]
    return rows


def _rows(at: str, turns: list[tuple[Turn, Turn]], faster: str, sooner: str) -> list[Row]:
    mine, its = ([turn[side] for turn in turns] for side in (0, 1))
    counts = f"tokens {sorted({turn.tokens for turn in mine})} and {sorted({turn.tokens for turn in its})}"
    ratio = median([one.tokens_s / two.tokens_s for one, two in turns])
    first = median([one.ttft_p99 / two.ttft_p99 for one, two in turns])
    return [
        row(NAME, "tokens_s", median([turn.tokens_s for turn in mine]), "1/s", at=at, note=counts),
        row(NAME, "tokens_s_opponent", median([turn.tokens_s for turn in its]), "1/s", at=at),
        row(NAME, "tokens_ratio", ratio, at=at, bound=faster),
        row(NAME, "ttft_p99_ratio", first, at=at, bound=sooner),
    ]
