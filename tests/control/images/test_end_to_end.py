"""A program, a client's images and a model with weights: the answer is that of transformers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from testing.vision_checkpoint import make_vision_checkpoint
from tests.control.images.test_prepare import saved
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started
from tests.helpers.tiers import corpus
from tests.helpers.vision import load_model, load_processor, picture

LENGTH = 12
PROGRAM = """
from inferlet_sdk import *

async def main(args):
    chat, plain = Context(args.model), Context(args.model)
    question = [{"type": "text", "text": "Which <image> is "}, {"type": "image", "image": "one"}]
    chat.fill_chat([{"role": "system", "content": "Look."}, {"role": "user", "content": question}])
    plain.fill("First ").fill_image("one").fill(" then ").fill_image("two").fill(": ")
    found = []
    for context in (chat, plain):
        length = len(context)
        fork = context.fork()
        await context.generate_until(IgnoreStopTokens(), max_tokens=LENGTH)
        await fork.generate_until(IgnoreStopTokens(), max_tokens=LENGTH)
        assert context.tokens == fork.tokens
        found.append([context.tokens[:length], context.tokens[length:]])
    return found
"""
ONE, TWO = picture(90, 50, 1), picture(31, 64, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("model"))


def continued(folder: Path, text: str, images: list[Any]) -> tuple[list[int], list[int]]:
    """Tokens of a text with its images, and the next ones that transformers finds most probable."""
    model, processor = load_model(folder), load_processor(folder, 4)
    inputs = processor(text=text, images=[images], return_tensors="pt")
    prompt = inputs["input_ids"][0].tolist()
    tokens = list(prompt)
    for _ in range(LENGTH):
        with torch.inference_mode():
            logits = model(
                input_ids=torch.tensor([tokens]),
                pixel_values=inputs["pixel_values"],
                pixel_attention_mask=inputs["pixel_attention_mask"],
            ).logits
        tokens.append(int(logits[0, -1].argmax()))
    return prompt, tokens[len(prompt) :]


def run(guest_cache: Path, folder: Path, source: str, **options: Any) -> Any:
    async def main() -> Any:
        worker = Worker(WorkerConfig(folder, "tiny", dtype="float32", pages=256, embeds=1024, threads=1))
        async with started(guest_cache, InProcessClient(worker), **options) as server, asyncio.timeout(HANG_SECONDS):
            _, listener = await launch(server, source, None, {"one": saved(ONE), "two": saved(TWO)})
            ended = await listener.ended
            assert ended.status == "finished", ended.error
            return json.loads(ended.result or "null")

    return asyncio.run(main())


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_answers_are_those_of_transformers(guest_cache: Path, folder: Path, hosts: int) -> None:
    chat, plain = run(guest_cache, folder, PROGRAM.replace("LENGTH", str(LENGTH)), hosts=hosts)
    prompt, answer = continued(folder, "First <image> then <image>: ", [ONE, TWO])
    assert plain == [prompt, answer]
    marked = "<|turn|>system:Look.<|end|><|turn|>user:Which @ is <image><|end|><|turn|>assistant:"
    prompt, _ = continued(folder, marked, [ONE])
    at = prompt.index(ord("@"))
    wanted = [*prompt[:at], *b"<image>", *prompt[at + 1 :]]
    assert chat[0] == wanted, "what a user writes is no image"
    assert len(chat[1]) == LENGTH
