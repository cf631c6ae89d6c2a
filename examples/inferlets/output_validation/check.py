"""Going back to the last good place makes only valid records, with fewer tokens than trying whole records again."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.structured import Described, draw_person
from pie_control.client import Client

PAPER_LINES = 52
IN_VLLM, IN_SGLANG = "no", "no"
LEAST = 4
AT_ONCE = 4
FEWEST_KEYS = 4


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    uploaded = await client.upload(program("output_validation"))

    async def write(number: int, told: Described, whole: bool) -> dict[str, Any]:
        options: Any = {"facts": told.text, "keys": ", ".join(told.record), "seed": seed + number, "whole": whole}
        async with limit:
            return dict(await client.run(uploaded, **options))

    given = list(enumerate(_person(draw) for _ in range(problems)))
    back, again = await asyncio.gather(
        *(asyncio.gather(*(write(*one, whole) for one in given)) for whole in (False, True))
    )
    tokens, tokens_again = (sum(one["tokens"] for one in records) for records in (back, again))
    valid, valid_again = (
        [_valid(one["text"], told) for one, (_, told) in zip(records, given, strict=True)] for records in (back, again)
    )
    right = [json.loads(one["text"]) == told.record for one, (_, told) in zip(back, given, strict=True) if one["text"]]
    return [
        Measure("valid records", sum(valid) / problems, at_least=1.0),
        Measure("tokens, of those for whole records again", tokens / tokens_again, at_most=0.9),
        Measure("tokens a record", tokens / problems),
        Measure("valid records of one try", sum(one["tries"] == 1 for one in again) / problems),
        Measure("valid records of whole records again", sum(valid_again) / problems),
        Measure("records with each value right", sum(right) / problems),
    ]


def _person(draw: random.Random) -> Described:
    while len((told := draw_person(draw)).record) < FEWEST_KEYS:
        pass
    return told


def _valid(text: str | None, told: Described) -> bool:
    """Whether it has the keys that were asked for, and values of the text, each once."""
    record = json.loads(text) if text else {}
    values = list(map(str, record.values()))
    words = f" {told.text.replace('.', ' ').replace(',', ' ')} "
    return (
        list(record) == list(told.record)
        and len({*values}) == len(values)
        and all(f" {one} " in words for one in values)
    )
