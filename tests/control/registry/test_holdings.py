"""What the inferlets of each key hold."""

from __future__ import annotations

from typing import cast

from pie_control.config import InferletLimits
from pie_control.programs.store import Program
from pie_control.registry.entry import Entry
from pie_control.registry.holdings import KeyHoldings, held_by_keys
from pie_control.tenants.tenant import Standing, Tenant


def entry(number: int, tenant: str, key: str, pages: int, ended: float | None = None) -> Entry:
    standing = Standing(Tenant(tenant), key=key)
    made = Entry(number, cast(Program, None), InferletLimits(), lambda *_: None, lambda *_: None, standing)
    made.pages, made.embeds, made.cpu_seconds, made.ended = pages, 2 * pages, 0.5, ended
    return made


def test_what_runs_is_added_up_by_tenant_and_key() -> None:
    entries = [
        entry(1, "bob", "k1", 3),
        entry(2, "ann", "k2", 5),
        entry(3, "bob", "k1", 4),
        entry(4, "bob", "", 1),
        entry(5, "bob", "k1", 100, ended=1.0),
    ]
    assert held_by_keys(entries) == (
        KeyHoldings("ann", "k2", 1, 5, 10, 0.5),
        KeyHoldings("bob", "", 1, 1, 2, 0.5),
        KeyHoldings("bob", "k1", 2, 7, 14, 1.0),
    )
