"""Who yields when a pool runs out (paper, section 5.2: first come, first served).

The scheduler asks the policy only when what is free and what is already coming back do not cover the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Shortage:
    """`owner` asks for slots of a pool of `total`, and `missing` of them are neither free nor coming back."""

    owner: int
    what: str  # "KV pages" or "embeds"
    requested: int
    missing: int
    total: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Slots that ending this inferlet gives back."""

    owner: int
    created: float  # seconds
    held: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """An inferlet that has to end, and the message for it."""

    owner: int
    message: str


class ContentionPolicy(Protocol):
    """Decides who yields."""

    def resolve(self, shortage: Shortage, holdings: Sequence[Holding]) -> tuple[Eviction, ...]:
        """Inferlets to end. `holdings` lists all that are not ending yet, the requester among them. If what they hold
        does not cover the shortage and the requester stays, its request waits."""
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Ends the youngest inferlets until the request fits; the requester itself if it is the youngest left."""

    def resolve(self, shortage: Shortage, holdings: Sequence[Holding]) -> tuple[Eviction, ...]:
        evictions: list[Eviction] = []
        missing = shortage.missing
        for holding in sorted(holdings, key=_age, reverse=True):
            if missing <= 0:
                break
            if holding.owner == shortage.owner:
                evictions.append(Eviction(holding.owner, _text(shortage, "it asked for them")))
                break
            if holding.held:
                evictions.append(Eviction(holding.owner, _text(shortage, "an older inferlet asked for them")))
                missing -= holding.held
        return tuple(evictions)


def _age(holding: Holding) -> tuple[float, int]:
    return holding.created, holding.owner


def _text(shortage: Shortage, why: str) -> str:
    return (
        f"out of {shortage.what}: {shortage.requested} were asked for and {shortage.missing} of them are missing in a "
        f"pool of {shortage.total}; this inferlet is the youngest and was ended ({why}; first come, first served). "
        f"Hold fewer {shortage.what} or run fewer inferlets at a time"
    )
