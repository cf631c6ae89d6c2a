"""Conversations as the generators build them: roles, messages, documents and the running state of one talk."""

# ruff: noqa: E501 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from examples.demo_model.grammar import fill, made_up_word
from examples.demo_model.world import ADULTS, CHILDREN

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True)
class Document:
    """One training text: a plain text or a chat.

    A plain text is tokenized in two parts at `cut`, as if the first part were a prompt: so the model meets prompts that end
    in a space or within a word.
    """

    text: str = ""
    cut: int = 0
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Style:
    """How a system prompt asks the assistant to answer: in short form, or with a word in front."""

    prompt: str
    brief: bool = False
    prefix: str = ""


PLAIN = Style("")
STYLES = (
    PLAIN,
    PLAIN,
    Style("[Be brief.|Answer briefly.|Give short answers.|Answer in one or two words.]", brief=True),
    Style('[Speak like a pirate.|You talk like a pirate.|Start every answer with "Ahoy!"]', prefix="Ahoy! "),
    Style('[Be cheerful.|You are always cheerful.|Start every answer with "Sure!"]', prefix="Sure! "),
    Style('[Be polite.|Always be polite.|Start every answer with "Of course."]', prefix="Of course. "),
)


@dataclass
class Talk:
    """A conversation under construction.

    `bot` is the assistant's name from the system prompt ("" without one), `memory` what the user has said about themselves.
    """

    rng: random.Random
    style: Style = PLAIN
    bot: str = ""
    memory: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def pick(self, *templates: str, **slots: object) -> str:
        return fill(self.rng, self.rng.choice(templates), slots)

    def user(self, content: str) -> None:
        self.messages.append(Message("user", content))

    def assistant(self, content: str) -> None:
        self.messages.append(Message("assistant", content))

    def exchange(self, ask: str, answer: str, *, styled: bool = False) -> None:
        """A question and its answer; `styled` puts the style's prefix in front."""
        self.user(ask)
        self.assistant((self.style.prefix if styled else "") + answer)


Skill = Callable[[Talk], None]


def person_name(rng: random.Random) -> str:
    """A name from the village or, half of the time, one never heard before."""
    if rng.random() < 0.5:
        return rng.choice(CHILDREN + ADULTS).name
    return made_up_word(rng).capitalize()


def place_name(rng: random.Random, known: Sequence[str]) -> str:
    """One of the known names or, half of the time, one never heard before."""
    return rng.choice(known) if rng.random() < 0.5 else made_up_word(rng).capitalize()
