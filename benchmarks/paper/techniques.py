"""What does each technique gain, and how many lines does it take (Table 2)?

A row is one measure of a technique's check; `reach` says what it must be, and nothing where it is shown only. `lines`
are those that are neither blank, comment nor docstring, in brackets the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from examples import checks
from pie_control.client import Client

from ..plans import refuse_unknown
from ..report import noted
from ..support.server import serving


@dataclass(frozen=True)
class Plan:
    """`techniques` by name; none: all. Each with so many `problems`, drawn from `seed`, or the least that it takes."""

    problems: int
    techniques: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_unknown("technique", self.techniques, tuple(checks.names()))
        for name in (self.techniques or checks.names()) if self.problems else ():
            checks.refuse_few(name, self.problems, checks.constants(name).get("LEAST", 1))


FULL = Plan(problems=100)
QUICK = Plan(problems=0)


@dataclass(frozen=True)
class Row:
    technique: str
    lines: str
    problems: int
    measure: str
    value: float
    reach: str
    passed: bool


async def run(plan: Plan) -> list[Row]:
    """All measures of all techniques. Those with the same settings share a server, one after the other."""
    names = plan.techniques or checks.names()
    settings = [checks.settings(name) for name in names]
    found: dict[str, list[Row]] = {}
    for number, each in enumerate(settings):
        if each in settings[:number]:
            continue
        async with serving(**each) as server, Client(server.url) as client:
            for name, its in zip(names, settings, strict=True):
                if its == each:
                    found[name] = await _measure(client, name, plan)
    return [row for name in names for row in found[name]]


async def _measure(client: Client, name: str, plan: Plan) -> list[Row]:
    one = checks.load(name)
    problems = plan.problems or one.LEAST
    lines = f"{checks.lines(checks.program(name))} ({one.PAPER_LINES or '-'})"
    return [
        noted(Row(name, lines, problems, found.name, round(found.value, 4), found.reach, found.passed))
        for found in await checks.run(name, client, problems, plan.seed)
    ]


def passed(rows: Sequence[Row]) -> bool:
    """Whether every measure is what it has to be."""
    return all(row.passed for row in rows)
