"""The same text with and without the first tokens: how surprised the model is in the first window, up to its last
position, and behind it. What comes of it is shown only; memory is bounded."""

from __future__ import annotations

import itertools
from typing import Any

from examples.checks import Measure, program
from examples.inferlets.attention_sink.check import (
    LAST_POSITION,
    PAGE,
    SINK,
    STEP,
    WINDOW,
    perplexity,
    reading,
    stories,
)
from pie_control.client import Client

PAPER_LINES = 60
IN_VLLM, IN_SGLANG = "in part: in models trained for it", "in part: in models trained for it"
LEAST = 1


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    text = stories(seed, LAST_POSITION * problems + STEP + 1)
    seen = WINDOW + SINK
    plain: dict[str, Any] = await client.run(program("windowed_attention"), text=text, window=seen)
    sinks = await reading(client, text, SINK)
    measures = [Measure("pages over those of a window", plain["pages"] / -(-seen // PAGE), at_most=1.5)]
    for begin, end in itertools.pairwise([0, seen, LAST_POSITION, len(text) - 1]):
        for name, read in (("without sinks", plain), ("with them", sinks)):
            found = perplexity(read["logprobs"][begin:end])
            measures.append(Measure(f"perplexity of tokens {begin} to {end}, {name}", found))
    return measures
