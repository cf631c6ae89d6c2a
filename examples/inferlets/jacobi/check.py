"""Guesses by the outputs of the last forward and by a pool of them: greedy's tokens, in fewer forwards."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from examples.checks import Measure, program
from examples.demo_model import structured
from examples.demo_model.talk import Talk
from examples.demo_model.tools import draw_tool, draw_toolbox, draw_use, system_text
from pie_control.client import Client

PAPER_LINES = 88
IN_VLLM, IN_SGLANG = "no", "no"
LEAST = 2
MOST = {"the pool": 3, "guesses without the pool": 0}


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    speculative, jacobi = [await client.upload(program(name)) for name in ("speculative", "jacobi")]
    equal, forwards, tokens = 0, Counter[tuple[str, str]](), Counter[str]()
    for _ in range(problems):
        for kind, prompt in {"JSON": _record(draw), "calls": _call(draw)}.items():
            greedy = await client.run(speculative, prompt=prompt, draft="")
            tokens[kind] += len(greedy["tokens"]) + 1  # and the stop token
            forwards[kind, "prompt lookup"] += (await client.run(speculative, prompt=prompt))["forwards"]
            for way, most in MOST.items():
                found: dict[str, Any] = await client.run(jacobi, prompt=prompt, most=most)
                equal += found["tokens"] == greedy["tokens"]
                forwards[kind, way] += found["forwards"]

    def share(way: str, *kinds: str) -> float:
        return sum(forwards[kind, way] for kind in kinds) / sum(tokens[kind] for kind in kinds)

    pool, plain = MOST
    return [
        Measure("texts with greedy's tokens", equal / problems / len(tokens) / len(MOST), at_least=1.0),
        Measure("forwards a token", share(pool, *tokens), at_most=0.8),
        *(Measure(f"forwards a token, {kind}", share(pool, kind)) for kind in tokens),
        *(Measure(f"forwards a token by {way}", share(way, *tokens)) for way in (plain, "prompt lookup")),
    ]


def _record(draw: random.Random) -> str:
    """Facts to be written as JSON."""
    talk = Talk(draw)
    structured.from_text(talk)
    return f"<|begin|><|user|>{talk.messages[0].content}<|end|><|assistant|>"


def _call(draw: random.Random) -> str:
    """A question that a tool answers."""
    tool = draw_tool(draw)
    told = system_text(draw, draw_toolbox(draw, tool))
    return f"<|begin|><|system|>{told}<|end|><|user|>{draw_use(draw, tool).ask}<|end|><|assistant|>"
