"""The program's greedy text is that of transformers, token by token."""

from __future__ import annotations

import random
from typing import Any

from examples.checks import DEMO_MODEL, Measure, program
from examples.demo_model.story_checks import STARTS
from pie_control.client import Client

PAPER_LINES = 38
IN_VLLM, IN_SGLANG = "yes", "yes"
LEAST = 2
TOKENS = 40


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # a small model, beside a server at work

    model: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    draw = random.Random(seed)
    equal = 0
    for _ in range(problems):
        prompt = f"{draw.choice(STARTS)} {draw.choice(STARTS).lower()}"
        pieces: list[str] = []
        await client.run(program("text_completion"), prompt=prompt, max_tokens=TOKENS, on_message=pieces.append)
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        expected = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0, ids.shape[1] :]
        equal += "".join(pieces) == tokenizer.decode(expected, skip_special_tokens=True)
    return [Measure("texts equal to transformers'", equal / problems, at_least=1.0)]
