"""tokenize.wit: text to tokens and back, handled by the control layer.

What may take longer than about a millisecond runs on a thread, while the guest is suspended.
"""

from __future__ import annotations

from typing import Any

from ..services.tokenizer import SHORT_TEXT, SHORT_TOKENS, Detokenizer
from .guest import Guest
from .suspending import short_or_aside, suspending


@suspending
def tokenize(guest: Guest, queue: int, text: str, special_tokens: bool) -> Any:
    tokenizer = guest.model_of(queue).tokenizer
    short = len(text) <= SHORT_TEXT and (special_tokens or tokenizer.is_plain(text))
    return short_or_aside(guest, short, lambda: tokenizer.encode(text, special_tokens))


@suspending
def detokenize(guest: Guest, queue: int, tokens: list[int]) -> Any:
    tokenizer = guest.model_of(queue).tokenizer
    return short_or_aside(guest, len(tokens) <= SHORT_TOKENS, lambda: tokenizer.decode(tokens))


def create_detokenizer(guest: Guest, queue: int) -> int:
    return guest.add_handle(Detokenizer(guest.model_of(queue).tokenizer))


@suspending
def push_tokens(guest: Guest, detokenizer: int, tokens: list[int]) -> Any:
    text = guest.handle(detokenizer, Detokenizer)
    return short_or_aside(guest, len(tokens) <= SHORT_TOKENS, lambda: text.push(tokens))


@suspending
def get_vocabs(guest: Guest, queue: int) -> Any:
    tokenizer = guest.model_of(queue).tokenizer
    return short_or_aside(guest, tokenizer.has_vocabulary, lambda: tokenizer.vocabulary)


@suspending
def format_chat(guest: Guest, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> Any:
    tokenizer = guest.model_of(queue).tokenizer
    return guest.inferlet.waits.run_aside(lambda: tokenizer.format_chat(messages, tools, add_generation_prompt))


@suspending
def tokenize_chat(guest: Guest, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> Any:
    tokenizer = guest.model_of(queue).tokenizer
    return guest.inferlet.waits.run_aside(lambda: tokenizer.encode_chat(messages, tools, add_generation_prompt))
