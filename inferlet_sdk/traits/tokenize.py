"""Tokenize: text to tokens and back, for the model of a queue. The control layer answers these calls."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, as_json, flag, queue_number, whole
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import tokens as token_list

__all__ = [
    "create_detokenizer",
    "destroy_detokenizer",
    "detokenize",
    "format_chat",
    "get_vocabs",
    "push_tokens",
    "tokenize",
    "tokenize_chat",
]


def tokenize(queue: int | HasQueue, text: str, special_tokens: bool = True) -> list[int]:
    """Token ids of a text; no special tokens are added. `special_tokens`: whether those written in the text are
    recognized. Use False for text of others, which could otherwise end a turn or begin one in another's name.
    """
    arguments = queue_number(queue), checked_text(text, "text"), flag(special_tokens, "special_tokens")
    return list(call(bindings.tokenize.tokenize, *arguments))


def detokenize(queue: int | HasQueue, tokens: Sequence[int]) -> str:
    """Text of tokens, without special tokens. Bytes that are not valid UTF-8 become U+FFFD."""
    return str(call(bindings.tokenize.detokenize, queue_number(queue), token_list(tokens)))


def create_detokenizer(queue: int | HasQueue) -> int:
    """Creates a detokenizer, which keeps the bytes of an incomplete character until the rest arrives."""
    return int(call(bindings.tokenize.create_detokenizer, queue_number(queue)))


def _detokenizer(detokenizer: object) -> int:
    return whole(detokenizer, "detokenizer", wanted="the number of a detokenizer, from `create_detokenizer`")


def push_tokens(detokenizer: int, tokens: Sequence[int]) -> str:
    """Adds tokens; returns the text that they complete, always whole characters."""
    return str(call(bindings.tokenize.push_tokens, _detokenizer(detokenizer), token_list(tokens)))


def destroy_detokenizer(detokenizer: int) -> None:
    """Frees a detokenizer."""
    call(bindings.core.drop, _detokenizer(detokenizer))


def get_vocabs(queue: int | HasQueue) -> list[bytes]:
    """The bytes of every token, by token id."""
    lines = str(call(bindings.tokenize.get_vocabs, queue_number(queue))).split("\n")
    return [base64.b64decode(line) for line in (lines[:-1] if lines[-1] == "" else lines)]


def format_chat(
    queue: int | HasQueue,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Renders `messages`, mappings with "role" and "content", in the model's chat template; raises Unsupported if the
    model has none. `variables`: further ones that the template reads, such as `{"enable_thinking": False}`. In the
    rendered text nothing tells the template's special tokens from those that a message contains: `tokenize_chat` does.
    """
    return str(call(bindings.tokenize.format_chat, *_chat(queue, messages, tools, add_generation_prompt, variables)))


def tokenize_chat(
    queue: int | HasQueue,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of `messages` in the model's chat template; raises Unsupported if the model has none. Text of messages
    and tools is never read as special tokens. `variables`: as of `format_chat`.
    """
    return list(call(bindings.tokenize.tokenize_chat, *_chat(queue, messages, tools, add_generation_prompt, variables)))


def _chat(
    queue: object, messages: object, tools: object, add_generation_prompt: object, variables: Mapping[str, Any] | None
) -> tuple[int, str, str, bool]:
    tools_json, messages_json = as_json(tools, "tools"), as_json(messages, "messages")
    if variables:
        messages_json = f'{{"messages": {messages_json}, "variables": {as_json([variables], "variables")[1:-1]}}}'
    return (
        queue_number(queue),
        messages_json,
        "" if tools_json == "[]" else tools_json,
        flag(add_generation_prompt, "add_generation_prompt"),
    )
