"""Physical memory of one worker: its pools, what each inferlet holds of them, and the requests that wait.

Theory of operation. An allocation that finds no room stands in line, by class and then by the age of its inferlet: an
older one is served before a younger one, and a small one never overtakes a large one that stands before it. When room
comes back, the next wave begins by serving the line from its head, so commands that wait need no look until `begin`
names them. The contention policy is asked about the first request that what is free and what is
coming back do not cover; those behind it wait for it. It is asked again only if something has changed since: who holds
what, who asks for what, or who is stalled. So beside requests that wait, a wave costs nothing.

Memory that is given back stays in quarantine until the last wave whose commands may touch it has completed: the one
under formation, else the last that was sent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from pie_control.errors import InvalidState
from pie_control.ids import Owner
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_inference.protocol import ModelDescription

from .contention import NOBODY, Action, ContentionPolicy, Holder, Shed, Shortage, Stalled
from .exports.exports import Exports
from .holdings import NOT_BOUND, UNBOUND, Block, Holdings, MemoryRequest, Returns
from .kinds import EMBEDS, PAGES, RESOURCES, STATES, Resource, charged
from .pool import Pool, PoolUsage
from .ranges import Range
from .tile_slots import TileSlots

_rank = attrgetter("rank")


class Keeper(Protocol):
    """A command that keeps memory from its turn on, whatever becomes of the addresses (pie_control.calls.kind)."""

    @property
    def future(self) -> int | None: ...

    def keeps(self, resource: Resource) -> Sequence[Range]:
        """Addresses of this kind of memory."""


def _nobody() -> Stalled:
    return NOBODY


@dataclass(frozen=True, slots=True)
class PageUse:
    """Who holds the pages of a worker. `owners`: how many pages each inferlet holds that nobody else does; `shared`:
    how many have several holders; `pinned`: how many nothing but exports holds."""

    pool: PoolUsage
    owners: dict[Owner, int]
    shared: int
    pinned: int


class Memory:
    """Binds addresses to physical slots and takes them back."""

    def __init__(self, model: ModelDescription, contention: ContentionPolicy) -> None:
        if model.lacks_pages:
            raise ValueError(model.lacks_pages)
        self.scratch_slot = PAGES.pool_size(model) * model.page_size
        self.pools = {resource: Pool(resource.pool_size(model)) for resource in RESOURCES}
        self.tokens = Pool(model.num_token_slots)
        self.tiles = TileSlots(model.vision.tile_slots if model.vision is not None else 0)
        self.exports = Exports(self.pools[PAGES], self.pools[STATES], charged(model, STATES, 1)[1])
        self._shares = False  # whether an inferlet has imported pages
        self.wave = 0  # number of the next wave
        self.page_size = model.page_size
        self._policy = contention
        self._holdings: dict[Owner, Holdings] = {}
        self._lines: dict[Resource, list[MemoryRequest]] = {resource: [] for resource in RESOURCES}  # by rank
        self._changes = dict.fromkeys(RESOURCES, 0)  # of what a policy looks at
        self._resolved = dict.fromkeys(RESOURCES, (0, NOBODY))  # what the last answer of the policy knew of these
        self._quarantine: int | None = None  # the wave to wait for; None: nothing is in flight or under formation

    # ---- holders ----

    def open(self, owner: Owner, created: float, standing: Standing = DEFAULT_STANDING) -> Holdings:
        """`created` is a time in seconds: when memory runs out, it says which inferlet is older."""
        assert owner not in self._holdings, f"inferlet {owner} has holdings"
        holdings = Holdings(owner, created, Returns(self.page_size), standing)
        self._holdings[owner] = holdings
        return holdings

    def close(self, owner: Owner) -> None:
        """Takes back all that the inferlet holds, and drops what it asked for."""
        holdings = self._holdings.pop(owner)
        for request in holdings.requests.values():
            if not request.granted:
                self._leave_line(request)
        for resource in RESOURCES:
            self._release(resource, holdings.binding(resource).unbind_all())
        for block in holdings.lent.values():
            self.release_block(block)
        self.tiles.drop(owner)

    # ---- binding ----

    def begin(self) -> list[tuple[Owner, int]]:
        """A wave is being formed: requests that wait are granted as far as there is room, and tiles have slots that
        wait for one. The inferlet and the number of the command of each: they can go now, and no other one that waits
        needs a look."""
        self._quarantine = self.wave
        granted = self.tiles.begin()
        for resource, line in self._lines.items():
            free, served = self.pools[resource].free, 0
            while served < len(line) and (request := line[served]).count <= free:
                served += 1
                self._bind(self._holdings[request.owner], resource, request.first, request.count)
                request.granted = True
                granted.append((request.owner, request.rank[-1]))
                free -= request.count
            del line[:served]
        return granted

    def try_bind(self, holdings: Holdings, seq: int, resource: Resource, first: int, count: int) -> bool:
        """Binds the addresses that command `seq` allocates, if there is room and nothing stands before it; otherwise it
        stands in line, and asking again is in vain until `begin` names it."""
        request = holdings.requests.get(seq)
        if request is not None:
            if request.granted:
                del holdings.requests[seq]
            return request.granted
        line, rank = self._lines[resource], holdings.rank(seq)
        if count <= self.pools[resource].free and not (line and line[0].rank < rank):
            self._bind(holdings, resource, first, count)
            return True
        request = MemoryRequest(holdings.owner, rank, resource, first, count)
        holdings.requests[seq] = request
        insort(line, request, key=_rank)
        self._changes[resource] += 1
        return False

    def bind_some(self, holdings: Holdings, seq: int, resource: Resource, first: int, count: int) -> None:
        """Binds the first addresses of an allocation, as many as leave a quarter of the pool to those who cannot do
        with fewer; none if some of them wait."""
        pool = self.pools[resource]
        spare = 0 if self._lines[resource] else pool.free - pool.total // 4
        some = min(count, max(spare, 0))
        if some:
            self._bind(holdings, resource, first, some)
        holdings.binding(resource).bind(first + count, ())  # the others are unbound
        holdings.bound.append((seq, some))

    def cancel(self, holdings: Holdings, seq: int) -> None:
        """The command of this number needs no memory any more, if it has asked for some."""
        request = holdings.requests.pop(seq, None)
        if request is not None and not request.granted:
            self._leave_line(request)
            self._changes[request.resource] += 1

    def _leave_line(self, request: MemoryRequest) -> None:
        line = self._lines[request.resource]
        del line[bisect_left(line, request.rank, key=_rank)]

    def _bind(self, holdings: Holdings, resource: Resource, first: int, count: int) -> None:
        """Addresses that are bound, which only a host asks for that lies, stay as they are."""
        if (binding := holdings.binding(resource)).is_free(first, count):
            binding.bind(first, self.pools[resource].take(count))
            self._changes[resource] += 1

    def run_frees(self, holdings: Holdings, oldest: int) -> list[int]:
        """Takes back what no waiting command uses any more, and drops tokens that none from `oldest` on can name. The
        numbers under which the memory was given back."""
        returned = []
        if holdings.freed:
            for one in holdings.freed.take(self.wave, oldest):
                self._release(one.resource, holdings.binding(one.resource).unbind(one.ranges))
                returned.append(one.seq)
        while holdings.forgotten and holdings.forgotten[0][0] < oldest:
            for future in holdings.forgotten.popleft()[1]:
                holdings.tokens.pop(future, None)
        return returned

    # ---- exports ----

    def lend(self, holdings: Holdings, future: int, block: Block) -> None:
        """An import has found something that has no address yet."""
        self.pools[PAGES].retain(block.pages)
        self.pools[STATES].retain(block.states)
        holdings.lent[future] = block

    def keep(self, holdings: Holdings, command: Keeper) -> None:
        """Keeps what a command keeps that has its turn. Raises InvalidState: not all of it is bound."""
        if command.future is not None and (pages := command.keeps(PAGES)):
            if not (holdings.pages.has(pages) and holdings.states.has(command.keeps(STATES))):
                raise InvalidState(NOT_BOUND)
            block = Block(holdings.pages.bound_to(pages), holdings.states.bound_to(command.keeps(STATES)))
            self.lend(holdings, command.future, block)

    def adopt(self, holdings: Holdings, future: int, first: int, state: int) -> None:
        """What an import found has addresses now: its pages, and its state, if it has one. Raises KeyError, ValueError:
        there is no such import, or the addresses are taken."""
        self._shares = True
        block = holdings.lent[future]
        parts = (PAGES, first, block.pages), (STATES, state, block.states)
        for resource, address, slots in parts:
            if slots and not (address >= 0 and holdings.binding(resource).is_free(address, len(slots))):
                raise ValueError(f"addresses of {resource} from {address} on are taken")
        del holdings.lent[future]
        for resource, address, slots in parts:
            if slots:
                holdings.binding(resource).bind(address, slots)
                self._changes[resource] += 1

    def discard(self, holdings: Holdings, future: int) -> None:
        """Nobody takes what an import found."""
        self.release_block(holdings.lent.pop(future))

    def release_block(self, block: Block) -> None:
        """An export or import holds this no more."""
        for resource in (PAGES, STATES):
            if slots := block.of(resource):
                self._release(resource, slots)

    # ---- shortages ----

    def resolve_shortages(self, now: float = 0.0, stalled: Callable[[], Stalled] = _nobody) -> Iterator[Action]:
        """The wave is formed: asks the policy about requests for more memory than is coming back, and that exports do
        not give. Each action must be taken before the next is asked for. `now`: in seconds. `stalled` is asked if
        something waits."""
        for resource, line in self._lines.items():
            while line and self._resolved[resource] != (known := (self._changes[resource], stalled())):
                self._resolved[resource] = known
                shortage, coming = self._first_shortage(resource, known[1])
                if shortage is not None and self._shed(resource, shortage.missing, now):
                    yield Shed()
                elif shortage is not None:
                    yield from self._policy.resolve(shortage, self._holders(resource, coming, now))

    def _shed(self, resource: Resource, missing: int, now: float) -> bool:
        """Whether exports could be dropped that nobody uses."""
        shed = False
        for block in self.exports.shed(resource, missing, now):
            self.release_block(block)
            shed = True
        return shed

    def drop_adapter(self, adapter: int) -> None:
        """Drops what was exported with an adapter; those who have imported it keep their pages."""
        for block in self.exports.drop_adapter(adapter):
            self.release_block(block)

    def _first_shortage(self, resource: Resource, stalled: Stalled) -> tuple[Shortage | None, Mapping[Owner, int]]:
        """The shortage of the first request in line that is not covered, and what is coming back to it, by inferlet."""
        pool = self.pools[resource]
        coming = {owner: count for owner, one in self._holdings.items() if (count := one.coming(resource))}
        slow = [self._holdings[owner] for owner in coming] if any(stalled) else []
        left = pool.free + pool.quarantined + sum(coming.values())
        for request in self._lines[resource]:
            left -= request.count
            kept = [one.owner for one in slow if stalled.keeps(one, self._holdings[request.owner])]
            missing = sum(coming[owner] for owner in kept) - left
            if missing > 0:
                for owner in kept:
                    del coming[owner]
                return Shortage(request.owner, resource, request.count, missing, pool.total), coming
        return None, coming

    def _holders(self, resource: Resource, coming: Mapping[Owner, int], now: float) -> Sequence[Holder]:
        pinned = self.exports.pinned(resource, now)
        shared = self._held_by_others(resource, pinned) if (self._shares or pinned) and resource is not EMBEDS else {}
        return [
            Holder(
                owner,
                one.created,
                max(one.binding(resource).bound - coming.get(owner, 0) - shared.get(owner, 0), 0),
                one.standing,
            )
            for owner, one in self._holdings.items()
        ]

    def _held_by_others(self, resource: Resource, pinned: Sequence[int]) -> dict[Owner, int]:
        """What each inferlet holds that is pinned, or that one holds, too, which yields later: it does not come back
        when the inferlet ends."""
        ordered = sorted(self._holdings.values(), key=attrgetter("standing.service_class", "created", "owner"))
        bound = [one.binding(resource).physical for one in ordered]
        slots = np.frombuffer(b"".join(bound), np.int32)  # at once: there may be a thousand owners
        places = np.arange(len(slots), dtype=np.int64)
        first = np.full(self.pools[resource].total + 1, -1, np.int64)  # the last one is for UNBOUND
        first[slots[::-1]] = places[::-1]  # what was written last stays: the first place of each
        first[np.array(pinned, np.int64)] = -1
        claimed = np.append(0, np.cumsum((first[slots] != places) & (slots != UNBOUND)))
        counts = np.diff(claimed[np.append(0, np.cumsum([*map(len, bound)], dtype=np.int64))])
        return dict(zip([one.owner for one in ordered], counts.tolist(), strict=True))

    # ---- quarantine ----

    def _release(self, resource: Resource, slots: Iterable[int]) -> None:
        self.pools[resource].release(slots, self._quarantine)
        self._changes[resource] += 1

    def wave_sent(self) -> None:
        """The wave under formation is complete."""
        self.wave += 1

    def all_completed(self) -> None:
        """Nothing is in flight."""
        self.wave_completed(self.wave)
        self._quarantine = None

    def wave_completed(self, wave: int) -> None:
        for pool in self.pools.values():
            pool.wave_completed(wave)

    # ---- inspection ----

    @property
    def free_pages(self) -> int:
        """Pages that are free now."""
        return self.pools[PAGES].free

    def has_spare_pages(self, share: float) -> bool:
        """Whether such a share of the pages is free, comes back with a wave, or is held by exports alone, which make
        room."""
        usage = self.pools[PAGES].usage()
        return usage.used - self.exports.own_pages() <= (1 - share) * usage.total

    def page_use(self) -> PageUse:
        """Looks at every page: for those who look on, now and then."""
        held = np.array(self.pools[PAGES].all_references(), np.int32)
        bound = [one.pages.physical for one in self._holdings.values()]
        pages = np.frombuffer(b"".join(bound), np.int32)  # at once: there may be a thousand owners
        alone = np.append(0, np.cumsum((pages != UNBOUND) & (held[pages] == 1)))
        counts = np.diff(alone[np.append(0, np.cumsum([*map(len, bound)], dtype=np.int64))])
        owners = dict(zip(self._holdings, counts.tolist(), strict=True))
        return PageUse(self.pools[PAGES].usage(), owners, int((held > 1).sum()), self.exports.own_pages())

    def usage(self) -> dict[Resource, PoolUsage]:
        return {resource: pool.usage() for resource, pool in self.pools.items()}

    def fields(self) -> dict[str, Any]:
        """Those of the statistics of a scheduler."""
        usage = self.usage()
        return {
            "pages": usage[PAGES],
            "embeds": usage[EMBEDS],
            "states": usage[STATES],
            "token_slots": self.tokens.usage(),
            "exports": len(self.exports),
            "export_pages": self.exports.own_pages(),
            "page_size": self.page_size,
        }
