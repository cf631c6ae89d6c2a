"""The invariants of the scheduler and of what it keeps, which random tests check between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from pie_control.calls.kind import LongCommand
from pie_control.ids import Owner
from pie_control.resources.exports.exports import Exports
from pie_control.resources.holdings import Block
from pie_control.resources.memory import Memory, _rank
from pie_control.resources.pool import Pool
from pie_control.resources.tile_slots import TileSlots
from pie_control.scheduling import Scheduler
from pie_control.scheduling.account import Account, CommandQueue, Whereabouts
from pie_control.scheduling.backlog import Backlog
from pie_control.scheduling.decoding.runs import Runs
from pie_control.scheduling.guests import Guests
from pie_control.tenants.tenant import ServiceClass


def check_scheduler(scheduler: Scheduler) -> None:
    """Asserts the invariants of pools, queues and counters."""
    check_memory(scheduler._memory)
    check_backlog(scheduler._backlog, scheduler._accounts)
    check_guests(scheduler._guests, scheduler._accounts)
    for account in scheduler._accounts.values():
        check_account(account)


def check_backlog(backlog: Backlog, accounts: dict[Owner, Account]) -> None:
    """Asserts that the counts are those of the queues, and that every queue with commands is in one place."""
    queues = [queue for account in accounts.values() for queue in account.queues.values() if queue.commands]
    local = sum(command.call is None for queue in queues for command in queue.commands)
    assert (backlog.queues, backlog.local_commands) == (len(queues), local)
    assert backlog.commands == sum(len(queue.commands) for queue in queues)
    blocked = {queue for account in accounts.values() for _, _, queue in account.blocked}
    for queue in queues:
        if queue.run is not None:
            continue
        starved = backlog.starved.get((queue.account.owner, queue.commands[0].seq)) is queue
        places = [queue in backlog.new, queue.line is not None, queue in backlog.local, starved, queue in blocked]
        places += [queue in backlog.held, queue in backlog.searches.waiting.get(queue.account, ())]
        assert sum(places) == 1, f"a queue is in {sum(places)} places"
    assert backlog.parts == sum(queue.parts() for queue in queues)
    long = {one for queue in queues for one in queue.commands if isinstance(one, LongCommand)}
    assert backlog.bounded == {one for one in long if one.bounded}
    _check_runs_of_queues(
        backlog, [queue for account in accounts.values() for queue in account.queues.values() if queue.run]
    )
    lined_up = [queue for queue in queues if queue.line is not None and queue.run is None]
    ready = [queue.account.standing.service_class for queue in (*backlog.new, *lined_up)]
    assert backlog.ready == [ready.count(each) for each in ServiceClass]


def _check_runs_of_queues(backlog: Backlog, queues: list[CommandQueue]) -> None:
    check_runs(backlog.runs)
    assert backlog.runs.live == len(queues)
    ready = {run.queue for run in backlog.runs.ready()}
    assert {queue for queue in queues if queue.line is not None} <= ready, "a run stands in line and is not ready"
    assert not any(queue in backlog.new for queue in queues)
    for queue in queues:
        waits = queue in backlog.local or (queue.account.owner, queue.first_seq) in backlog.starved
        assert not (waits and queue in ready), "a run waits for a page and is ready"
        assert not (queue in backlog.held and queue in ready), "a run is held and is ready"


def check_account(account: Account) -> None:
    """Asserts that the counts are those of the queues, and that no waiting command is older than is claimed."""
    assert account.waiting == sum(len(queue.commands) for queue in account.queues.values())
    assert set(account.busy) == {one for one in account.queues.values() if one.commands or one.run is not None}
    oldest = min((one.commands[0].seq for one in account.queues.values() if one.commands), default=account.newest + 1)
    assert account.oldest_waiting <= account.oldest_now() == oldest
    assert account.ready == sum(queue.line is not None for queue in account.queues.values())
    waiting = {command.future for queue in account.queues.values() for command in queue.commands}
    assert account.futures | account.runs | account.cancelled >= waiting - {None}


def check_runs(runs: Runs[Any]) -> None:
    """Asserts that rows are those of runs, and that none claims more than it may."""
    table = runs._fields
    used = [row for row, run in enumerate(runs._runs) if run is not None]
    assert table["serial"].nonzero()[0].tolist() == used
    assert sorted(runs._free) == [row for row, run in enumerate(runs._runs) if run is None]
    assert runs.live == len(used)
    in_flight = table["taken"][used] - table["known"][used]
    assert ((in_flight >= 0) & (in_flight <= runs._most_in_flight)).all(), "a run has too many steps in flight"
    assert (table["taken"][used] <= table["steps"][used]).all()
    ready = table["ready"].copy()
    runs._update(np.array(used, np.int64))
    assert (table["ready"] == ready).all()


def check_guests(guests: Guests, accounts: Mapping[int, Account]) -> None:
    """Asserts that the counts are those of the inferlets."""
    for place, counts in ((Whereabouts.FLIGHT, guests.in_flight), (Whereabouts.HANDS, guests.in_hands)):
        there = [one for one in accounts.values() if one.place is place]
        assert not any(one.waiting for one in there), "an inferlet is expected whose commands wait"
        by_class = [sum(o.expected for o in there if o.standing.service_class == each) for each in ServiceClass]
        assert counts == by_class, f"{place}: {counts} instead of {by_class}"
    assert sum(map(len, guests._hands.values())) == sum(one.place is Whereabouts.HANDS for one in accounts.values())


def check_memory(memory: Memory) -> None:
    """Asserts that pools, holdings and lines agree."""
    for resource, pool in memory.pools.items():
        check_pool(pool)
        held = sum(one.binding(resource).bound for one in memory._holdings.values())
        lent = [block for one in memory._holdings.values() for block in one.lent.values()]
        for block in (*lent, *held_by(memory.exports)):
            held += len(block.of(resource))
        assert sum(pool.all_references()) == held, f"{resource}: {sum(pool.all_references())} references, {held} held"
        line = memory._lines[resource]
        assert line == sorted(line, key=_rank), "the line is out of order"
        requests = (one for holdings in memory._holdings.values() for one in holdings.requests.values())
        assert set(line) == {one for one in requests if one.resource is resource and not one.granted}
    check_pool(memory.tokens)
    check_tiles(memory.tiles, memory._holdings)
    check_exports(memory.exports)


def check_pool(pool: Pool) -> None:
    """Asserts that every slot is in exactly one state."""
    idle = pool._free + [slot for _, slots in pool._quarantine for slot in slots]
    assert len(set(idle)) == len(idle), "a slot is free twice"
    assert not any(map(pool._references.__getitem__, idle)), "a free slot is referenced"
    assert pool._references.count(0) == len(idle), "a slot is lost"
    assert min(pool._references, default=0) >= 0, "a slot has fewer than no references"
    assert pool.quarantined == sum(len(slots) for _, slots in pool._quarantine)


def check_tiles(tiles: TileSlots, present: Container[Owner]) -> None:
    """Asserts that no slot is lost."""
    check_pool(tiles._pool)
    assert sum(tiles._pool.all_references()) == len(tiles._slots)
    assert all(owner in present for owner, _ in tiles._slots), "a tile of nobody is under way"
    assert tiles._line == sorted(tiles._line)
    assert all(owner in present for _, _, owner, _ in tiles._line), "a tile of nobody waits for a slot"


def held_by(exports: Exports) -> list[Block]:
    """What exports hold."""
    held = [one for some in exports._held.values() for one in some]
    return [*(one.block for one in (*exports._standing, *held)), *exports._served.values()]


def check_exports(exports: Exports) -> None:
    """Asserts that tenants have what is counted."""
    for name, own in exports._of_tenant.items():
        there = {one for one in exports._standing if one.tenant.name == name}
        assert own.exports.keys() == there, "a tenant has other exports than stand"
        assert own.pages == sum(map(exports._size, there)) > 0
    assert exports._standing.keys() >= exports._pinned.keys()
    assert len(exports._standing) == sum(len(own.exports) for own in exports._of_tenant.values())
    places = {name: (one, place) for one in exports._standing for place, name in enumerate(one.names)}
    assert exports._places == places, "something that stands is not found"
    held = Counter(page for block in held_by(exports) for page in block.pages)
    assert {page: count for page, count in enumerate(exports._holds) if count} == held
    assert exports.own_pages() == sum(exports._pool.references(page) == count for page, count in held.items())
    assert len(exports._open) == sum(one.open_page is not None for one in exports._standing)
