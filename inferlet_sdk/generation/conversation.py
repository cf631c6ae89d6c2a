"""Chat messages in a context.

A chat template renders whole conversations, and it decides what stands between two messages. So each turn renders all
messages again and keeps the longest common token prefix. Then the context holds exactly the rendered tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.generation.sequence import TokenSequence


class Conversation:
    """The messages of a context, and their place among its tokens."""

    def __init__(self) -> None:
        self._messages: list[Mapping[str, Any]] = []
        self._start: int | None = None  # tokens before the first message
        self._end = 0  # tokens up to the last `add`

    def copy(self) -> Conversation:
        """A copy for a forked context."""
        other = Conversation()
        other._messages, other._start, other._end = self._messages.copy(), self._start, self._end
        return other

    def add(
        self,
        sequence: TokenSequence,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> None:
        """Appends the reply that was generated since the last messages, then new messages."""
        start = len(sequence.tokens) if self._start is None else self._start
        all_messages = [*self._messages, *self._reply(sequence), *messages]
        with sequence.queues.some() as queue:
            rendered = traits.tokenize_chat(queue, all_messages, tools, add_generation_prompt)
        common = _common_prefix(sequence.tokens, rendered, start)
        sequence.truncate(start + common)
        sequence.tokens += rendered[common:]
        self._messages, self._start, self._end = all_messages, start, len(sequence.tokens)

    def _reply(self, sequence: TokenSequence) -> list[Mapping[str, Any]]:
        tokens = sequence.tokens[self._end :] if self._start is not None else []
        return [{"role": "assistant", "content": sequence.detokenize(tokens)}] if tokens else []


def _common_prefix(tokens: Sequence[int], rendered: Sequence[int], start: int) -> int:
    length = min(len(tokens) - start, len(rendered))
    return next((n for n in range(length) if tokens[start + n] != rendered[n]), length)
