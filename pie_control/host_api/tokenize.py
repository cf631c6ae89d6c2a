"""tokenize.wit: text to tokens and back, handled by the control layer."""

from __future__ import annotations

from ..inferlets.inferlet import Inferlet
from ..services.tokenizer import Detokenizer
from .handles import handle_of, queue_of


def tokenize(inferlet: Inferlet, queue: int, text: str) -> list[int]:
    return queue_of(inferlet, queue).model.tokenizer.encode(text)


def detokenize(inferlet: Inferlet, queue: int, tokens: list[int]) -> str:
    return queue_of(inferlet, queue).model.tokenizer.decode(tokens)


def create_detokenizer(inferlet: Inferlet, queue: int) -> int:
    return inferlet.add_handle(Detokenizer(queue_of(inferlet, queue).model.tokenizer))


def push_tokens(inferlet: Inferlet, detokenizer: int, tokens: list[int]) -> str:
    return handle_of(inferlet, detokenizer, Detokenizer).push(tokens)


def destroy_detokenizer(inferlet: Inferlet, detokenizer: int) -> None:
    handle_of(inferlet, detokenizer, Detokenizer)
    del inferlet.handles[detokenizer]


def get_vocabs(inferlet: Inferlet, queue: int) -> str:
    return queue_of(inferlet, queue).model.tokenizer.vocabulary


def format_chat(inferlet: Inferlet, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> str:
    return queue_of(inferlet, queue).model.tokenizer.format_chat(messages, tools, add_generation_prompt)
