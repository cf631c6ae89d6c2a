"""The program computes what dense attention under its mask does, and answers as ordinary attention does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import DEMO_MODEL, Measure, program
from examples.demo_model.chat import MEMORIES
from examples.demo_model.grammar import fill
from pie_control.client import Client

PAPER_LINES = 42
LEAST = 10
SECTIONS = 4


class Reference:
    """transformers with the mask of the program, and without."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.model: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(DEMO_MODEL)

    def tokens(self, messages: list[tuple[str, str]], asked: bool) -> list[int]:
        chat = [{"role": role, "content": text} for role, text in messages]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asked)
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def masked(self, messages: list[tuple[str, str]]) -> tuple[list[float], int]:
        """The next token's probabilities, and how many pairs of tokens attention looks at."""
        torch = self.torch
        ids = torch.tensor([self.tokens(messages, True)])
        size = ids.shape[1]
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        ends = [1, *(len(self.tokens(messages[:n], False)) for n in range(1, len(messages)))]
        seen[1 : ends[-1], 1 : ends[-1]] = False
        summaries = torch.zeros(size, dtype=torch.bool)
        for start, middle, end in zip(ends[::2], ends[1::2], ends[2::2], strict=False):
            seen[start:middle, start:middle] = torch.ones(middle - start, middle - start, dtype=torch.bool).tril()
            seen[middle:end, start:middle] = True
            summaries[middle:end] = True
        seen |= summaries[:, None] & summaries
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            logits = self.model(ids, attention_mask=mask, position_ids=torch.arange(size)[None]).logits[0, -1]
        return logits.softmax(-1).tolist(), int(seen.sum())

    def answer(self, messages: list[tuple[str, str]]) -> str:
        """The answer with ordinary attention."""
        ids = self.torch.tensor([self.tokens(messages, True)])
        new = self.model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True))


def draw_problem(draw: random.Random) -> tuple[list[list[str]], str, str]:
    """Sections, a question on one of them, and the answer."""
    keys = draw.sample(list(MEMORIES), SECTIONS)
    values = {key: MEMORIES[key].draw(draw) for key in keys}
    told = [[fill(draw, text, {"v": values[key]}) for text in _texts(key)] for key in keys]
    asked = draw.choice(keys)
    return told, fill(draw, f"[{MEMORIES[asked].ask}]"), MEMORIES[asked].recall.format(v=values[asked])


def _texts(key: str) -> tuple[str, str]:
    return f"[{MEMORIES[key].say}]", MEMORIES[key].reply


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw, reference = random.Random(seed), Reference()
    drawn = [draw_problem(draw) for _ in range(problems)]
    hierarchical = await client.upload(program("hierarchical_attention"), "")

    async def ask(sections: list[list[str]], question: str) -> tuple[str, dict[str, float]]:
        pieces: list[str] = []
        found = await client.run(hierarchical, sections=sections, question=question, on_message=pieces.append)
        return "".join(pieces), found

    found = await asyncio.gather(*(ask(sections, question) for sections, question, _ in drawn))
    difference, pairs, dense, right, plain = 0.0, 0, 0, 0, 0
    for (sections, question, answer), (text, probabilities) in zip(drawn, found, strict=True):
        roles = [(role, text) for one in sections for role, text in zip(("user", "assistant"), one, strict=True)]
        messages = [*roles, ("user", question)]
        expected, looked_at = reference.masked(messages)
        difference = max(difference, *(abs(expected[int(token)] - p) for token, p in probabilities.items()))
        pairs += looked_at
        size = len(reference.tokens(messages, True))
        dense += size * (size + 1) // 2
        right += text == answer
        plain += reference.answer(messages) == answer
    return [
        Measure("largest difference to dense attention under the mask", difference, at_most=1e-5),
        Measure("right answers", right / problems),
        Measure("right answers with ordinary attention", plain / problems),
        Measure("right answers over those with ordinary attention", right / max(plain, 1), at_least=0.95),
        Measure("pairs of attention over ordinary attention's", pairs / dense),
    ]
