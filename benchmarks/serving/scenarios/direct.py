"""What does the route add to the same program, launched by itself in a session?

Both stream the same chat completion, in turns on one server: the time to the first text alone, and the time of a token
with many streams at once. The body is a blob that is uploaded before. The server's processor time for a token is
beside: the clients are not the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from pie_control.client import Client
from pie_control.gateway.programs import FOLDER

from ...opponents.sides import settings_of
from ...support.processes import processor_seconds
from ...support.samples import median, together
from ...support.server import Server, serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, served, timed
from ..plan import Plan
from ..rows import Row, row
from ..session import Session, session

NAME = "direct"
ROUTE, PROGRAM = "/v1/chat/completions", "chat_completions"
PAIRS = 10
"""Of single requests, in a round."""
FEW_TOKENS = 8

Way = Callable[[int, int], Awaitable[list[float]]]
"""Streams the answer to the request of a number, so many tokens: when it was sent, and then when each text came, in
seconds."""
TOO_SHORT = "streams ran together for less than half of their tokens: take more --tokens"


@dataclass(frozen=True)
class _Ways:
    http: HttpClient
    session: Session
    program: str
    model: str

    async def over_http(self, number: int, tokens: int) -> list[float]:
        answer = await self.http.send(self.http.raw_request(ROUTE, self._body(number, tokens)))
        return [answer.began, *served(timed(answer)).times]

    async def by_itself(self, number: int, tokens: int) -> list[float]:
        blob = await self.session.upload(self._body(number, tokens))
        environment = {"route": ROUTE, "request_id": f"r{number}", "model": self.model, "adapter": ""}
        launched = await self.session.launch(self.program, environment, {"request": blob})
        if not launched.arrivals:
            raise RuntimeError(f"the program sent nothing: {launched.result}")
        texts = [when for when, text in launched.arrivals if _has_text(text)]
        return [launched.began, *(texts or [when for when, _ in launched.arrivals])]

    def _body(self, number: int, tokens: int) -> bytes:
        """A message that begins with its number, so no two prompts share their beginning."""
        messages = [{"role": "user", "content": f"{number} Tell me of a dog and a boat."}]
        asked = {"model": self.model, "messages": messages, "max_tokens": tokens, **GREEDY, **STREAM}
        return msgspec.json.encode(asked)


def _has_text(event: str) -> bool:
    return any(choice["delta"].get("content") for choice in msgspec.json.decode(event)["choices"])


async def measure(plan: Plan) -> list[Row]:
    """Differences, ratios, and processor time."""
    settings = settings_of(plan.model)
    async with (
        serving(tree=plan.tree, **settings) as server,
        Client(server.url) as client,
        HttpClient(server.url) as http,
        session(server.url) as own,
    ):
        program = await client.upload((FOLDER / PROGRAM / f"{PROGRAM}.py").read_bytes(), "chat")
        model = (await http.get("/v1/models")).value()["data"][0]["id"]
        ways = _Ways(http, own, program, model)
        both, numbers = (ways.over_http, ways.by_itself), itertools.count()
        for way in both:
            await _streams(way, numbers, plan.streams, FEW_TOKENS)  # warm
        pairs = [[await _first(way, next(numbers)) for way in both] for _ in range(PAIRS * plan.rounds)]
        rounds = [[await _tokens(server, way, numbers, plan) for way in both] for _ in range(plan.rounds)]
    alone, many = f"{plan.model}, 1 at a time", f"{plan.model}, {plan.streams} at once"
    over_http, by_itself = (median([pair[side] for pair in pairs]) for side in (0, 1))
    tpots = [(mine[0], its[0]) for mine, its in rounds if mine[0] and its[0]]
    note = "" if tpots else TOO_SHORT
    ratio = median([mine / its for mine, its in tpots]) if tpots else None
    return [
        row(NAME, "ttft_http", over_http, "ms", at=alone),
        row(NAME, "ttft_by_itself", by_itself, "ms", at=alone),
        row(NAME, "ttft_added", over_http - by_itself, "ms", at=alone, bound="<= 2"),
        row(NAME, "tpot_http", median([mine for mine, _ in tpots]) if tpots else None, "ms", at=many, note=note),
        row(NAME, "tpot_ratio", ratio, at=many, bound="<= 1.02", note=note),
        row(NAME, "server_http", median([mine[1] for mine, _ in rounds]), "us a token", at=many),
        row(NAME, "server_ratio", median([mine[1] / its[1] for mine, its in rounds]), at=many),
    ]


async def _first(way: Way, number: int) -> float:
    """Milliseconds to the first text."""
    began, first, *_ = await way(number, FEW_TOKENS)
    return 1e3 * (first - began)


async def _streams(way: Way, numbers: Iterator[int], streams: int, tokens: int) -> list[list[float]]:
    """When texts came, of each stream."""
    found = await asyncio.gather(*(way(next(numbers), tokens) for _ in range(streams)))
    return [times for _, *times in found]


async def _tokens(server: Server, way: Way, numbers: Iterator[int], plan: Plan) -> tuple[float | None, float]:
    """Milliseconds for a text while all streams run, and microseconds of processor for a token, of the server without
    its worker."""
    before = processor_seconds(server.pid)
    streams = await _streams(way, numbers, plan.streams, plan.tokens)
    after = processor_seconds(server.pid)
    used = sum(after[part] - before.get(part, 0.0) for part in ("control", "hosts") if part in after)
    try:
        tpot: float | None = 1e3 * together(streams)
    except RuntimeError:
        tpot = None
    return tpot, 1e6 * used / (plan.streams * plan.tokens)
