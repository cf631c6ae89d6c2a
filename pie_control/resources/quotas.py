"""What inferlets and tenants may hold, and what they hold.

Theory of operation. Memory counts against its inferlet from the call that asks for it until the scheduler has taken it
back: an address that was given back still counts while a command that waits may use it, for its memory is still bound.
So what is bound and what is promised never exceed a quota, however fast an inferlet allocates and frees. The
alternative, to let an allocation wait for frees of its own, would refuse less; but its room may be held at another
model, by another worker, and a refusal could not be told at the call. A refusal says what is on its way back.

Commands that wait are kept by the control process, which all share. So beyond a few of each inferlet, they have a bound
for all inferlets of a host together, of which a tenant may have half.

Each inferlet has one *ledger* for all models that it uses, and each tenant one for all its inferlets. What a child of
an inferlet holds counts in the ledgers above its own as well: a family never holds more than its root may.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

from pie_control.errors import QuotaExceeded
from pie_control.ids import Owner
from pie_control.tenants.tenant import Tenant

from .kinds import RESOURCES, Resource

WAITING_PART = 2
"""Commands that wait may take as much as this part of the memory for inferlets, beside it: half."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one inferlet. Pages, embeds and queues are counted over all models, commands at each."""

    pages: int = 1 << 20
    embeds: int = 1 << 16
    queues: int = 1024
    commands: int = 1 << 16  # issued and not yet dispatched
    list_bytes: int = 1 << 26  # of lists in these commands, at each

    def limit(self, resource: Resource) -> int:
        """The most that may be held of a kind of memory."""
        limit: int = getattr(self, resource.key)
        return limit


class Usage(NamedTuple):
    """What one inferlet holds now of one model: memory that it owns, and what it gave back and is still bound."""

    pages: int
    embeds: int
    queues: int
    commands: int


class WaitingBytes:
    """What commands that wait take, of all inferlets of a host: at most `most`, as far as it is counted."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def add(self, size: int) -> None:
        """`size` more bytes are held, or fewer if it is negative."""
        self.held += size


class TenantLedger:
    """What all inferlets of a tenant hold together, on one host."""

    __slots__ = ("__weakref__", "_waiting", "held", "tenant", "waiting_bytes")

    def __init__(self, tenant: Tenant, waiting: WaitingBytes) -> None:
        """`waiting`: of all tenants."""
        self.tenant = tenant
        self.held = dict.fromkeys(RESOURCES, 0)
        self.waiting_bytes = 0
        self._waiting = waiting

    def check_waiting(self, size: int) -> None:
        """Whether commands of `size` more bytes may wait. Raises QuotaExceeded."""
        most = self._waiting.most
        if self.waiting_bytes + size > most // 2:
            raise QuotaExceeded(
                f"commands of all inferlets of tenant {self.tenant.name} that wait take {self.waiting_bytes} bytes and "
                f"{size} more were asked for, the limit is {most // 2}: wait for results first, or run fewer inferlets"
            )
        if self._waiting.held + size > most:
            raise QuotaExceeded(f"commands of all inferlets that wait take most of {most} bytes: try again later")

    def add_waiting(self, size: int) -> None:
        """Commands of so many more bytes wait; negative: fewer."""
        self.waiting_bytes += size
        self._waiting.add(size)

    def check(self, resource: Resource, count: int) -> None:
        """Whether `count` more may be held. Raises QuotaExceeded."""
        limit, held = getattr(self.tenant, f"max_{resource.key}"), self.held[resource]
        if limit is not None and held + count > limit:
            raise QuotaExceeded(
                f"all inferlets of tenant {self.tenant.name} hold {held} {resource}, and {count} more were asked for; "
                f"the limit is {limit}: free some, or wait until another one ends"
            )


class Ledger:
    """What one inferlet holds over all its models. `returning`: the part of it that was given back and is still bound.
    `below`: what its children hold, and theirs; `queues` are counted with theirs. `above`: the ledger of its parent.

    The address spaces of the inferlet share it; each takes out what it has put in.
    """

    __slots__ = ("__weakref__", "above", "below", "held", "queues", "quota", "returning", "tenant")

    def __init__(self, quota: Quota, tenant: TenantLedger | None = None, above: Ledger | None = None) -> None:
        self.quota = quota
        self.tenant = tenant
        self.above = above
        self.below = dict.fromkeys(RESOURCES, 0)
        self.held = dict.fromkeys(RESOURCES, 0)
        self.returning = dict.fromkeys(RESOURCES, 0)
        self.queues = 0

    def check(self, resource: Resource, count: int) -> None:
        """Whether `count` more may be held. Raises QuotaExceeded."""
        held = self.held[resource] + self.below[resource]
        check_quota(held, count, self.quota.limit(resource), resource.name, self._advice(resource))
        if self.tenant is not None:
            self.tenant.check(resource, count)
        if self.above is not None:
            self.above.check_family(resource, count)

    def check_family(self, resource: Resource, count: int) -> None:
        """Whether those below may hold `count` more. Raises QuotaExceeded."""
        held = self.held[resource] + self.below[resource]
        advice = "parent and children share it: free some, or wait until one of them ends"
        check_quota(held, count, self.quota.limit(resource), f"{resource.name} of the family", advice)
        if self.above is not None:
            self.above.check_family(resource, count)

    def open_queue(self) -> None:
        """One more queue. Raises QuotaExceeded."""
        ledger: Ledger | None = self
        while ledger is not None:
            what = "queues" if ledger is self else "queues of the family"
            check_quota(ledger.queues, 1, ledger.quota.queues, what, "destroy queues that are not used")
            ledger = ledger.above
        self.close_queues(-1)

    def close_queues(self, count: int) -> None:
        """The inferlet has closed some queues."""
        ledger: Ledger | None = self
        while ledger is not None:
            ledger.queues -= count
            ledger = ledger.above

    def _advice(self, resource: Resource) -> str:
        returning = self.returning[resource]
        if self.below[resource]:
            return f"{self.below[resource]} of those are held by children: free some first, or join one"
        if not returning:
            return "free some first"
        return f"{returning} of those held were given back and come when the commands that may use them have run: wait"

    def add(self, resource: Resource, count: int) -> None:
        """Notes that `count` more are held; negative: fewer."""
        self.held[resource] += count
        if self.tenant is not None:
            self.tenant.held[resource] += count
        above = self.above
        while above is not None:
            above.below[resource] += count
            above = above.above


class Ledgers:
    """The ledgers of a host. One lives as long as an address space uses it."""

    def __init__(self, quota: Quota, guest_bytes: int = 0) -> None:
        """`guest_bytes`: memory for all inferlets; 0: no bound."""
        self.quota = quota
        self._waiting = WaitingBytes(guest_bytes // WAITING_PART or sys.maxsize)
        self._inferlets: WeakValueDictionary[Owner, Ledger] = WeakValueDictionary()
        self._tenants: WeakValueDictionary[str, TenantLedger] = WeakValueDictionary()

    def of(self, owner: Owner, tenant: Tenant, lineage: Sequence[tuple[Owner, Quota]] = ()) -> Ledger:
        """The ledger of an inferlet, for an address space of it. `lineage`: of one that has a parent: its ancestors,
        the root first, and itself, each with its quota."""
        ledger = self._inferlets.get(owner)
        if ledger is not None:
            return ledger
        above = None
        for member, quota in lineage or ((owner, self.quota),):
            found = self._inferlets.get(member)
            if found is None:
                found = self._inferlets[member] = Ledger(quota, self._of_tenant(tenant), above)
            above = found
        assert above is not None
        return above

    def _of_tenant(self, tenant: Tenant) -> TenantLedger:
        """With the bounds that the tenant has now."""
        ledger = self._tenants.get(tenant.name)
        if ledger is None:
            ledger = self._tenants[tenant.name] = TenantLedger(tenant, self._waiting)
        ledger.tenant = tenant
        return ledger


def check_quota(held: int, added: int, limit: int, what: str, advice: str) -> None:
    """Raises QuotaExceeded if `added` more would exceed `limit`."""
    if held + added > limit:
        raise QuotaExceeded(f"{held} {what} held and {added} more asked for, the limit is {limit}; {advice}")
