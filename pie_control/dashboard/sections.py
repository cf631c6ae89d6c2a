"""Parts of what a viewer sees beside inferlets: workers, hosts, tenants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pie_control.engine.app_host import HostStatistics
from pie_control.engine.replica import Replica
from pie_control.ids import Owner
from pie_control.registry.entry import Entry
from pie_control.resources.memory import PageUse


def worker_section(
    model: str, worker: int, replica: Replica, shown: Collection[Owner], *, whole: bool
) -> dict[str, Any]:
    """A worker: its state, its pages by owner, and its queues where the viewer sees the `whole` server. `shown`: the
    inferlets that the viewer is shown; the pages of all others are one number."""
    outage = replica.life.outage
    found: dict[str, Any] = {
        "model": model,
        "worker": worker,
        "state": str(replica.life.state),
        "outage": str(outage) if outage is not None else None,
    }
    scheduler = replica.scheduler
    if scheduler is None:
        return found
    found["pages"] = page_section(scheduler.memory.page_use(), shown)
    if not whole:
        return found
    counts = replica.statistics()
    return found | {
        "queues": {
            "waiting": counts.queues_waiting,
            "ready": counts.queues_ready,
            "starved": counts.queues_starved,
            "in flight": counts.queues_in_flight,
        },
        "oldest_wait": round(counts.waits_seconds, 3),
        "commands_waiting": counts.commands_waiting,
        "runs": counts.runs,
        "waves": counts.waves,
        "evictions": counts.evictions,
        "embeds": [counts.embeds.used, counts.embeds.total],
        "states": [counts.states.used, counts.states.total],
    }


def page_section(use: PageUse, shown: Collection[Owner]) -> dict[str, Any]:
    """Pages of a worker: each in one of the numbers. Those in quarantine come back with a wave in flight."""
    owners = {number: pages for number, pages in use.owners.items() if pages and number in shown}
    pool, named = use.pool, sum(owners.values())
    shared = use.shared
    return {
        "total": pool.total,
        "free": pool.free,
        "coming": pool.quarantined,
        "pinned": use.pinned,
        "shared": shared,
        "owners": owners,
        "others": max(0, pool.used - named - use.pinned - shared),
    }


def host_section(host: HostStatistics) -> dict[str, Any]:
    """An application host. Memory in bytes."""
    return {
        "host": host.host,
        "state": host.state,
        "restarts": host.restarts,
        "outage": str(host.outage) if host.outage is not None else None,
        "inferlets": host.inferlets,
        "memory_bytes": host.memory_bytes,
        "guest_seconds": round(host.guest_seconds, 3),
        "warm": [host.warm, host.warm_wanted],
    }


def tenant_section(
    entries: Iterable[Entry], running: Mapping[str, int], tokens: Mapping[str, int], only: str | None
) -> list[dict[str, Any]]:
    """Tenants that run something, or have lately. `tokens`: what they have run since somebody looks; their quotients by
    the weights are what fairness makes equal."""
    standings = {entry.standing.tenant.name: entry.standing for entry in entries}
    return [
        {
            "tenant": name,
            "class": standing.service_class.name.lower(),
            "weight": standing.tenant.weight,
            "running": running.get(name, 0),
            "tokens": tokens.get(name, 0),
        }
        for name, standing in sorted(standings.items())
        if only is None or name == only
    ]
