"""Who yields when a pool runs out (paper, section 5.2: first come, first served).

The scheduler asks the policy only when what is free and what is already coming back do not cover the request. A policy
sees what each inferlet holds, in which class and for whom it works, and answers with actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pie_control.ids import Owner
from pie_control.tenants.tenant import DEFAULT_STANDING, ServiceClass, Standing

from .holdings import Holdings
from .kinds import Resource


@dataclass(frozen=True, slots=True)
class Shortage:
    """`owner` asks for `requested` of a pool of `total`, and `missing` of them are neither free nor coming back."""

    owner: Owner
    resource: Resource
    requested: int
    missing: int
    total: int


class Holder(NamedTuple):
    """An inferlet and what it holds of a kind of memory, beside what it is giving back."""

    owner: Owner
    created: float  # seconds
    held: int
    standing: Standing = DEFAULT_STANDING


class Stalled(NamedTuple):
    """Tells whose commands may not go for long. `owners`: inferlets that wait for a budget; `classes`: those of which
    something waits that waves had no room for."""

    owners: frozenset[Owner] = frozenset()
    classes: tuple[ServiceClass, ...] = ()

    def keeps(self, one: Holdings, asking: Holdings) -> bool:
        """Whether an inferlet that yields to another one may keep what it gives back for longer than that should wait:
        it waits itself for those of the other's class, or for a budget that is not the other's."""
        class_ = one.standing.service_class
        if class_ > asking.standing.service_class and class_ in self.classes:
            return True
        waits = one.owner in self.owners and one.standing.tenant != asking.standing.tenant
        return waits and one.rank(0) > asking.rank(0)


NOBODY = Stalled()


@dataclass(frozen=True, slots=True)
class End:
    """The inferlet ends now, with this message; all that it holds comes back."""

    owner: Owner
    message: str


@dataclass(frozen=True, slots=True)
class Shed:
    """Exports were dropped: their pages come back."""


Action = End | Shed
"""What can be done about a shortage."""


class ContentionPolicy(Protocol):
    """Decides which inferlet yields."""

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        """What to do, in order; nothing: the request waits. `holders` lists all inferlets, the requester among them. If
        what comes back does not cover the shortage and the requester stays, its request waits, too, and the policy is
        asked again when something has changed. Requests behind it in line are not asked about as long as it waits."""
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Ends the youngest inferlets until the request fits, those of a lower class first, whatever their age. None of a
    higher class is ended, none older of its own class, and nobody if all that may yield hold too little: then the
    requester ends itself, or waits if inferlets of a higher class hold what it lacks."""

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        asking = next((holder for holder in holders if holder.owner == shortage.owner), None)
        if asking is None:
            return ()
        own = _order(asking)
        yielding = _enough([one for one in holders if one.held and _order(one) > own], shortage.missing)
        if yielding:
            return tuple(End(one.owner, _text(shortage, _why(asking, one))) for one in yielding)
        if any(one.held and one.standing.service_class < asking.standing.service_class for one in holders):
            return ()
        return (End(asking.owner, _text(shortage, "it asked for them, and nobody younger holds enough")),)


def _order(holder: Holder) -> tuple[ServiceClass, float, Owner]:
    """The larger yields first."""
    return holder.standing.service_class, holder.created, holder.owner


def _enough(candidates: Sequence[Holder], missing: int) -> list[Holder]:
    """The first in the order of yielding that hold enough, without those that are not needed; nobody if all of them
    hold too little."""
    chosen = []
    for holder in sorted(candidates, key=_order, reverse=True):
        if missing > 0:
            chosen.append(holder)
            missing -= holder.held
    if missing > 0:
        return []
    spare = -missing
    for holder in tuple(chosen):
        if holder.held <= spare:
            chosen.remove(holder)
            spare -= holder.held
    return chosen


def _why(asking: Holder, ended: Holder) -> str:
    if ended.standing.service_class > asking.standing.service_class:
        return "an interactive inferlet asked for them, and this one is a batch job"
    return "an older inferlet asked for them"


def _text(shortage: Shortage, why: str) -> str:
    return (
        f"out of {shortage.resource}: {shortage.requested} were asked for and {shortage.missing} of them are missing "
        f"in a pool of {shortage.total}; this inferlet was ended ({why}; first come, first served). Hold fewer "
        f"{shortage.resource} or run fewer inferlets at a time"
    )
