"""How many calls does a program make for each token that it sends (Figure 11)?

Each example runs once on the demo model, as its folder says, and counts the calls that it makes: those that go to the
inference layer (`inference`), and all others (`control`), such as those that allocate, send or take a value.
`commands` are those that the worker gets: a decode run is one call and has a command for each of its tokens.
They are divided by the tokens of the texts that the client gets, so a beam search pays for what it throws away.
Calls of children are not counted; their commands are.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from pie_control.calls import CALLS
from pie_control.calls.kind import Stage
from pie_control.client import Client

from ..plans import refuse_unknown
from ..report import ROOT
from ..support.guests import EXAMPLES, examples
from ..support.server import scheduler_counts, serving

DEMO_MODEL = ROOT / "pie_inference" / "demo_model"
COUNTED = """
import functools, inspect, json, types
from collections import Counter
from inferlet_sdk import bindings, inferlet

_counts = Counter()


def _counted(name, call):
    @functools.wraps(call)
    def count(*arguments):
        _counts[name] += 1
        return call(*arguments)

    return count


for _name in bindings.INTERFACES:
    for _call in [one for one in vars(getattr(bindings, _name)).values() if isinstance(one, types.FunctionType)]:
        setattr(getattr(bindings, _name), _call.__name__, _counted(_call.__name__, _call))

_main = main


@inferlet
@functools.wraps(_main)
async def main(*args, **kwargs):
    result = _main(*args, **kwargs)
    result = await result if inspect.isawaitable(result) else result
    print("counts", json.dumps(_counts))
    return result
"""
"""Stands behind the program's text."""


@dataclass(frozen=True)
class Plan:
    """`programs`: examples by name; none: all that need neither tools, files nor a model of their own."""

    programs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_unknown("program", self.programs, tuple(_programs()))


@dataclass(frozen=True)
class Row:
    """For each token that the client got."""

    program: str
    tokens: int
    control: float
    inference: float
    commands: float


async def run(plan: Plan) -> list[Row]:
    """A row for each program."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    async with serving() as server, Client(server.url) as client:
        return [await _measure(client, tokenizer, name) for name in plan.programs or _programs()]


def _programs() -> list[str]:
    return [folder.name for folder in examples("tools", "blobs", "model")]


FULL = Plan()
QUICK = Plan(("text_completion", "beam_search"))


async def _measure(client: Client, tokenizer: Tokenizer, name: str) -> Row:
    options: dict[str, Any] = json.loads((EXAMPLES / name / "run.json").read_text())
    program = (EXAMPLES / name / f"{name}.py").read_text() + COUNTED
    before = scheduler_counts(await client.statistics())
    running = await client.launch(program.encode(), *options.get("arguments", ()))
    for message in options.get("messages", ()):
        await running.send(message)
    text = "".join([piece async for piece in running])
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    await running.result()
    after = scheduler_counts(await client.statistics())
    (line,) = [one.text for one in await client.logs(running.id) if one.text.startswith("counts ")]
    counts = Counter(json.loads(line.removeprefix("counts ")))
    to_worker = {call.name for call in CALLS.values() if call.stage is not Stage.CONTROL or call.run is not None}
    inference = sum(count for call, count in counts.items() if call in to_worker)
    commands = sum(after["commands"].values()) - sum(before["commands"].values())
    control, own, worker = (round(count / tokens, 2) for count in (counts.total() - inference, inference, commands))
    return Row(name, tokens, control, own, worker)
