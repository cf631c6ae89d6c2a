"""Reasoning in the text of a model: what stands between `<think>` and `</think>` at the beginning of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferlet_sdk import traits
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.tools.formats.parser import held_back

BEGIN, END = "<think>", "</think>"
NEAR = 8
"""Tokens at the end of a prompt among which the template's own marks are."""


@dataclass(frozen=True)
class Thinking:
    """How a model marks its reasoning: the tokens of the marks. `shown`: those that text leaves out."""

    begin: int
    end: int
    shown: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_model(cls, queues: Queues) -> Thinking | None:
        """None: the model has no such tokens, and does not reason."""
        with queues.some() as queue:
            found = [traits.tokenize(queue, mark) for mark in (BEGIN, END)]
            if any(len(one) != 1 for one in found):
                return None
            (begin,), (end,) = found
            hidden = [(begin, BEGIN), (end, END)]
            return cls(begin, end, {one: mark for one, mark in hidden if not traits.detokenize(queue, [one])})

    def state(self, tokens: Sequence[int]) -> bool | None:
        """Whether a prompt ends within reasoning (True), which the answer goes on with, or behind its end (False).
        None: the answer begins with reasoning if the model likes."""
        for token in reversed(tokens[-NEAR:]):
            if token in (self.begin, self.end):
                return token == self.begin
        return None


class ReasoningParser:
    """Parts a text that comes in pieces. `feed` and `finish` give reasoning and the other text, one of which may be
    empty. It decides by what the text is, never by where a piece ends: what may become a mark is held back. The marks
    and the space around them belong to neither."""

    def __init__(self, is_open: bool) -> None:
        """`is_open`: the text begins within reasoning."""
        self._buffer = ""
        self._state = "opening" if is_open else "start"

    @property
    def is_open(self) -> bool:
        """Whether it stands within reasoning."""
        return self._state in ("opening", "reasoning")

    def feed(self, text: str) -> tuple[str, str]:
        """What has become certain with these characters."""
        if self._state == "text":
            return "", text
        self._buffer += text
        if self._state == "start":
            self._find_begin()
        if self._state == "opening":
            self._buffer = self._buffer.lstrip()
            self._state = "reasoning" if self._buffer else "opening"
        reasoning = self._reasoning() if self._state == "reasoning" else ""
        if self._state == "after":
            self._buffer = self._buffer.lstrip()
            self._state = "text" if self._buffer else "after"
        if self._state != "text":
            return reasoning, ""
        rest, self._buffer = self._buffer, ""
        return reasoning, rest

    def finish(self) -> tuple[str, str]:
        """What is left when the text is over."""
        rest, self._buffer = self._buffer, ""
        return (rest, "") if self._state == "reasoning" else ("", rest)

    def _find_begin(self) -> None:
        text = self._buffer.lstrip()
        if text.startswith(BEGIN):
            self._state, self._buffer = "opening", text[len(BEGIN) :]
        elif not BEGIN.startswith(text):
            self._state = "text"

    def _reasoning(self) -> str:
        """Reasoning up to its end, or as far as it is certain."""
        text, found, rest = self._buffer.partition(END)
        if found:
            self._state, self._buffer = "after", rest
            return text.rstrip()
        certain = len(text[: len(text) - held_back(text, END)].rstrip())
        self._buffer = text[certain:]
        return text[:certain]
