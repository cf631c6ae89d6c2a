"""Is Pie as fast as a server without programs, at what that can do, too (Figure 8)?

`completion`: greedy tokens behind a prompt of its own. `prefix_caching`: the prompt begins as all others do. `n`:
several samples of one prompt. `json_schema`: a text that keeps to a schema. Four strategies of several steps are
measured without and with a round trip: `skeleton`, an outline and four points of it at once; `tree`, three levels of
three thoughts, one of which is kept; `recursion`, calls of two calls each, three levels deep; `graph`, three tries at
each of four parts, which are merged two by two. Pie runs a program for each request: in Python, in instances that serve
one launch after the other (`reuse`), and of what is one step also in Rust, which gives the same tokens. The opponent
(`closed`, unless `--opponent URL` names another one) answers it over HTTP on kept connections. Whole answers are
measured, not streams. What only programs do has no opponent: these rows are examples of this repository on the demo
model, as their folders say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..opponents import strategies
from ..opponents.requests import Request, compare, run_many, seconds_of
from ..opponents.sides import Sides, check_models, new_prompt, servers, sides
from ..plans import refuse_unknown
from ..report import noted
from ..support.guests import EXAMPLES, upload_both
from ..support.samples import median

PLAIN = ("completion", "prefix_caching", "n", "json_schema")
FEATURES = (*PLAIN, *strategies.NAMES)
PROGRAMS = ("attention_sink", "beam_search", "heavy_hitters", "prefix_tree", "watermarking")
"""Examples of what no server of completions of today offers without changes to itself (but beams, in some)."""
SAMPLES = 4
UNSHARED = 100
"""Tokens of a prompt that is not looked for, and so runs in the same way each time."""
NAME = {"type": "string", "minLength": 3, "maxLength": 6}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string", "minLength": 3, "maxLength": 6},
            "minItems": 4,
            "maxItems": 4,
        },
        "old": {"type": "boolean"},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
    },
    "required": ["names", "old", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Plan:
    """Prompts have `prompt` tokens, `tokens` are generated. Latencies are medians of `rounds` requests alone, which
    both sides run in turns; rates are medians of three turns of `requests`, `concurrent` at a time. `programs`
    run on Pie alone, and their rate is that of one turn."""

    models: tuple[str, ...]
    features: tuple[str, ...]
    programs: tuple[str, ...]
    rounds: int
    concurrent: int
    requests: int
    prompt: int = 256
    tokens: int = 64
    round_trip: int = 30  # of strategies
    device: str = "auto"
    opponent: str = ""

    def __post_init__(self) -> None:
        refuse_unknown("feature", self.features, FEATURES)
        refuse_unknown("program", self.programs, PROGRAMS)
        check_models(self.models)


FULL = Plan(("demo", "random-160m"), FEATURES, PROGRAMS, rounds=9, concurrent=32, requests=64)
QUICK = Plan(("demo",), FEATURES, PROGRAMS[:2], rounds=5, concurrent=16, requests=32)


@dataclass(frozen=True)
class Row:
    """`latency`, `rate`: Pie's over the opponent's; to be reached are 1.05 and 0.97. The paper shows no numbers."""

    model: str
    feature: str
    guest: str
    round_trip_ms: int
    pie_ms: float
    opponent_ms: float | None
    latency: float | None
    pie_requests_s: float
    opponent_requests_s: float | None
    rate: float | None


async def run(plan: Plan) -> list[Row]:
    """A row for each model and feature."""
    return [row for number, model in enumerate(plan.models) for row in await _measure(plan, model, number == 0)]


async def _measure(plan: Plan, model: str, with_programs: bool) -> list[Row]:
    rows = []
    async with servers(model, plan.opponent, device=plan.device) as where:
        for round_trip in dict.fromkeys((0, plan.round_trip)):
            async with sides(model, *where, round_trip) as both:
                programs = await upload_both(both.pie, "feature")
                for feature in plan.features:
                    if feature in PLAIN and not round_trip:
                        more = _arguments(plan, feature)
                        await both.check_same(programs.values(), prompt=new_prompt(0, UNSHARED), **more)
                        for guest, program in programs.items():
                            requests = _requests(plan, both, program, feature)
                            rows.append(await _compare(plan, model, feature, guest, 0, *requests))
                    elif feature in strategies.NAMES:
                        requests = _strategies(plan, both, programs["python"], feature)
                        rows.append(await _compare(plan, model, feature, "python", round_trip, *requests))
                if with_programs and not round_trip:
                    rows += [await _alone(plan, both, model, name) for name in plan.programs]
    return rows


def _arguments(plan: Plan, feature: str) -> dict[str, Any]:
    """What a program is told beside its prompt."""
    if feature == "json_schema":
        return {"tokens": 4 * plan.tokens, "schema": SCHEMA}
    return {"tokens": plan.tokens, **({"n": SAMPLES} if feature == "n" else {})}


def _requests(plan: Plan, both: Sides, program: str, feature: str) -> tuple[Request, Request]:
    """What sends one request to each side."""
    shared = plan.prompt - 16 if feature == "prefix_caching" else 0
    told = _arguments(plan, feature)
    asked: dict[str, Any] = {"n": SAMPLES, "temperature": 1.0} if feature == "n" else {}
    if feature == "json_schema":
        form = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}
        asked = {"response_format": form, "ignore_eos": False}

    async def pie() -> object:
        return await both.pie.run(program, prompt=new_prompt(shared, plan.prompt - shared), **told)

    async def opponent() -> object:
        return await both.complete(new_prompt(shared, plan.prompt - shared), told["tokens"], **asked)

    return pie, opponent


def _strategies(plan: Plan, both: Sides, program: str, strategy: str) -> tuple[Request, Request]:
    """The same for strategies, each step of which has a quarter of the tokens."""
    tokens, headings = plan.tokens // 4, strategies.headings(strategy)
    n = {"tree": strategies.BRANCHES, "graph": strategies.TRIES}.get(strategy, 1)

    async def pie() -> object:
        prompt = new_prompt(0, plan.prompt)
        return await both.pie.run(program, prompt=prompt, tokens=tokens, strategy=strategy, n=n, headings=headings)

    async def opponent() -> object:
        return await strategies.ask(both, strategy, new_prompt(0, plan.prompt), tokens)

    return pie, opponent


async def _compare(
    plan: Plan, model: str, feature: str, guest: str, round_trip: int, pie: Request, opponent: Request
) -> Row:
    one = await compare(pie, opponent, plan.rounds, plan.requests, plan.concurrent)
    latencies = one.pie_ms, one.opponent_ms, one.latency
    return noted(Row(model, feature, guest, round_trip, *latencies, one.pie_s, one.opponent_s, one.rate))


async def _alone(plan: Plan, both: Sides, model: str, name: str) -> Row:
    """An example, which has no opponent."""
    arguments = json.loads((EXAMPLES / name / "run.json").read_text()).get("arguments", ())
    program = await both.pie.upload(EXAMPLES / name / f"{name}.py")

    async def pie() -> object:
        return await both.pie.run(program, *arguments)

    await seconds_of(pie)
    times = [await seconds_of(pie) for _ in range(plan.rounds)]
    rate, _ = await run_many(pie, plan.requests, plan.concurrent)
    return noted(Row(model, name, "python", 0, round(1e3 * median(times), 1), None, None, round(rate, 2), None, None))
