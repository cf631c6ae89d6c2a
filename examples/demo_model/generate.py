"""Greedy batched generation with the exported folder, for the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo_model.talk import Message
from examples.demo_model.tokenizer import BEGIN, END, token_id

Prompt = str | Sequence[Message]


@dataclass(frozen=True)
class Answer:
    """Generated text without special tokens; `ended`: whether the model closed it with the end token."""

    text: str
    ended: bool


class Generator:
    """The model in float32 with its tokenizer."""

    def __init__(self, folder: Path, batch: int = 50) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # takes seconds

        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        # Any: transformers' types do not admit that its own classes have `generate`.
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._batch = batch

    def answer(self, prompts: Sequence[Prompt], limit: int = 160, *, temperature: float = 0.0) -> list[Answer]:
        """One answer for each prompt: a chat (its messages) or the start of a plain text."""
        texts = [self._prompt_text(prompt) for prompt in prompts]
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        answers: dict[int, Answer] = {}
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            generated = self._generate([texts[index] for index in chosen], limit, temperature)
            answers |= dict(zip(chosen, generated, strict=True))
        return [answers[index] for index in range(len(texts))]

    def _prompt_text(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return BEGIN + prompt
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return text

    @torch.no_grad()
    def _generate(self, texts: list[str], limit: int, temperature: float) -> list[Answer]:
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        output: Tensor = self.model.generate(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=limit, **sampling
        )
        new = output[:, inputs.input_ids.shape[1] :]
        ended = (new == token_id(END)).any(dim=1)
        written = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return [Answer(text, bool(end)) for text, end in zip(written, ended, strict=True)]
