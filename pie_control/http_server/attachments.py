"""Clients that read the events of inferlets. An inferlet has one at a time: a second one would take messages away."""

from __future__ import annotations

from pie_control.errors import Conflict


class Attachments:
    """The inferlets whose events a client of this server reads."""

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}

    def claim(self, inferlet: str, owner: object) -> None:
        """Reserves the events of an inferlet; raises Conflict."""
        if self._owners.setdefault(inferlet, owner) is not owner:
            raise Conflict(f"another client is attached to inferlet {inferlet}: let it detach or disconnect first")

    def release(self, inferlet: str, owner: object) -> None:
        """Drops a claim; idempotent."""
        if self._owners.get(inferlet) is owner:
            del self._owners[inferlet]
