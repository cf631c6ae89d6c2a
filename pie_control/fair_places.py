"""A bounded number of places for work that takes long, given to tenants in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator


class FairPlaces:
    """A free place goes to the tenant that has the fewest; those with equally many take turns. Within a tenant, who
    came first goes first. One tenant never takes all places, if there are several, so another one need not wait for the
    end of its work. Belongs to one event loop."""

    def __init__(self, places: int, *, halves: bool = False) -> None:
        """A tenant has all places but one at most; with `halves`, as many as are free: half of all, a second one then a
        quarter, and so on."""
        self._free = places
        self._most = max(1, places - 1)
        self._halves = halves
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # tenants in the order in which it is their turn

    @contextlib.asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Waits for a place and holds it."""
        await self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    async def take(self, tenant: str) -> None:
        """Waits for a place, which is held until `give_back`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._give()
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self.give_back(tenant)
            elif turn in (turns := self._waiting.get(tenant, deque())):
                turns.remove(turn)
                if not turns:
                    del self._waiting[tenant]
            raise

    def give_back(self, tenant: str) -> None:
        """A place that this tenant has taken is free."""
        self._free += 1
        self._taken[tenant] -= 1
        self._taken += Counter()  # drops tenants without places
        self._give()

    def _give(self) -> None:
        while self._free and (able := [name for name in self._waiting if self._may(name)]):
            tenant = min(able, key=self._taken.__getitem__)
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # at the end: the others are next
            if not turn.cancelled():
                self._free -= 1
                self._taken[tenant] += 1
                turn.set_result(None)

    def _may(self, tenant: str) -> bool:
        return self._taken[tenant] < (self._free if self._halves else self._most)
