"""What does an answer in JSON cost, kept to a schema, beside a free one?

Many streams at once, in turns: tokens a second of all, and whether each answer keeps the schema.
"""

from __future__ import annotations

import json
from typing import Any

from ...opponents.sides import settings_of
from ...support.samples import median
from ...support.server import serving
from ..client import HttpClient
from ..load import GREEDY, STREAM, Timed, at_once
from ..plan import Plan
from ..rows import Row, row

NAME = "json_mode"
TOKENS = 64
LIKES = ["boats", "dogs", "rivers"]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": LIKES}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}


async def measure(plan: Plan) -> list[Row]:
    """Rates, and how many are valid."""
    async with serving(tree=plan.tree, **settings_of(plan.model)) as server, HttpClient(server.url) as client:
        await _round(client, plan, 0, FORMAT)  # warm; the grammar is compiled
        rounds = [
            (await _round(client, plan, 2 * number + 1, FORMAT), await _round(client, plan, 2 * number + 2, {}))
            for number in range(plan.rounds)
        ]
    at = f"{plan.model}, {plan.streams} at once"
    kept = [one for answers, _ in rounds for one in answers]
    valid = [_is_person(one.text) for one in kept]
    return [
        row(NAME, "valid", 100 * sum(valid) / len(valid), "%", at=at, bound=">= 100"),
        row(NAME, "tokens_ratio", median([_rate(one) / _rate(two) for one, two in rounds]), at=at),
        row(NAME, "ttft", median([one.ttft for one in kept]), "ms", at=at),
        row(NAME, "ttft_free", median([one.ttft for _, free in rounds for one in free]), "ms", at=at),
    ]


async def _round(client: HttpClient, plan: Plan, number: int, form: dict[str, Any]) -> list[Timed]:
    """The answers to prompts that nobody has sent before."""
    requests = []
    for place in range(plan.streams):
        message = {"role": "user", "content": f"{number} {place} Tell me of somebody in the village."}
        asked = {"messages": [message], "max_tokens": TOKENS, **GREEDY, **STREAM, **form}
        requests.append(client.request("/v1/chat/completions", asked))
    return await at_once(client, requests)


def _rate(answers: list[Timed]) -> float:
    """Tokens of all, for each millisecond until the last answer was there: all were asked for at once."""
    return sum(one.tokens for one in answers) / max(one.ms for one in answers)


def _is_person(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    match value:
        case {"name": str(name), "age": int(age), "likes": [_, *_] as likes, **more}:
            is_short = len(name) <= 24 and len(likes) <= 3
            return not more and is_short and age in range(121) and all(one in LIKES for one in likes)
    return False
