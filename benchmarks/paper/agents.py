"""How long do agents take, and how many are done in a second, as programs and as clients (Figure 6)?

An agent generates some tokens, uses a tool, reads what came of it, and so on; `ios` times. `react` calls a tool of the
agent's world (examples/world) over HTTP, `codeact` executes Python, `swarm` has four members that pass messages in a
ring, `ios` of them in all. Each agent is a program at Pie, in Python (`react` also in Rust: the same tokens), and a
script beside the opponent (`closed`, unless `--opponent URL` names another one) on kept connections, whose prompts hit
the cache of prefixes. The round trip lies between clients and servers; tools are as near to the client as to the
server. Models that generate nonsense serve as well: numbers of tokens are fixed, and what tools say is replaced by as
many tokens.

The paper tells no tokens, but latencies and rates, which mean 128 sequences at once on a GPU that gives these 3,077
tokens a second (by the pace of policies.py). So its agents have 103, 77 and 591 tokens at most: here 11, 8 and 16 for
each step (`optimizations` has those of `react`, too).

Latency is the median of single agents, which both sides run in turns. The rate is of `concurrent` agents at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.world.serving import Settings
from examples.world.serving import serving as world

from ..opponents.agents import PROGRAM, Task, run_agent
from ..opponents.client import CompletionClient
from ..opponents.requests import Request, compare
from ..opponents.sides import Sides, check_models, new_prompt, servers, sides
from ..plans import refuse_unknown
from ..report import noted
from ..support.guests import upload_both

PAPER = {"react": (0.85, 1.30)}
"""Latency and throughput over the better baseline; the paper gives them for ReACT ("up to"), with 8 I/Os and a campus
network between."""
KINDS = {"react": 8, "codeact": 8, "swarm": 32}
"""The paper's I/Os."""
TOKENS = {"react": 11, "codeact": 8, "swarm": 16}
"""What is generated before each I/O, and at the end."""
PAGE = "/tools/calculator?expression=12*12"


@dataclass(frozen=True)
class Plan:
    """Prompts have `system` tokens in common and `task` of their own. `tokens` are generated at a time; 0: as TOKENS
    says. A tool takes `tool_ms`. `few_ios` are measured beside the paper's numbers, for `react`. `opponent`: the
    address of a server of completions; empty: `closed`."""

    models: tuple[str, ...]
    kinds: tuple[str, ...]
    round_trips: tuple[int, ...]
    few_ios: tuple[int, ...]
    rounds: int
    concurrent: int
    agents: int  # for each turn of a rate
    system: int = 512
    task: int = 32
    tokens: int = 0
    observation: int = 16
    tool_ms: int = 5
    device: str = "auto"
    opponent: str = ""

    def __post_init__(self) -> None:
        refuse_unknown("agent", self.kinds, tuple(KINDS))
        check_models(self.models)


ALL = tuple(KINDS)
FULL = Plan(("demo", "random-160m", "paced:5ms+20us"), ALL, (0, 30, 100), (1, 2), rounds=7, concurrent=8, agents=16)
QUICK = Plan(("demo",), ALL, (0, 30), (2,), rounds=3, concurrent=8, agents=16)


@dataclass(frozen=True)
class Row:
    """`latency`, `rate`: Pie's over the opponent's; `paper_latency`, `paper_rate`: the same in the paper."""

    model: str
    agent: str
    guest: str
    ios: int
    round_trip_ms: int
    pie_ms: float
    opponent_ms: float
    latency: float
    pie_agents_s: float
    opponent_agents_s: float
    rate: float
    paper_latency: float | None
    paper_rate: float | None


async def run(plan: Plan) -> list[Row]:
    """A row for each model, agent and round trip."""
    rows = []
    async with world(Settings(delay=plan.tool_ms / 1e3)) as tools, CompletionClient(tools.url) as hands:
        for model in plan.models:
            options = {"device": plan.device, "pie_http_allow": tools.place}
            async with servers(model, plan.opponent, **options) as (pie, opponent):
                for round_trip in plan.round_trips:
                    async with sides(model, pie, opponent, round_trip) as both:
                        programs = await upload_both(both.pie, "agent")
                        for task in _tasks(plan):
                            told = _arguments(plan, task, f"{tools.url}{PAGE}")
                            guests = ("python", "rust") if task.kind == "react" else ("python",)
                            if len(guests) > 1:
                                await both.check_same(programs.values(), prompt=new_prompt(0, plan.task), **told)
                            for guest in guests:
                                runs = _runs(plan, both, programs[guest], told, task, hands)
                                rows.append(noted(await _measure(plan, model, guest, round_trip, task, *runs)))
    return rows


def _tasks(plan: Plan) -> list[Task]:
    few = [("react", ios) for ios in plan.few_ios] if "react" in plan.kinds else []
    each = [*few, *((kind, KINDS[kind]) for kind in plan.kinds)]
    return [Task(kind, ios, plan.tokens or TOKENS[kind], plan.observation) for kind, ios in each]


def _arguments(plan: Plan, task: Task, url: str) -> dict[str, Any]:
    """What a program is told beside its prompt."""
    told = {"kind": task.kind, "ios": task.ios, "tokens": task.tokens, "observation": task.observation}
    return {**told, "url": url, "program": PROGRAM}


def _runs(
    plan: Plan, both: Sides, program: str, told: dict[str, Any], task: Task, hands: CompletionClient
) -> tuple[Request, Request]:
    """What runs one agent at each side."""

    async def pie() -> object:
        return await both.pie.run(program, prompt=new_prompt(plan.system, plan.task), **told)

    async def opponent() -> None:
        await run_agent(both, task, new_prompt(plan.system, plan.task), lambda: hands.get(PAGE))

    return pie, opponent


async def _measure(
    plan: Plan, model: str, guest: str, round_trip: int, task: Task, pie: Request, opponent: Request
) -> Row:
    one = await compare(pie, opponent, plan.rounds, plan.agents, plan.concurrent)
    paper = PAPER.get(task.kind, (None, None)) if task.ios == KINDS[task.kind] else (None, None)
    return Row(
        model=model,
        agent=task.kind,
        guest=guest,
        ios=task.ios,
        round_trip_ms=round_trip,
        pie_ms=one.pie_ms,
        opponent_ms=one.opponent_ms,
        latency=one.latency,
        pie_agents_s=one.pie_s,
        opponent_agents_s=one.opponent_s,
        rate=one.rate,
        paper_latency=paper[0],
        paper_rate=paper[1],
    )
