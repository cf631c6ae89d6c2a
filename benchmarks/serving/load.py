"""Loads: requests that follow each other, requests that come at random times, and what became of them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..opponents.client import OpponentError
from ..support.samples import percentile
from .client import Answer, HttpClient

Make = Callable[[int], bytes]
"""The request of a number."""
GREEDY = {"temperature": 0, "ignore_eos": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Timed:
    """One answer. Times in milliseconds: `ttft` until the first text, `tpot` for each token behind it. `tokens` were
    generated; `usage` is as the server told it; texts came at `times`, in seconds."""

    status: int
    ms: float
    ttft: float
    tpot: float
    tokens: int
    usage: dict[str, Any]
    text: str
    times: Sequence[float] = ()

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were not computed."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def is_served(self) -> bool:
        return self.status == 200


def timed(answer: Answer) -> Timed:
    """Reads an answer of completions or chat completions, streamed or whole."""
    ms = 1e3 * answer.seconds
    if answer.status != 200:
        return Timed(answer.status, ms, ms, 0.0, 0, {}, answer.body().decode(errors="replace"))
    events = list(answer.events())
    if not events:
        value = answer.value()
        whole: dict[str, Any] = value.get("usage") or {}
        return Timed(200, ms, ms, 0.0, int(whole.get("completion_tokens", 0)), whole, _text(value))
    texts = [(when, _text(event)) for when, event in events]
    times = [when for when, text in texts if text] or [when for when, _ in texts]
    told = [event["usage"] for _, event in events if event.get("usage")]
    usage: dict[str, Any] = told[-1] if told else {}
    tokens = int(usage["completion_tokens"]) if usage else len(times)
    ttft, tpot = 1e3 * (times[0] - answer.began), 1e3 * (times[-1] - times[0]) / max(1, tokens - 1)
    return Timed(200, ms, ttft, tpot, tokens, usage, "".join(text for _, text in texts), times)


def served(one: Timed) -> Timed:
    """Raises OpponentError if it was refused."""
    if not one.is_served:
        raise OpponentError(f"a request was answered with {one.status}: {one.text[:300]}")
    return one


def _text(event: dict[str, Any]) -> str:
    """Of the first choice."""
    for choice in event.get("choices") or ():
        part = choice.get("delta") or choice.get("message") or choice
        return str(part.get("text") or part.get("content") or "")
    return ""


async def in_turn(client: HttpClient, requests: Iterable[bytes]) -> list[Timed]:
    """One after the other. Raises OpponentError if one is refused."""
    return [served(timed(await client.send(one))) for one in requests]


async def at_once(client: HttpClient, requests: Iterable[bytes]) -> list[Timed]:
    """All at the same moment. Raises OpponentError if one is refused."""
    return [served(timed(answer)) for answer in await asyncio.gather(*(client.send(one) for one in requests))]


@dataclass(frozen=True)
class Loaded:
    """What became of a load that lasted `seconds`."""

    answers: Sequence[Timed]
    seconds: float

    @property
    def served(self) -> list[Timed]:
        return [one for one in self.answers if one.is_served]

    @property
    def rate(self) -> float:
        """Requests that were served, a second."""
        return len(self.served) / self.seconds

    @property
    def tokens_s(self) -> float:
        return sum(one.tokens for one in self.served) / self.seconds

    def of(self, what: str, percent: float) -> float:
        """A percentile of `ms`, `ttft` or `tpot` of what was served."""
        return percentile([getattr(one, what) for one in self.served] or [0.0], percent)


async def closed_loop(client: HttpClient, make: Make, clients: int, seconds: float) -> Loaded:
    """So many clients, each of which sends its next request when the one before is answered."""
    numbers, answers = itertools.count(), []
    start = time.perf_counter()
    end = start + seconds

    async def one() -> None:
        while time.perf_counter() < end:
            answers.append(await client.send(make(next(numbers))))

    await asyncio.gather(*(one() for _ in range(clients)))
    took = time.perf_counter() - start
    return Loaded([timed(answer) for answer in answers], took)


async def poisson(client: HttpClient, make: Make, rate: float, seconds: float) -> Loaded:
    """Requests that come at random times, `rate` a second, whatever becomes of those before. Times count from when a
    request was due."""
    chance, due = random.Random(0), 0.0
    dues = []
    while (due := due + chance.expovariate(rate)) < seconds:
        dues.append(due)
    start = time.perf_counter()
    tasks = []
    for number, due in enumerate(dues):
        if (wait := start + due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(client.send(make(number), start + due)))
    answers = await asyncio.gather(*tasks)
    took = max(seconds, time.perf_counter() - start)
    return Loaded([timed(answer) for answer in answers], took)
