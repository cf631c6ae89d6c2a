"""All inferlets that clients can ask about: those that run, on whatever host, and those that ended recently."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from ..config import InferletLimits
from ..durable.inferlets import InferletRecords
from ..errors import Overloaded, TooManyRequests, UnknownName
from ..host_memory import TenantBytes
from ..inferlets.events import Ended, InferletUsage, LogLine, Span
from ..inferlets.lifecycle import ENDINGS, Status
from ..programs.store import Program
from ..tenants.tenant import DEFAULT_STANDING, DEFAULT_TENANT, Standing, Tenant
from .entry import MAIL_PART, OF_MAIL, Entry
from .kept import RecordKeeper

MOST_ID = 20
"""Characters of an id: numbers have at most 63 bits."""
KEPT_ENDED = 1000
"""Number of ended inferlets that clients can still ask about."""
KEPT_ENDED_BYTES = 64 << 20
"""Limit for the sum of their logs, results and unread messages."""
ENDED_BYTES = KEPT_ENDED_BYTES // KEPT_ENDED
"""What each counts beside these, where it is asked whose go first."""


@dataclass(frozen=True)
class RegistryStatistics:
    """Counts of inferlets; `ended` by status, `of_tenants` those that run. Those that run and had no turn yet are
    `created`."""

    running: int
    launched: int
    ended: dict[str, int]
    created: int
    of_tenants: dict[str, int]


class Registry:
    """The entries, by number. Numbers are unique over all hosts."""

    def __init__(self, limits: InferletLimits, max_inferlets: int, records: InferletRecords | None = None) -> None:
        """`records`: what survives the server. Then an inferlet has ended when that is written, and those that ended
        under a server before are there."""
        self._mail = TenantBytes(MAIL_PART, OF_MAIL)
        self._keeper = RecordKeeper(records, limits, self._mail) if records is not None else None
        self._limits = limits
        self._max_inferlets = max_inferlets
        self._running: dict[int, Entry] = {}
        self._ended: OrderedDict[int, Entry] = OrderedDict()
        self._ended_bytes = 0
        self._ended_of: Counter[str] = Counter()  # bytes and ENDED_BYTES of each, by tenant
        self._launched = 0
        self._of_tenants: Counter[str] = Counter()  # that run, by tenant
        self._endings = {str(status): 0 for status in sorted(ENDINGS)}
        self.draining = False
        """Whether clients may launch no more; what runs may launch children."""
        self._none_runs = asyncio.Event()
        self.on_excess: Callable[[Entry, str], None]
        """Hears of an inferlet that has more to say than is kept, and why: it has to end."""
        self.on_launch: list[Callable[[Entry], None]] = []
        self.on_end: list[Callable[[Entry], None]] = []
        """They hear of each inferlet that goes to its host, and that has ended."""
        self.on_span: list[Callable[[Entry, Span], None]] = []
        """They hear of what an inferlet has done."""
        self.on_use: list[Callable[[Entry, float], None]] = []
        """They hear of processor seconds that an inferlet has used: while it runs, and at its end."""
        for entry in self._keeper.newest(KEPT_ENDED) if self._keeper else ():
            self._remember(entry)

    def new(
        self,
        program: Program,
        post: Callable[[int, str, Mapping[str, bytes]], None],
        tell_room: Callable[[int, int, bool], None],
        standing: Standing = DEFAULT_STANDING,
    ) -> Entry:
        """An entry for an inferlet that is about to be launched; raises Overloaded,
        TooManyRequests."""
        self._check_tenant(standing.tenant)
        self._check_key(standing)
        if len(self._running) >= self._max_inferlets:
            raise Overloaded(f"{len(self._running)} inferlets run, which is the limit: try again when some have ended")
        self._launched += 1
        number = self._keeper.next_number() if self._keeper else self._launched
        entry = Entry(number, program, self._limits, post, tell_room, standing, self._mail)
        self._running[entry.number] = entry
        self._of_tenants[standing.tenant.name] += 1
        if self._keeper:
            self._keeper.launched(entry)
        return entry

    def programs(self) -> frozenset[str]:
        """Hashes of the programs of all that run."""
        return frozenset(entry.program.hash for entry in self._running.values())

    def check_open(self) -> None:
        """Raises Overloaded if the server takes no new work."""
        if self.draining:
            raise Overloaded("the server stops, and takes no new work: try again in a while, or another server")

    async def until_none_runs(self) -> None:
        """Waits until all that run have ended."""
        while self._running:
            self._none_runs.clear()
            await self._none_runs.wait()

    def launched(self, entry: Entry) -> None:
        """It goes to its host."""
        for hear in self.on_launch:
            hear(entry)

    def use(self, standing: Standing) -> None:
        """What runs of this tenant launches others in this standing from now on; its own stays."""
        for entry in self._running.values():
            if entry.standing.tenant.name == standing.tenant.name:
                own = entry.standing
                of_key = {"may_send": own.may_send, "key": own.key, "key_inferlets": own.key_inferlets}
                entry.standing = replace(standing, priority=own.priority, **of_key)

    def _check_tenant(self, tenant: Tenant) -> None:
        if tenant.max_inferlets is not None and self._of_tenants[tenant.name] >= tenant.max_inferlets:
            raise TooManyRequests(
                f"{tenant.max_inferlets} inferlets of tenant {tenant.name} run, which is the limit that the operator "
                "has set for it: try again when some have ended"
            )

    def _check_key(self, standing: Standing) -> None:
        key, most = standing.key, standing.key_inferlets
        if most is not None and sum(entry.standing.key == key for entry in self._running.values()) >= most:
            raise TooManyRequests(
                f"{most} inferlets of this key run, which is the limit that the operator has set for it: try again "
                "when some have ended"
            )

    # ---- what hosts tell, each of those that it runs ----

    def did(self, host: int, number: int, span: Span) -> None:
        """An inferlet has done something of which its trace tells. Nothing happens if it has ended."""
        if (entry := self._running.get(number)) and entry.host == host:
            for hear in self.on_span:
                hear(entry, span)

    def uses(self, entry: Entry, usage: InferletUsage) -> None:
        """What an inferlet that runs has used."""
        seconds = entry.uses(usage)
        for hear in self.on_use:
            hear(entry, seconds)

    def said(self, host: int, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Inferlets have messages for their clients, in this order. Those of one that has ended are dropped."""
        for number, text in zip(numbers, texts, strict=True):
            if (entry := self._running.get(number)) and entry.host == host:
                try:
                    entry.said(text)
                except Overloaded as error:
                    self.on_excess(entry, str(error))

    def logged(self, host: int, number: int, line: LogLine) -> None:
        """An inferlet has a line for its log. Nothing happens if it has ended."""
        if (entry := self._running.get(number)) and entry.host == host:
            entry.outbox.logged(line)
            if self._keeper:
                self._keeper.said(number, line)

    def ended(self, entry: Entry, event: Ended) -> None:
        """An inferlet that runs has ended."""
        if self._keeper:
            self._keeper.ended(entry, event)
        entry.ends(event)
        del self._running[entry.number]
        self._of_tenants[entry.standing.tenant.name] -= 1
        self._endings[entry.status] += 1
        for hear in self.on_end:
            hear(entry)
        self._remember(entry)

        if not self._running:
            self._none_runs.set()

    def _remember(self, entry: Entry) -> None:
        self._ended[entry.number] = entry
        self._count_ended(entry, 1)
        while len(self._ended) > KEPT_ENDED or (self._ended_bytes > KEPT_ENDED_BYTES and len(self._ended) > 1):
            self._forget_one()

    def _forget_one(self) -> None:
        """The oldest one of the tenant of whom most is kept: nobody makes others' go."""
        tenant = max(self._ended_of, key=self._ended_of.__getitem__)
        oldest = next(one for one in self._ended.values() if one.standing.tenant.name == tenant)
        del self._ended[oldest.number]
        self._count_ended(oldest, -1)

    def _count_ended(self, entry: Entry, sign: int) -> None:
        tenant = entry.standing.tenant.name
        self._ended_bytes += sign * entry.kept_when_ended
        self._ended_of[tenant] += sign * (ENDED_BYTES + entry.kept_when_ended)
        if not self._ended_of[tenant]:
            del self._ended_of[tenant]

    # ---- look-ups ----

    def keys(self) -> set[str]:
        """The ids of keys by which inferlets run."""
        return {entry.standing.key for entry in self._running.values()}

    def try_running(self, number: int) -> Entry | None:
        """The inferlet with this number if it runs, else None."""
        return self._running.get(number)

    def get(self, inferlet_id: str, tenant: str | None = DEFAULT_TENANT.name) -> Entry:
        """A running or recently ended inferlet of a tenant, or of any (None); raises UnknownName."""
        is_id = inferlet_id[:1] == "i" and inferlet_id[1:].isdecimal() and len(inferlet_id) <= MOST_ID
        number = int(inferlet_id[1:]) if is_id else 0
        found = self._running.get(number) or self._ended.get(number)
        if found is None and self._keeper and 0 < number < 1 << 63:
            found = self._keeper.find(number, tenant)
        if found is None or found.id != inferlet_id or tenant not in (None, found.standing.tenant.name):
            raise UnknownName(f"no inferlet {inferlet_id!r}: it never existed, or ended long ago")
        return found

    def all(self, tenant: str | None = DEFAULT_TENANT.name) -> tuple[Entry, ...]:
        """Recently ended inferlets of a tenant, or of all, then running ones, oldest first."""
        known = (*self._ended.values(), *self._running.values())
        return known if tenant is None else tuple(one for one in known if one.standing.tenant.name == tenant)

    def try_known(self, number: int) -> Entry | None:
        """The inferlet with this number, if it runs or has ended recently."""
        return self._running.get(number) or self._ended.get(number)

    def newest(self, tenant: str | None, most: int, most_ended: int, since: float = 0.0) -> list[Entry]:
        """Inferlets of a tenant, or of all (None): those that run, oldest first, then those that ended, newest first.
        `most` of both, `most_ended` of these; only those launched at `since` (monotonic seconds) or later."""

        def belongs(entry: Entry) -> bool:
            return entry.started >= since and (tenant is None or entry.standing.tenant.name == tenant)

        found = list(islice(filter(belongs, self._running.values()), most))
        ended = islice(filter(belongs, reversed(self._ended.values())), min(most_ended, most - len(found)))
        return [*found, *ended]

    def statistics(self) -> RegistryStatistics:
        created = sum(entry.status is Status.CREATED for entry in self._running.values())
        tenants = {name: count for name, count in self._of_tenants.items() if count}
        return RegistryStatistics(len(self._running), self._launched, dict(self._endings), created, tenants)
