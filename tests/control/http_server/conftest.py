"""What tests of slow and stalled clients share."""

from __future__ import annotations

import pytest

from pie_control.http_server import connections
from pie_control.http_server.connections import Connections

SECONDS = 0.5
GRACE_SECONDS = 0.1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits only a moment. Its clock goes on with each sweep, so it does not count the time in which
    this process has no processor."""
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "STALLED_SECONDS"):
        monkeypatch.setattr(connections, name, SECONDS)
    monkeypatch.setattr(connections, "GRACE_SECONDS", GRACE_SECONDS)
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.02)
    sweep, now = Connections.sweep, [0.0]

    def tick(self: Connections, _: float) -> None:
        now[0] += connections.SWEEP_SECONDS
        sweep(self, now[0])

    monkeypatch.setattr(connections, "clock", lambda: now[0])
    monkeypatch.setattr(Connections, "sweep", tick)
