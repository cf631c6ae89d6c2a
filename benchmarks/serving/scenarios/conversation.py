"""How much of an agent's conversation comes from the cache, turn by turn?

Each turn sends all messages so far: a task, and then what the model wrote and what its tool said, 43 times by default,
the median that vLLM's makers have counted in conversations of agents. `cached` is what the server tells;
`computed_error` is its difference to what the worker did not run.
"""

from __future__ import annotations

from typing import Any

from pie_control.client import Client

from ...opponents.sides import settings_of
from ...support.samples import median
from ...support.server import scheduler_counts, serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, Timed, in_turn
from ..plan import Plan
from ..rows import Row, row

NAME = "conversation"
MODEL = "demo"
EARLY = 20
"""The turn that has a bound."""
TOKENS = 12
"""Of a reply."""
SYSTEM = "You help in a village. " * 12


async def measure(plan: Plan) -> list[Row]:
    """Of the 20th turn, and of the last."""
    async with (
        serving(tree=plan.tree, **settings_of(MODEL)) as server,
        HttpClient(server.url) as client,
        Client(server.url) as own,
    ):
        await _converse(client, own, 0, 2)  # warm
        talks = [await _converse(client, own, 1 + number, plan.turns) for number in range(plan.rounds)]
    rows = []
    for turn in sorted({min(EARLY, plan.turns), plan.turns}):
        answers = [talk[turn - 1] for talk in talks]
        at = f"{MODEL}, turn {turn} of {plan.turns}"
        share = median([100 * one.cached / one.usage["prompt_tokens"] for one, _ in answers])
        wrong = [abs(one.usage["prompt_tokens"] - one.cached + one.tokens - 1 - ran) for one, ran in answers]
        first = median([one.ttft / talk[0][0].ttft for talk in talks for one in [talk[turn - 1][0]]])
        rows += [
            row(NAME, "prompt", median([one.usage["prompt_tokens"] for one, _ in answers]), "tokens", at=at),
            row(NAME, "cached", share, "%", at=at, bound=">= 96" if turn == EARLY else ""),
            row(NAME, "computed_error", max(wrong), "tokens", at=at, bound="<= 0"),
            row(NAME, "ttft", median([one.ttft for one, _ in answers]), "ms", at=at),
            row(NAME, "ttft_over_first", first, at=at),
        ]
    return rows


async def _converse(client: HttpClient, own: Client, number: int, turns: int) -> list[tuple[Timed, int]]:
    """The answers, and the tokens that the worker ran for each."""
    messages = [{"role": "system", "content": f"{number} {SYSTEM}"}, {"role": "user", "content": "Find the dog."}]
    found = []
    for turn in range(turns):
        before = await _ran(own)
        asked: dict[str, Any] = {"messages": messages, "max_tokens": TOKENS, **GREEDY, **STREAM}
        (answer,) = await in_turn(client, [client.request("/v1/chat/completions", asked)])
        found.append((answer, await _ran(own) - before))
        messages = [
            *messages,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": f"The tool says {turn}: no dog."},
        ]
    return found


async def _ran(own: Client) -> int:
    """Tokens that the worker has run so far."""
    return int(scheduler_counts(await own.statistics())["input_tokens"])
