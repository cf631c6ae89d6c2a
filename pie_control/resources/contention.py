"""Which inferlet yields when a pool runs out (paper, section 5.2: first come, first served).

The scheduler asks the policy only when what is free and what is already coming back do not cover the request. A policy
sees what each inferlet holds, what it waits for and since when, and answers with actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pie_control.ids import Owner

from .kinds import Resource


@dataclass(frozen=True, slots=True)
class Shortage:
    """`owner` asks for `requested` of a pool of `total`, and `missing` of them are neither free nor coming back."""

    owner: Owner
    resource: Resource
    requested: int
    missing: int
    total: int


@dataclass(frozen=True, slots=True)
class Holder:
    """An inferlet and what it holds of a kind of memory. `waits_for`: what it asks for and does not have yet."""

    owner: Owner
    created: float  # seconds
    held: int
    waits_for: int = 0
    waits_since: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class End:
    """The inferlet ends now, with this message; all that it holds comes back."""

    owner: Owner
    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """No inferlet yields: the request waits until memory is given back."""


Action = End | Wait
"""What can be done about a shortage."""


class ContentionPolicy(Protocol):
    """Decides which inferlet yields."""

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        """What to do, in order. `holders` lists all inferlets, the requester among them. If what comes back does not
        cover the shortage and the requester stays, its request waits."""
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Ends the youngest inferlets until the request fits; the requester itself if it is the youngest left."""

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        actions: list[Action] = []
        missing = shortage.missing
        for holder in sorted(holders, key=_age, reverse=True):
            if missing <= 0:
                break
            if holder.owner == shortage.owner:
                return (*actions, End(holder.owner, _text(shortage, "it asked for them")))
            if holder.held:
                actions.append(End(holder.owner, _text(shortage, "an older inferlet asked for them")))
                missing -= holder.held
        return tuple(actions) or (Wait(),)


def _age(holder: Holder) -> tuple[float, int]:
    return holder.created, holder.owner


def _text(shortage: Shortage, why: str) -> str:
    return (
        f"out of {shortage.resource}: {shortage.requested} were asked for and {shortage.missing} of them are missing "
        f"in a pool of {shortage.total}; this inferlet is the youngest and was ended ({why}; first come, first "
        f"served). Hold fewer {shortage.resource} or run fewer inferlets at a time"
    )
