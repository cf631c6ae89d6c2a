"""Guesses from the text, by a second context and by a second model: greedy's tokens, in half the forwards on copied
text, beside a grammar, too."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from examples.checks import Measure, program
from examples.demo_model import arithmetic, structured
from examples.demo_model.talk import Talk
from pie_control.client import Client

PAPER_LINES = 255
IN_VLLM = "in part: prompt lookup, a draft model"
IN_SGLANG = "in part: n-grams, a draft model"
MODELS = ["demo", "demo-reasoner"]
LEAST = 3
FORMS = ("lookup", "context", "demo-reasoner")
NAMES = {"lookup": "prompt lookup", "context": "a second context", "demo-reasoner": "a second model"}


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    uploaded = await client.upload(program("speculative"))
    equal, forwards, tokens = 0, Counter[str](), Counter[str]()
    for _ in range(problems):
        for kind, (prompt, schema) in {"sum": _sum(draw), "JSON": _person(draw)}.items():
            options: Any = {"prompt": prompt, "schema": schema}
            greedy = await client.run(uploaded, draft="", **options)
            for form in FORMS:
                found = await client.run(uploaded, draft=form, **options)
                equal += found["tokens"] == greedy["tokens"]
                forwards[f"{form} {kind}"] += found["forwards"]
                tokens[f"{form} {kind}"] += len(found["tokens"]) + 1  # and the stop token
    shares = {name: forwards[name] / tokens[name] for name in forwards}
    return [
        Measure("texts with greedy's tokens", equal / problems / 2 / len(FORMS), at_least=1.0),
        Measure("forwards a token, copied sums, prompt lookup", shares["lookup sum"], at_most=0.5),
        Measure("forwards a token, copied JSON by a schema, prompt lookup", shares["lookup JSON"], at_most=0.5),
        *(
            Measure(f"forwards a token, {kind}, {NAMES[form]}", shares[f"{form} {kind}"])
            for form in FORMS[1:]
            for kind in ("sum", "JSON")
        ),
    ]


def _twice(question: str, answer: str) -> str:
    asked = f"<|user|>{question}<|end|><|assistant|>"
    return f"<|begin|>{asked}{answer}<|end|>{asked}"


def _sum(draw: random.Random) -> tuple[str, None]:
    """A question that was asked and answered before."""
    problem = arithmetic.draw_problem(draw)
    return _twice(f"What is {problem}?", arithmetic.steps(problem)), None


def _person(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Somebody to be described as JSON, which was done before, and a schema of it."""
    talk = Talk(draw)
    structured.from_text(talk)
    question, answer = talk.messages[0].content, talk.messages[1].content
    kinds = {str: {"type": "string", "maxLength": 30}, int: {"type": "integer"}, bool: {"type": "boolean"}}
    nothing = {"type": "null"}
    fields = {key: kinds.get(type(value), nothing) for key, value in json.loads(answer).items()}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return _twice(question, answer), schema
