"""Who looks at the dashboard: a tenant sees its own inferlets, and who may see all tenants sees everything."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pie_control.engine.hosts import Hosts
from pie_control.engine.model import Model
from pie_control.errors import TooManyRequests
from pie_control.ids import Owner
from pie_control.inferlets.events import InferletWait
from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry

from .deltas import About, Delta, Deltas, Now
from .sections import host_section, tenant_section, worker_section
from .waves import Answered, RecentWaves

MOST_INFERLETS = 1000
"""Inferlets that a viewer is shown: those that run, oldest first, then those that ended, newest first."""
MOST_ENDED = 100
MOST_LANES = 64
"""Inferlets whose commands are shown."""
LANE_SECONDS = 1.0
"""After its end, an inferlet keeps its lane for so long."""
MOST_VIEWERS, MOST_OF_TENANT = 16, 4
"""Viewers of a tenant count together, but those who see all tenants."""
SLOW, SLOWER = 4, 8
"""Looks between two at pages by owner and counts of schedulers; and between two questions for what inferlets wait."""


Line = Callable[[], Sequence[Mapping[str, Any]]]
"""Tells for each `tenant` with requests how many are `served`, how many wait, and how long the first has waited."""


class Dashboard:
    """What viewers share. Belongs to the thread of the control loop."""

    def __init__(self, registry: Registry, hosts: Hosts, models: Mapping[str, Model]) -> None:
        self.registry = registry
        self.hosts = hosts
        self.models = models
        self.watch = RecentWaves(models)
        self.tenants: Counter[str] = Counter()  # tokens run since the first viewer came
        self._counted: Counter[Owner] = Counter()  # of these, by inferlet
        self._viewers: Counter[str | None] = Counter()  # by tenant

    @contextlib.contextmanager
    def viewer(self, tenant: str | None, line: Line = tuple, *, later: bool = False) -> Iterator[Viewer]:
        """Somebody looks at what a tenant has; None: at everything. `later`: but only at what is launched from now on.
        Raises TooManyRequests."""
        end = "look at the dashboard, and no more may: close another one"
        if tenant is not None and self._viewers[tenant] >= MOST_OF_TENANT:
            raise TooManyRequests(f"{MOST_OF_TENANT} viewers of this tenant {end}")
        if self._viewers.total() >= MOST_VIEWERS:
            raise TooManyRequests(f"{MOST_VIEWERS} viewers {end}")
        self._viewers[tenant] += 1
        try:
            with (
                self.watch.looking(),
                contextlib.closing(Viewer(self, tenant, line, time.monotonic() if later else 0.0)) as viewer,
            ):
                yield viewer
        finally:
            self._viewers -= Counter((tenant,))
            if not self._viewers:
                self.tenants.clear()
                self._counted.clear()

    def count(self) -> None:
        """Adds the tokens of inferlets to those of their tenants, and forgets those of inferlets that are gone."""
        run, counted = self.watch.run, self._counted
        for number in list(run):
            entry = self.registry.try_known(number)
            if entry is not None and run[number] != counted[number]:
                self.tenants[entry.standing.tenant.name] += run[number] - counted[number]
                counted[number] = run[number]
            elif entry is None:
                for tokens in (run, counted, self.watch.generated):
                    del tokens[number]


class Viewer:
    """One of those who look."""

    def __init__(self, dashboard: Dashboard, tenant: str | None, line: Line, since: float) -> None:
        """It sees what was launched at `since` or later, in seconds of the monotonic clock."""
        self._since = since
        self._dashboard = dashboard
        self._tenant = tenant
        self._line = line
        self._deltas = Deltas()
        self._states: Mapping[Owner, tuple[object, ...]] = {}  # what the last look has found
        self._looks = 0
        self._seen = dashboard.watch.number
        self._lanes: dict[Owner, None] = {}
        self._waits: Mapping[Owner, InferletWait] = {}
        self._asking: asyncio.Task[None] | None = None

    def look(self) -> Delta:
        """What is new since the last look."""
        dashboard, now = self._dashboard, time.time()
        dashboard.watch.watch()
        sections: dict[str, Any] = {}
        known = {entry.number: entry for entry in self._entries()}
        if self._looks % SLOW == 0:
            dashboard.count()
            sections = self._sections(known)
        if self._looks % SLOWER == 0:
            self._ask_waits()
        self._looks += 1
        inferlets = self._inferlets(known)
        waves, skipped = self._waves(known)
        rows = [wave.row(self._lanes) for wave in waves]
        return self._deltas.next(
            now,
            inferlets,
            lambda number: _about(known[number]),
            sections,
            [row for row in rows if self._tenant is None or row.commands],
            skipped,
        )

    def close(self) -> None:
        """Nobody looks any more."""
        if self._asking is not None:
            self._asking.cancel()

    def _entries(self) -> Sequence[Entry]:
        return self._dashboard.registry.newest(self._tenant, MOST_INFERLETS, MOST_ENDED, self._since)

    def _inferlets(self, known: Mapping[Owner, Entry]) -> dict[Owner, Now]:
        generated = self._dashboard.watch.generated.get
        waits, found, told, states = self._waits.get, {}, self._deltas.inferlets, {}
        for number, entry in known.items():
            tokens = generated(number, 0)
            state = (entry.status, waits(number), tokens, entry.pages, entry.cpu_seconds, entry.ended)
            states[number] = state
            if self._states.get(number) == state:  # most of them: they wait
                found[number] = told[number]
                continue
            what, since = "", 0.0
            if entry.ended is None and (wait := waits(number)) is not None and wait.what:
                what, since = wait.what, wait.seconds
            cpu, ended = round(entry.cpu_seconds, 3), entry.ended or 0.0
            found[number] = Now(entry.status, what, since, tokens, entry.pages, cpu, ended)
        self._states = states
        return found

    # ---- waves ----

    def _waves(self, known: Mapping[Owner, Entry]) -> tuple[list[Answered], int]:
        """Those that were answered since the last look, and how many more there were."""
        watch = self._dashboard.watch
        waves = [wave for wave in watch.waves if wave.number > self._seen]
        skipped = watch.number - self._seen - len(waves)
        self._seen = watch.number
        since = time.time() - LANE_SECONDS
        self._lanes = {number: None for number in self._lanes if _has_lane(known.get(number), since)}
        for number, entry in known.items():
            if len(self._lanes) >= MOST_LANES:
                break
            if _has_lane(entry, since):
                self._lanes[number] = None
        return waves, skipped

    # ---- what costs more ----

    def _ask_waits(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._hear_waits())

    async def _hear_waits(self) -> None:
        now = time.time()
        waits = await self._dashboard.hosts.ask_waits()
        self._waits = {  # since when, so that it changes only with what is waited for
            number: InferletWait(number, wait.what, round(now - wait.seconds, 1)) for number, wait in waits.items()
        }

    def _sections(self, shown: Mapping[Owner, Entry]) -> dict[str, Any]:
        dashboard, mine = self._dashboard, self._tenant
        workers = [
            worker_section(name, number, replica, shown, whole=mine is None)
            for name, model in dashboard.models.items()
            for number, replica in enumerate(model.replicas, start=1)
        ]
        counts = dashboard.registry.statistics()
        running = counts.running if mine is None else counts.of_tenants.get(mine, 0)
        return {
            "workers": workers,
            "tenants": tenant_section(shown.values(), counts.of_tenants, dashboard.tenants, mine),
            "line": [one for one in self._line() if mine is None or one["tenant"] == mine],
            "hosts": [host_section(host) for host in dashboard.hosts.statistics()] if mine is None else [],
            "outages": list(dashboard.hosts.outages()),
            "counts": {
                "all": mine is None,
                "running": running,
                "launched": counts.launched if mine is None else None,
            },
        }


def _has_lane(entry: Entry | None, since: float) -> bool:
    """Whether it runs, or has ended since then: its last waves were not shown yet."""
    return entry is not None and (entry.ended is None or entry.ended > since)


def _about(entry: Entry) -> About:
    return About(entry.id, entry.standing.tenant.name, entry.program.title, round(entry.created, 3))
