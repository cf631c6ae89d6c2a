"""The agents of `benchmarks agents` as a client writes them for a server of completions: the loop is here, and each
step is a request. Prompts are tokens, so that what the server has cached is always found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .sides import Sides

MEMBERS = 4
"""Of a swarm; each sends its messages to the next one."""
PROGRAM = "sum(n for n in range(2, 200) if all(n % d for d in range(2, n)))"
ANSWER = 4227
Tool = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Task:
    """`ios`: calls of tools, or messages of all members; before each there are `tokens` generated, and what comes back
    are `observation` tokens."""

    kind: str
    ios: int
    tokens: int
    observation: int


def observed(step: int, count: int) -> list[int]:
    """What stands for the result of a tool: the same for both sides, whatever the tool said."""
    return [65 + (31 * step + 7 * place) % 180 for place in range(count)]


async def run_agent(sides: Sides, task: Task, prompt: list[int], tool: Tool) -> None:
    """One agent from its prompt to its answer."""
    if task.kind == "swarm":
        queues: list[asyncio.Queue[None]] = [asyncio.Queue() for _ in range(MEMBERS)]
        rounds = task.ios // MEMBERS

        async def member(number: int) -> None:
            async def pass_on() -> None:
                queues[(number + 1) % MEMBERS].put_nowait(None)
                await queues[number].get()

            await _steps(sides, task, prompt, rounds, pass_on)

        await asyncio.gather(*(member(number) for number in range(MEMBERS)))
    else:
        await _steps(sides, task, prompt, task.ios, _execute if task.kind == "codeact" else tool)


async def _execute() -> None:
    assert eval(PROGRAM) == ANSWER


async def _steps(sides: Sides, task: Task, prompt: list[int], count: int, act: Tool) -> None:
    tokens = list(prompt)
    for step in range(count + 1):
        choice = await sides.complete(tokens, task.tokens)
        if step < count:
            await act()
            tokens += [*choice["token_ids"], *observed(step, task.observation)]
