"""Greedy float32 tokens of the demo model are those of transformers, whatever the policy, batch and run-ahead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus
from tests.helpers.tree import DEMO_MODEL

PROMPTS = (
    "Once upon a time",
    "Hello, ",
    "<|begin|><|user|>What is 47 + 38?<|end|><|assistant|>",
    "The baker " * 30,
    "In the village",
    "One morning",
)
LENGTH = 24
PROGRAM = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args, prompt, length, run_ahead):
    async with Context(args.model) as context:
        context.fill(prompt)
        before = len(context)
        async for _ in context.generate(length, stop=IgnoreStopTokens(), run_ahead=run_ahead):
            pass
        return context.tokens[before:]
"""


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(WorkerConfig(model=DEMO_MODEL, name="demo", dtype="float32"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.inference_mode():
            for _ in range(LENGTH):
                following = model(tokens).logits[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, following], 1)
        answers.append(tokens[0, -LENGTH:].tolist())
    return answers


SETTINGS = [("adaptive", 1), ("k-only", 2), ("adaptive", 2), ("eager", 1), ("t-only", 2)]
"""Policies, and how far the host runs ahead."""


@pytest.mark.parametrize("setting", corpus(SETTINGS, kind=lambda one: one[1]), ids=lambda one: f"{one[0]}-{one[1]}")
def test_tokens_do_not_depend_on_scheduling(
    setting: tuple[str, int], worker: Worker, expected: list[list[int]], guest_cache: Path
) -> None:
    policy, ahead = setting

    async def check() -> None:
        async with started(guest_cache, InProcessClient(worker), policy=policy, run_ahead=ahead) as server:
            requests = [
                {"prompt": prompt, "length": LENGTH, "run_ahead": run_ahead}
                for prompt in PROMPTS
                for run_ahead in (True, False)
            ]
            together = await asyncio.gather(*(run(server, PROGRAM, request) for request in requests))
            alone = await run(server, PROGRAM, requests[0])
        assert together[0::2] == expected
        assert together[1::2] == expected
        assert alone == expected[0]

    asyncio.run(check())
