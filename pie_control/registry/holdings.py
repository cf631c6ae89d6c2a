"""What the inferlets of each key hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .entry import Entry


@dataclass(frozen=True)
class KeyHoldings:
    """What the running inferlets of a key hold now. `key`: its id; empty: those that no key has launched."""

    tenant: str
    key: str
    inferlets: int
    pages: int
    embeds: int
    cpu_seconds: float


def held_by_keys(entries: Iterable[Entry]) -> tuple[KeyHoldings, ...]:
    """Sums by tenant and key. Inferlets that have ended hold nothing."""
    found = defaultdict[tuple[str, str], list[Entry]](list)
    for entry in entries:
        if entry.ended is None:
            found[entry.standing.tenant.name, entry.standing.key].append(entry)
    return tuple(
        KeyHoldings(
            *whose,
            inferlets=len(some),
            pages=sum(one.pages for one in some),
            embeds=sum(one.embeds for one in some),
            cpu_seconds=round(sum(one.cpu_seconds for one in some), 6),
        )
        for whose, some in sorted(found.items())
    )
