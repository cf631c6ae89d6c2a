"""Physical memory of one worker: pools, who waits for them, and who is ended when they run out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pie_control.errors import Exhausted
from pie_control.resources.contention import ContentionPolicy, Eviction, Holding, Shortage
from pie_control.resources.pool import Pool
from pie_control.resources.ranges import Range
from pie_inference.protocol import ModelDescription

if TYPE_CHECKING:
    from .account import Account
    from .commands import AllocateCommand

NAMES = {True: "KV pages", False: "embeds"}


class Memory:
    """Binds allocations to physical slots and takes them back.

    What is given back stays in quarantine until the last wave whose commands may touch it has completed: the one under
    formation, else the last that was sent.
    """

    def __init__(self, model: ModelDescription, contention: ContentionPolicy) -> None:
        scratch = -(-model.max_batch_tokens // model.page_size)
        if model.num_pages <= scratch:
            raise ValueError(
                f"{model.name}: {model.num_pages} pages do not hold one batch of {model.max_batch_tokens} tokens; "
                f"more than {scratch} pages are needed"
            )
        self.scratch_slot = (model.num_pages - scratch) * model.page_size
        self.pages = Pool(model.num_pages - scratch)
        self.embeds = Pool(model.num_embeds)
        self.tokens = Pool(model.num_token_slots)
        self.wave = 0  # number of the next wave
        self.accounts: dict[int, Account] = {}
        self.evictions: list[Eviction] = []
        self.evicted = 0
        self._policy = contention
        self._promised = {True: 0, False: 0}
        self._blocked: list[
            tuple[AllocateCommand, int]
        ] = []  # allocations that wait, and slots that all up to each need
        self._quarantine: int | None = None  # the wave to wait for; None: nothing is in flight or under formation

    def check_size(self, owned: int, count: int, pages: bool) -> None:
        """Raises Exhausted if one inferlet asks for more than there is, so that its request can never be met."""
        total = self._pool(pages).total
        if owned + count > total:
            name = NAMES[pages]
            raise Exhausted(f"{owned} {name} held and {count} more asked for, the whole pool has {total}; hold fewer")

    def begin(self) -> None:
        """A wave is being formed: requests that have to wait are counted anew."""
        self._quarantine = self.wave
        self._promised = {True: 0, False: 0}
        self._blocked.clear()

    def try_bind(self, command: AllocateCommand) -> bool:
        """Binds an allocation if there is room, after those that wait before it."""
        pages, count = command.pages, command.count
        pool = self._pool(pages)
        wanted = count + self._promised[pages]
        if wanted > pool.free:
            self._promised[pages] = wanted
            self._blocked.append((command, wanted))
            return False
        table = command.account.pages if pages else command.account.embeds
        table.bind(command.first, pool.take(count))
        return True

    def make_room(self) -> None:
        """The wave is formed: for allocations that wait for more than what is coming back, asks who yields."""
        for command, wanted in self._blocked:
            if command.account.ended is None:
                missing = wanted - self._coming(command.pages)
                if missing > 0:
                    self._evict(command, missing)

    def _coming(self, pages: bool) -> int:
        """Slots that are free, or will be without anybody being ended."""
        pool = self._pool(pages)
        waiting = {command.account for command, _ in self._blocked}
        returning = 0
        for account in self.accounts.values():
            if account.ended is not None:
                returning += account.held(pages)
            elif account not in waiting:
                returning += account.returning(pages)
        return pool.free + pool.quarantined + returning

    def _evict(self, command: AllocateCommand, missing: int) -> None:
        pages = command.pages
        holdings = [Holding(a.owner, a.created, a.held(pages)) for a in self.accounts.values() if a.ended is None]
        owner, total = command.account.owner, self._pool(pages).total
        shortage = Shortage(owner, NAMES[pages], command.count, missing, total)
        for eviction in self._policy.resolve(shortage, holdings):
            self.accounts[eviction.owner].ended = Exhausted(eviction.message)
            self.evictions.append(eviction)
            self.evicted += 1

    def free(self, account: Account, page_ranges: Sequence[Range], embed_ranges: Sequence[Range]) -> None:
        """Takes back what the addresses are bound to."""
        if page_ranges:
            self._release(self.pages, account.pages.unbind(page_ranges))
        if embed_ranges:
            self._release(self.embeds, account.embeds.unbind(embed_ranges))

    def free_all(self, account: Account) -> None:
        self._release(self.pages, account.pages.unbind_all())
        self._release(self.embeds, account.embeds.unbind_all())

    def _release(self, pool: Pool, slots: Iterable[int]) -> None:
        pool.release(slots, self._quarantine)

    def wave_sent(self) -> None:
        """The wave under formation is complete."""
        self.wave += 1

    def all_completed(self) -> None:
        """Nothing is in flight."""
        self.wave_completed(self.wave)
        self._quarantine = None

    def wave_completed(self, wave: int) -> None:
        for pool in (self.pages, self.embeds):
            pool.wave_completed(wave)

    def _pool(self, pages: bool) -> Pool:
        return self.pages if pages else self.embeds

    def check_integrity(self) -> None:
        """Asserts that pools and accounts agree."""
        for pool in (self.pages, self.embeds, self.tokens):
            pool.check_integrity()
        assert self.pages.usage().used == sum(account.pages.bound for account in self.accounts.values())
        assert self.embeds.usage().used == sum(account.embeds.bound for account in self.accounts.values())
