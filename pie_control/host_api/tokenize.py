"""tokenize.wit: text to tokens and back, handled by the control layer."""

from __future__ import annotations

from ..services.tokenizer import Detokenizer
from .guest import Guest


def tokenize(guest: Guest, queue: int, text: str, special_tokens: bool) -> list[int]:
    return guest.model_of(queue).tokenizer.encode(text, special_tokens)


def detokenize(guest: Guest, queue: int, tokens: list[int]) -> str:
    return guest.model_of(queue).tokenizer.decode(tokens)


def create_detokenizer(guest: Guest, queue: int) -> int:
    return guest.add_handle(Detokenizer(guest.model_of(queue).tokenizer))


def push_tokens(guest: Guest, detokenizer: int, tokens: list[int]) -> str:
    return guest.handle(detokenizer, Detokenizer).push(tokens)


def destroy_detokenizer(guest: Guest, detokenizer: int) -> None:
    guest.drop_handle(detokenizer, Detokenizer)


def get_vocabs(guest: Guest, queue: int) -> str:
    return guest.model_of(queue).tokenizer.vocabulary


def format_chat(guest: Guest, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> str:
    return guest.model_of(queue).tokenizer.format_chat(messages, tools, add_generation_prompt)
