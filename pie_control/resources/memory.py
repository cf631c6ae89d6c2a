"""Physical memory of one worker: its pools, what each inferlet holds of them, and the requests that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pie_control.ids import Owner
from pie_inference.protocol import ModelDescription

from .contention import Action, ContentionPolicy, Holder, Shortage
from .holdings import Holdings
from .kinds import PAGES, RESOURCES, Resource, scratch_pages
from .pool import Pool, PoolUsage


@dataclass(slots=True)
class _Request:
    """An allocation that found too little."""

    owner: Owner
    resource: Resource
    count: int
    since: float  # seconds


class Allocation(Protocol):
    """A command that takes memory (pie_control.calls.kind.Bind)."""

    seq: int
    resource: Resource
    first: int
    count: int


class Memory:
    """Binds addresses to physical slots and takes them back.

    Memory that is given back stays in quarantine until the last wave whose commands may touch it has completed: the one
    under formation, else the last that was sent.
    """

    def __init__(self, model: ModelDescription, contention: ContentionPolicy) -> None:
        if PAGES.pool_size(model) <= 0:
            raise ValueError(
                f"{model.name}: {model.num_pages} pages do not hold one batch of {model.max_batch_tokens} tokens; "
                f"more than {scratch_pages(model)} pages are needed"
            )
        self.scratch_slot = PAGES.pool_size(model) * model.page_size
        self.pools = {resource: Pool(resource.pool_size(model)) for resource in RESOURCES}
        self.tokens = Pool(model.num_token_slots)
        self.wave = 0  # number of the next wave
        self._policy = contention
        self._holdings: dict[Owner, Holdings] = {}
        self._requests: dict[Resource, dict[tuple[Owner, int], _Request]] = {resource: {} for resource in RESOURCES}
        self._quarantine: int | None = None  # the wave to wait for; None: nothing is in flight or under formation

    # ---- holders ----

    def open(self, owner: Owner, created: float) -> Holdings:
        """`created` is a time in seconds: when memory runs out, it says which inferlet is older."""
        assert owner not in self._holdings, f"inferlet {owner} has holdings"
        self._holdings[owner] = holdings = Holdings(owner, created)
        return holdings

    def close(self, owner: Owner) -> None:
        """Takes back all that the inferlet holds."""
        holdings = self._holdings.pop(owner)
        for resource in RESOURCES:
            self._requests[resource] = {key: one for key, one in self._requests[resource].items() if key[0] != owner}
            self._release(resource, holdings.binding(resource).unbind_all())

    # ---- binding ----

    def begin(self) -> list[tuple[Owner, int]]:
        """A wave is being formed. The requests that wait and that there is room for now: the inferlet and the sequence
        number of each. It is time to bind them; the others need no look."""
        self._quarantine = self.wave
        granted = []
        for resource, requests in self._requests.items():
            free = self.pools[resource].free
            for (owner, seq), request in requests.items():
                free -= request.count
                if free < 0:
                    break
                granted.append((owner, seq))
        return granted

    def try_bind(self, holdings: Holdings, command: Allocation, now: float) -> bool:
        """Binds an allocation if there is room, after those that wait before it."""
        pool, requests = self.pools[command.resource], self._requests[command.resource]
        key = holdings.owner, command.seq
        if command.count > pool.free or next(iter(requests), key) != key:
            requests.setdefault(key, _Request(holdings.owner, command.resource, command.count, now))
            return False
        requests.pop(key, None)
        holdings.binding(command.resource).bind(command.first, pool.take(command.count))
        return True

    def run_frees(self, holdings: Holdings, oldest: int) -> None:
        """Takes back what no command from `oldest` on can touch any more, and drops tokens that none can name."""
        freed = holdings.freed
        while freed and freed[0].seq < oldest:
            one = freed.popleft()
            self._release(one.resource, holdings.binding(one.resource).unbind(one.ranges))
        while holdings.forgotten and holdings.forgotten[0].seq < oldest:
            for future in holdings.forgotten.popleft().futures:
                del holdings.tokens[future]

    # ---- shortages ----

    def resolve_shortages(self) -> Iterator[Action]:
        """The wave is formed: asks the policy about requests for more memory than is coming back. Each action
        must be taken before the next is asked for."""
        for resource, requests in self._requests.items():
            wanted = 0
            for request in list(requests.values()):
                if request.owner not in self._holdings:
                    continue  # it has been ended for an earlier one
                wanted += request.count
                missing = wanted - self._coming(resource)
                if missing > 0:
                    yield from self._policy.resolve(self._shortage(request, missing), self._holders(resource))

    def _shortage(self, request: _Request, missing: int) -> Shortage:
        total = self.pools[request.resource].total
        return Shortage(request.owner, request.resource, request.count, missing, total)

    def _holders(self, resource: Resource) -> Sequence[Holder]:
        waiting: dict[Owner, list[_Request]] = {}
        for request in self._requests[resource].values():
            waiting.setdefault(request.owner, []).append(request)
        return [_holder(holdings, resource, waiting.get(holdings.owner, ())) for holdings in self._holdings.values()]

    def _coming(self, resource: Resource) -> int:
        """What is free, or will be without anybody being ended."""
        pool = self.pools[resource]
        waiting = {owner for requests in self._requests.values() for owner, _ in requests}
        freed = (one.returning(resource) for owner, one in self._holdings.items() if owner not in waiting)
        return pool.free + pool.quarantined + sum(freed)

    # ---- quarantine ----

    def _release(self, resource: Resource, slots: Iterable[int]) -> None:
        self.pools[resource].release(slots, self._quarantine)

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

    def usage(self) -> dict[Resource, PoolUsage]:
        return {resource: pool.usage() for resource, pool in self.pools.items()}

    def check_integrity(self) -> None:
        """Asserts that pools and holdings agree."""
        for resource, pool in self.pools.items():
            pool.check_integrity()
            held = sum(one.binding(resource).bound for one in self._holdings.values())
            assert pool.usage().used == held, f"{resource}: {pool.usage().used} used, {held} held"
        self.tokens.check_integrity()


def _holder(holdings: Holdings, resource: Resource, requests: Sequence[_Request]) -> Holder:
    """What a policy sees of an inferlet; `requests` are those of its queues that wait."""
    waits_for = sum(one.count for one in requests)
    waits_since = min((one.since for one in requests), default=None)
    return Holder(holdings.owner, holdings.created, holdings.binding(resource).bound, waits_for, waits_since)
