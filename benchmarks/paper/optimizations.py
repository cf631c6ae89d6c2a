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

The program is there in Python and in Rust: the same tokens. All run in turns; `over_client` is the median of the rates
over the plain client's of the same turn, `step` of those over the row which lacks the last optimization.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from examples.world.serving import Settings
from examples.world.serving import serving as world

from ..opponents.api_agents import Apis, ApiTask, make_task, on_sight, plain
from ..opponents.client import CompletionClient
from ..opponents.requests import Request, run_in_turns, run_many
from ..opponents.sides import Sides, check_models, servers, sides
from ..report import noted
from ..support.guests import upload_both
from ..support.samples import median
from .agents import TOKENS

PAPER = 3.5
"""The rate of all three over the client's, of a 1B model."""
STEPS = ("export", "sight", "drop")
NAMES = {"export": "documentation exported", "sight": "calls on sight", "drop": "documentation dropped"}
PAGE = "/tools/calculator?expression=12*12"
Agent = tuple[str, str]
"""How it is written, and in which language if it is a program."""


@dataclass(frozen=True)
class Plan:
    """The library has `library` APIs with `doc` tokens of documentation each; an agent gets `each` of them, `popular`
    ones among these. For each it generates `tokens`; the first `written` of them are the call. An API takes `api_ms`.
    `agents` run for each row and turn, `concurrent` at a time. `opponent`: the address of a server of completions;
    empty: `closed`."""

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
        return 2 * (self.library - self.popular) // (self.each - self.popular)


FULL = Plan(("demo", "random-160m", "paced:5ms+20us"), concurrent=8, agents=16)
QUICK = Plan(("demo",), concurrent=8, agents=16)


@dataclass(frozen=True)
class Row:
    """`guest`: empty for a client. `agent_ms`: the median agent's time. `paper`: what the paper has for
    `over_client`."""

    model: str
    agent: str
    guest: str
    agents_s: float
    agent_ms: float
    over_client: float | None
    step: float | None
    paper: float | None


CLIENT = "client"
PROGRAM = "program"


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
                new_task, page = _tasks(plan), f"{tools.url}{PAGE}"
                programs = await upload_both(both.pie, "api_agent")
                for steps in ((), STEPS):
                    await both.check_same(programs.values(), **_arguments(plan, new_task(), page, *steps))
                agents = _clients(both, new_task, hands)
                for guest, program in programs.items():
                    agents |= _programs(plan, both, new_task, guest, program, page)
                rows += await _measure(plan, model, agents)
    return rows


def _tasks(plan: Plan) -> Callable[[], ApiTask]:
    """What gives the next agent its task."""
    kinds = plan.library, plan.popular, plan.each
    apis = Apis(*kinds, plan.system, plan.doc, plan.query, plan.tokens, plan.written, plan.result)
    numbers = itertools.count()
    return lambda: make_task(apis, next(numbers))


def _clients(both: Sides, new_task: Callable[[], ApiTask], hands: CompletionClient) -> dict[Agent, Request]:
    def client(run: Callable[..., Awaitable[None]]) -> Request:
        return lambda: run(both, new_task(), lambda: hands.get(PAGE))

    return {(CLIENT, ""): client(plain), (f"{CLIENT}, {NAMES['sight']}", ""): client(on_sight)}


def _programs(
    plan: Plan, both: Sides, new_task: Callable[[], ApiTask], guest: str, uploaded: str, url: str
) -> dict[Agent, Request]:
    """The optimizations stacked, and in Python also those alone that no stack begins with."""

    def program(*steps: str) -> Request:
        return lambda: both.pie.run(uploaded, **_arguments(plan, new_task(), url, *steps))

    stacked = [STEPS[:count] for count in range(len(STEPS) + 1)]
    alone = [(step,) for step in STEPS[1:] if guest == "python"]
    return {(_name(steps), guest): program(*steps) for steps in (*stacked, *alone)}


def _arguments(plan: Plan, task: ApiTask, url: str, *steps: str) -> dict[str, Any]:
    """What the program is told."""
    parts = {"system": task.system, "docs": task.docs, "query": task.query, "result": task.result}
    numbers = {"numbers": task.numbers, "popular": plan.popular, "tokens": task.tokens, "written": task.written}
    return {**parts, **numbers, "url": url, **{step: step in steps for step in STEPS}}


def _name(steps: Sequence[str]) -> str:
    return " + ".join([PROGRAM, *(NAMES[step] for step in steps)])


async def _measure(plan: Plan, model: str, agents: dict[Agent, Request]) -> list[Row]:
    await run_many(agents[_name(STEPS[:1]), "python"], plan.warm, plan.concurrent)  # all documentation is exported
    for agent in agents.values():
        await run_many(agent, plan.concurrent, plan.concurrent)
    turns = await run_in_turns(agents, plan.agents, plan.concurrent)

    def over(agent: Agent, other: Agent) -> float | None:
        if other not in agents:
            return None
        return round(median([turn[agent][0] / turn[other][0] for turn in turns]), 3)

    rows = [
        Row(
            model=model,
            agent=name,
            guest=guest,
            agents_s=round(median([turn[name, guest][0] for turn in turns]), 2),
            agent_ms=round(1e3 * median([seconds for turn in turns for seconds in turn[name, guest][1]]), 1),
            over_client=over((name, guest), (CLIENT, "")),
            step=over((name, guest), (name.rpartition(" + ")[0], guest)),
            paper=PAPER if name == _name(STEPS) else None,
        )
        for name, guest in agents
    ]
    return list(map(noted, rows))
