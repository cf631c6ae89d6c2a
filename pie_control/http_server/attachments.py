"""Clients that read the events of inferlets. An inferlet has one at a time: a second one would take messages away."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pie_control.errors import Conflict


@runtime_checkable
class GivesWay(Protocol):
    """A reader that another one may take the place of."""

    def give_way(self) -> bool:
        """Whether it takes no more events from now on."""


class Attachments:
    """The inferlets whose events a client of this server reads."""

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}

    def claim(self, inferlet: str, owner: object, comes_back: bool = False) -> None:
        """Reserves the events of an inferlet; raises Conflict. `comes_back`: the client has read some of them, so the
        stream that has them may be its own, whose connection broke without a word: that gives way."""
        before = self._owners.get(inferlet)
        if comes_back and isinstance(before, GivesWay) and before.give_way():
            del self._owners[inferlet]
        if self._owners.setdefault(inferlet, owner) is not owner:
            raise Conflict(f"another client is attached to inferlet {inferlet}: let it detach or disconnect first")

    def release(self, inferlet: str, owner: object) -> None:
        """Drops a claim; idempotent."""
        if self._owners.get(inferlet) is owner:
            del self._owners[inferlet]
