"""Log-likelihoods as `lm-eval` asks for them (its model `local-completions`) are those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pie_control.authoring.native.server import native_server
from pie_control.config import build_config
from tests.control.programs.bundled.launching import Ask, asking
from tests.helpers.tree import DEMO_MODEL

PAIRS = (("Once upon a time", " there was a little girl."), ("The weather in Oslo", " is cold"), ("One", " blue seven"))
"""Contexts and continuations."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with native_server(build_config({"dtype": "float32"}).resolved()) as server:
        yield asking(server, "completions")


def test_log_likelihoods_are_those_of_transformers(ask: Ask) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO_MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    prompts, sizes = [], []
    for context, continuation in PAIRS:
        before = tokenizer(context, add_special_tokens=False).input_ids
        prompts.append(before + tokenizer(continuation, add_special_tokens=False).input_ids)
        sizes.append(len(before))
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    body = ask(model="demo", prompt=prompts, **asked).body
    greedy = []
    for prompt, size, choice in zip(prompts, sizes, body["choices"], strict=True):
        told = choice["logprobs"]
        assert len(told["token_logprobs"]) == len(prompt) + 1
        scores, tops = told["token_logprobs"][size:-1], told["top_logprobs"][size:-1]
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, size - 1 : -1].log_softmax(-1)
        wanted = [float(row[token]) for row, token in zip(logits, prompt[size:], strict=True)]
        assert scores == pytest.approx(wanted, abs=1e-4)
        likeliest = [int(row.argmax()) for row in logits]
        greedy.append([one == token for one, token in zip(likeliest, prompt[size:], strict=True)])
        assert [score == max(top.values()) for score, top in zip(scores, tops, strict=True)] == greedy[-1]
    assert {True, False} == {one for row in greedy for one in row}
