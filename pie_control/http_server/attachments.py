"""Which client reads the events of which inferlet. One client at a time: a second one would take messages away."""

from __future__ import annotations

from pie_control.errors import Conflict
from pie_control.inferlets.events import Ended, Event
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.mailbox import Listener


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


def attach(inferlet: Inferlet, listener: Listener) -> None:
    """Attaches a listener. If another listener has already heard the end, this one hears it again."""
    heard_end = False

    def hear(event: Event) -> None:
        nonlocal heard_end
        heard_end = isinstance(event, Ended)
        listener(event)

    inferlet.attach(hear)
    info = inferlet.info()
    if info.ended is not None and not heard_end:
        listener(Ended(info.status, info.result, info.error, inferlet=info.id))
