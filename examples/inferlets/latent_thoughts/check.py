"""Outputs that are fed back as inputs are those of transformers, and each costs one forward."""

from __future__ import annotations

import random
from typing import Any

from examples.checks import DEMO_MODEL, Measure, program
from examples.demo_model.arithmetic import draw_problem
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 2
THOUGHTS = (0, 1, 4, 8)


class Reference:
    """transformers with the outputs of its last layer as `inputs_embeds`."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.model: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(DEMO_MODEL)

    def probabilities(self, question: str, thoughts: int) -> list[float]:
        """Of the token behind so many thoughts."""
        chat = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with self.torch.no_grad():
            embeds = self.model.get_input_embeddings()(ids)
            for _ in range(thoughts):
                last = self.model.model(inputs_embeds=embeds).last_hidden_state[:, -1:]
                embeds = self.torch.cat([embeds, last], dim=1)
            return list(self.model(inputs_embeds=embeds).logits[0, -1].softmax(-1).tolist())


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw, reference = random.Random(seed), Reference()
    thinking = await client.upload(program("latent_thoughts"), "")
    difference, right = 0.0, dict.fromkeys(THOUGHTS, 0)
    for _ in range(problems):
        problem = draw_problem(draw)
        for thoughts in THOUGHTS:
            pieces: list[str] = []
            asked = f"What is {problem}?"
            found = await client.run(thinking, question=asked, thoughts=thoughts, on_message=pieces.append)
            right[thoughts] += "".join(pieces).endswith(f"Answer: {problem.result}")
            expected = reference.probabilities(asked, thoughts)
            difference = max(difference, *(abs(expected[int(token)] - p) for token, p in found.items()))
    forwards = []
    for thoughts in THOUGHTS:
        before = await _forwards(client)
        await client.run(thinking, thoughts=thoughts, max_tokens=0)
        forwards.append(await _forwards(client) - before)
    most = max(THOUGHTS)
    return [
        Measure("largest difference to transformers' probabilities", difference, at_most=1e-4),
        Measure("forwards a thought", (forwards[-1] - forwards[0]) / most, at_least=1.0, at_most=1.0),
        *(Measure(f"right sums after {number} thoughts", right[number] / problems) for number in THOUGHTS),
    ]


async def _forwards(client: Client) -> int:
    """Batches of forwards. Waves are no measure: what fills inputs may go in one before that of its forward."""
    (worker,) = next(iter((await client.statistics())["models"].values()))
    return int(worker["scheduler"]["batches"]["forward"])
