"""What a text of a model consists of, when it may call tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """Text that belongs to no call. One stretch of it may come in several pieces."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """A call whose name is known; its arguments still come. `number` counts the calls of a text."""

    number: int
    name: str


class Written(str):
    """An argument as the model wrote it, in a format that tells texts from other values by the tool's types only."""


@dataclass(frozen=True)
class Call:
    """A whole call. `arguments` are by name, or a list in the order of the tool's parameters; `text` is what the model
    wrote."""

    number: int
    name: str
    arguments: dict[str, Any] | list[Any]
    text: str


@dataclass(frozen=True)
class Malformed:
    """A call that cannot be read, and why. `cut_off`: the text ended within it. `name`, as far as it is known."""

    number: int
    text: str
    reason: str
    name: str = ""
    cut_off: bool = False


Event = Text | CallStarted | Call | Malformed
