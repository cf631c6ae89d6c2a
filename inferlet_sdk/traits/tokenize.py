"""Tokenize: text to tokens and back, for the model of a queue. The control layer answers these calls at once."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.errors import call

__all__ = [
    "create_detokenizer",
    "destroy_detokenizer",
    "detokenize",
    "format_chat",
    "get_vocabs",
    "push_tokens",
    "tokenize",
]


def tokenize(queue: int, text: str) -> list[int]:
    """Token ids of a text. Special tokens in the text are recognized; none are added."""
    return list(call(bindings.tokenize.tokenize, queue, text, True))


def detokenize(queue: int, tokens: Sequence[int]) -> str:
    """Text of tokens, without special tokens. Bytes that are not valid UTF-8 become U+FFFD."""
    return str(call(bindings.tokenize.detokenize, queue, list(tokens)))


def create_detokenizer(queue: int) -> int:
    """Creates a detokenizer, which keeps the bytes of an incomplete character until the rest arrives."""
    return int(call(bindings.tokenize.create_detokenizer, queue))


def push_tokens(detokenizer: int, tokens: Sequence[int]) -> str:
    """Adds tokens; returns the text that they complete, always whole characters."""
    return str(call(bindings.tokenize.push_tokens, detokenizer, list(tokens)))


def destroy_detokenizer(detokenizer: int) -> None:
    """Frees a detokenizer."""
    call(bindings.tokenize.destroy_detokenizer, detokenizer)


def get_vocabs(queue: int) -> list[bytes]:
    """The bytes of every token, by token id."""
    lines = str(call(bindings.tokenize.get_vocabs, queue)).split("\n")
    return [base64.b64decode(line) for line in (lines[:-1] if lines[-1] == "" else lines)]


def format_chat(
    queue: int,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
) -> str:
    """Renders `messages`, mappings with "role" and "content", in the model's chat template; raises Unsupported if the
    model has none.
    """
    tools_json = json.dumps(list(tools)) if tools else ""
    return str(
        call(bindings.tokenize.format_chat, queue, json.dumps(list(messages)), tools_json, add_generation_prompt)
    )
