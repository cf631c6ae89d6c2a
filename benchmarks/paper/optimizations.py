"""What does an agent gain that knows its APIs (Figure 7)?

An agent gets the documentation of `each` APIs, calls each of them once, and writes an answer. `popular` ones are in
the prompt of every agent, the others differ; most calls are of the kind whose result nobody needs. The paper says no
more than that, so calls and tokens are those of its ReACT agent (Figure 6): 8 calls, and 103 tokens at most, since 30
agents a second run on a GPU that gives 3,077 tokens a second to 128 sequences (by the pace of policies.py). The
documentation of an API has 192 tokens, as that of a function with a few described parameters has; more would not fit
into the demo model's context.

The client runs beside the opponent (`closed`, unless `--opponent URL` names another one), on kept connections; its
prompts have what is popular first, so that the cache of prefixes finds it. It waits for each text and for each call;
`client, calls on sight` streams instead, and calls as soon as a call is written. The program does what the client does,
and then, alone and stacked: documentation kept by export, and joined, so that it is computed once for all agents (each
part sees itself alone: modular caching), which happens before it is measured; calls on sight; documentation dropped
when its API has been called. Numbers of tokens are fixed, so models with random weights serve.

`over_client` is the rate over the plain client's, `step` that over the row which lacks the last optimization.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from examples.world.serving import Settings
from examples.world.serving import serving as world

from ..opponents.api_agents import Apis, make_task, on_sight, plain
from ..opponents.client import CompletionClient
from ..opponents.requests import Request, run_many
from ..opponents.sides import Sides, check_models, servers, sides
from ..support.guests import source
from ..support.samples import median
from .agents import TOKENS

PAPER = 3.5
"""The rate of all three over the client's, of a 1B model."""
STEPS = ("export", "sight", "drop")
NAMES = {"export": "documentation exported", "sight": "calls on sight", "drop": "documentation dropped"}
PAGE = "/tools/calculator?expression=12*12"


@dataclass(frozen=True)
class Plan:
    """The library has `library` APIs with `doc` tokens of documentation each; an agent gets `each` of them, `popular`
    ones among these. For each it generates `tokens`; the first `written` of them are the call. An API takes `api_ms`.
    `agents` run for each row, `concurrent` at a time. `opponent`: the address of a server of completions; empty:
    `closed`."""

    models: tuple[str, ...]
    concurrent: int
    agents: int
    library: int = 24
    popular: int = 4
    each: int = 8
    system: int = 128
    doc: int = 192
    query: int = 32
    tokens: int = TOKENS["react"]
    written: int = 6
    result: int = 8
    api_ms: int = 100
    round_trip: int = 30
    device: str = "auto"
    opponent: str = ""

    def __post_init__(self) -> None:
        check_models(self.models)
        if not self.popular < self.each <= self.library:
            known = f"more than the {self.popular} popular ones, and at most the {self.library} of the library"
            raise ValueError(f"an agent cannot have {self.each} APIs: give {known}")

    @property
    def warm(self) -> int:
        """Agents in a row that have all of the library's APIs among them."""
        return max(self.concurrent, 2 * (self.library - self.popular) // (self.each - self.popular))


FULL = Plan(("demo", "random-160m", "paced:5ms+20us"), concurrent=16, agents=48)
QUICK = Plan(("demo",), concurrent=8, agents=24)


@dataclass(frozen=True)
class Row:
    """`agent_ms`: the median agent's time. `paper`: what the paper has for `over_client`."""

    model: str
    agent: str
    agents_s: float
    agent_ms: float
    over_client: float
    step: float | None
    paper: float | None


async def run(plan: Plan) -> list[Row]:
    """A row for each way to write the agent."""
    rows = []
    async with world(Settings(delay=plan.api_ms / 1e3)) as tools, CompletionClient(tools.url) as hands:
        for model in plan.models:
            options = {"device": plan.device, "pie_http_allow": tools.place}
            async with (
                servers(model, plan.opponent, **options) as (pie, opponent),
                sides(model, pie, opponent, plan.round_trip) as both,
            ):
                program = await both.pie.upload(source("paper/api_agent"), "api_agent")
                rows += await _measure_all(plan, model, _agents(plan, both, program, tools.url, hands))
    return rows


def _agents(plan: Plan, both: Sides, uploaded: str, url: str, hands: CompletionClient) -> dict[str, Request]:
    """The ways to write it, by name."""
    apis = Apis(
        plan.library,
        plan.popular,
        plan.each,
        plan.system,
        plan.doc,
        plan.query,
        plan.tokens,
        plan.written,
        plan.result,
    )
    numbers = itertools.count()

    def client(run: Callable[..., Awaitable[int]]) -> Request:
        return lambda: run(both, make_task(apis, next(numbers)), lambda: hands.get(PAGE))

    def program(*steps: str) -> Request:
        async def run() -> int:
            one = make_task(apis, next(numbers))
            generated: int = await both.pie.run(
                uploaded,
                system=one.system,
                docs=one.docs,
                numbers=one.numbers,
                popular=plan.popular,
                query=one.query,
                url=f"{url}{PAGE}",
                tokens=one.tokens,
                written=one.written,
                result=one.result,
                export="export" in steps,
                sight="sight" in steps,
                drop="drop" in steps,
            )
            return generated

        return run

    stacked = [STEPS[:count] for count in range(len(STEPS) + 1)]
    alone = [(step,) for step in STEPS[1:]]
    programs = {_name(steps): program(*steps) for steps in (*stacked, *alone)}
    return {"client": client(plain), "client, calls on sight": client(on_sight), **programs}


def _name(steps: Sequence[str]) -> str:
    return " + ".join(["program", *(NAMES[step] for step in steps)])


async def _measure_all(plan: Plan, model: str, agents: dict[str, Request]) -> list[Row]:
    measured = {name: await _measure(plan, agent) for name, agent in agents.items()}
    rates = {name: rate for name, (rate, _) in measured.items()}
    return [
        Row(
            model=model,
            agent=name,
            agents_s=round(rate, 2),
            agent_ms=round(1e3 * seconds, 1),
            over_client=round(rate / rates["client"], 3),
            step=round(rate / before, 3) if (before := rates.get(name.rpartition(" + ")[0])) else None,
            paper=PAPER if name == _name(STEPS) else None,
        )
        for name, (rate, seconds) in measured.items()
    ]


async def _measure(plan: Plan, agent: Request) -> tuple[float, float]:
    """Agents a second, and the median one's seconds."""
    await run_many(agent, plan.warm, plan.concurrent)
    rate, times = await run_many(agent, plan.agents, plan.concurrent)
    return rate, median(times)
