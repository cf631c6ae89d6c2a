"""What the scheduler does about commands that no worker sees, but for allocations: barriers, questions, exports and
imports.

An export holds its pages when its turn comes, and stands with the answer of the newest wave at that time: all that
writes its pages is in that wave or before. If one of these commands fails, so does the export.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pie_control.calls.exports.sharing import Fetch, Offer, missing
from pie_control.calls.kind import Adopt, Barrier, Command, Discard, Question
from pie_control.calls.values import Done, Import, Value
from pie_control.errors import CallError, NotFound
from pie_control.ids import Owner
from pie_control.resources.exports.export import Export
from pie_control.resources.exports.text_keys import PAGES_OF_A_SEARCH, TextKeys
from pie_control.resources.memory import Memory
from pie_control.resources.tables.slots import EMPTY

from .account import Account, CommandQueue
from .answers import Wave
from .backlog import Backlog
from .searches import MOST_SEARCHES, Searches

Answer = Callable[[Owner, int, Value | CallError], None]
MOST_WAITS = 4
"""Exports of beginnings that an import waits for, one after the other: each time all pages of its text are looked
up."""


class Waiting(NamedTuple):
    """An import that waits for an export, the one of this number."""

    export: Export
    command: Fetch
    number: int


class LocalCommands:
    """Answers them, and keeps who waits for an export."""

    def __init__(self, memory: Memory, accounts: Mapping[Owner, Account], searches: Searches, answer: Answer) -> None:
        self._memory = memory
        self._accounts = accounts
        self._searches = searches
        self._answer = answer
        self.takers: Mapping[type, Callable[[Any], None]] = {Adopt: self._adopt, Discard: self._discard}  # of notes
        self._announced: dict[Owner, dict[int, Export]] = {}  # by future: they wait for their turn
        self._held: deque[tuple[int, Export]] = deque()  # with the wave for whose answer they wait
        self._last_held: dict[Owner, int] = {}  # of these waves, the last one for each inferlet that runs
        self._waiting: dict[Owner, dict[int, Waiting]] = {}  # imports by future
        self._serving: deque[Export] = deque()  # whose imports have waited, and are answered
        self._again: deque[tuple[Account, Waiting]] = deque()  # imports that have waited, and are looked at once more
        self._now = 0.0  # of the last command or answer

    def announce(self, account: Account, command: Command) -> None:
        """A command has arrived: if it is an export, imports wait for it from now on."""
        if type(command) is Offer and command.future is not None:
            told = account.standing, command.name, command.owner, command.future, command.adapters
            export = Export(*told) if (text := command.text) is None else Export.of_beginning(*told, text)
            self._announced.setdefault(command.owner, {})[command.future] = export
            self._memory.exports.announce(export)

    def reached(self, queue: CommandQueue, command: Command, waves: Sequence[Wave], now: float) -> None:
        """A command of a queue has its turn. `waves`: those that are in flight, and the one that was formed."""
        assert command.future is not None
        account, self._now = queue.account, now
        if command.owner not in self._accounts:
            return  # its inferlet was ended for lack of memory, in the same turn
        if account.forget_cancelled(command.future):
            return
        answer: Value | CallError
        match command:
            case Barrier():  # done with the last wave that its queue is in, or that its inferlet's exports wait for
                last = max(queue.last_wave, self._last_held.get(command.owner, -1))
                for wave in waves:
                    if wave.number == last:
                        wave.ends(command.owner, command.future)
                        return
                answer = Done()
            case Offer():
                self._hold(account, command, waves[-1].number if waves else None, now)
                return
            case Fetch():
                self._fetch(account, command)
                return
            case Question():
                try:
                    answer = command.answer(self._memory, account.standing.tenant, now)
                except CallError as error:
                    answer = error
            case _:
                raise AssertionError(f"{type(command).__name__} is not answered here")
        self._answer(command.owner, command.future, answer)

    def _fetch(self, account: Account, command: Fetch, waits: int = 0) -> None:
        """Answers an import, or lets it wait for what is coming. `waits`: how often it has waited for beginnings."""
        if command.text is not None:
            self._fetch_beginning(account, command, command.text, waits)
            return
        exports, standing = self._memory.exports, account.standing
        export = exports.find(standing.tenant, command.name)
        assert command.future is not None
        stands = export is not None and exports.stands(export)
        if (
            export is None
            or self._comes_behind(export, command.owner, command.future)
            or (not stands and export.keeps_waiting(standing.service_class))
        ):
            self._answer(command.owner, command.future, missing(command.name))
            return
        if stands:
            self._give(export, account, command)
        else:
            self._wait(export, command)

    def _give(self, export: Export, account: Account, command: Fetch) -> None:
        """Answers an import with all that an export has."""
        assert command.future is not None
        self._searches.note(account, len(export.pages) // PAGES_OF_A_SEARCH)
        self._memory.exports.use(export, self._now)
        self._memory.lend(account.holdings, command.future, export.block)
        found = Import(export.positions, export.tokens, np.array(export.adapters, np.int32))
        self._answer(command.owner, command.future, found)

    def _comes_behind(self, export: Export, owner: Owner, future: int) -> bool:
        """Whether an export waits for its turn, and its inferlet has issued it behind this future."""
        return export.owner == owner and export.future > future and export.future in self._announced.get(owner, ())

    def _fetch_beginning(self, account: Account, command: Fetch, text: TextKeys, waits: int) -> None:
        """Answers with what stands of a text, as soon as nothing more of it is coming, or the import has waited as
        often as it may."""
        assert command.future is not None
        found = self._memory.exports.beginning(account.standing, text)
        if found.coming is not None and waits < MOST_WAITS:
            self._wait(found.coming, command, waits + 1)
            return
        for export in found.exports:
            self._memory.exports.use(export, self._now)
        if found.block.pages:
            self._memory.lend(account.holdings, command.future, found.block)
        positions = np.arange(len(found.block.pages) * self._memory.page_size, dtype=np.int32)
        positions[found.tokens :] = EMPTY
        adapters = sorted({number for export in found.exports for number in export.adapters})
        value = Import(positions, positions[:0], np.array(adapters, np.int32))
        self._answer(command.owner, command.future, value)

    def _wait(self, export: Export, command: Fetch, number: int = 1) -> None:
        """An import waits until an export stands, or will not."""
        assert command.future is not None
        export.wait(command.owner, command.future)
        self._waiting.setdefault(command.owner, {})[command.future] = Waiting(export, command, number)

    def _take_waiting(self, export: Export) -> Iterator[tuple[Account, Waiting]]:
        """The imports that wait for an export, which are answered now."""
        for owner, future in tuple(export.waiting):
            yield self._accounts[owner], self._wait_no_more(owner, future)

    def _wait_no_more(self, owner: Owner, future: int) -> Waiting:
        own = self._waiting[owner]
        one = own.pop(future)
        one.export.wait_no_more(owner, future)
        if not own:
            del self._waiting[owner]
        return one

    def _hold(self, account: Account, command: Offer, wave: int | None, now: float) -> None:
        assert command.future is not None
        export = self._take_announced(command.owner, command.future)
        block = account.holdings.lent.pop(command.future)
        try:
            self._memory.exports.hold(export, block, [place for place, _ in command.states])
        except CallError as error:
            self._fail(export, error)
            return
        finally:
            self._memory.release_block(block)
        export.fill(command.positions, command.tokens, now)
        if wave is None:
            self._stand(export)
        else:
            self._held.append((wave, export))
            self._last_held[command.owner] = wave

    def answered(self, wave: int, now: float) -> None:
        """All commands of the waves up to this one were answered."""
        self._now = now
        while self._held and self._held[0][0] <= wave:
            self._stand(self._held.popleft()[1])

    def _stand(self, export: Export) -> None:
        if export.taken_back and not export.unwanted:
            self._serve(export)
        for block in self._memory.exports.stand(export):
            self._memory.release_block(block)
        self._answer(export.owner, export.future, Done())
        if export.unwanted:
            self._ask_again(export)
        elif not export.taken_back:
            self._serve(export)

    def _serve(self, export: Export) -> None:
        """Those who wait for it have what it has, whatever becomes of it: as many in each turn as there is time for."""
        if export.is_beginning:
            self._ask_again(export)
        elif export.waiting:
            self._memory.exports.serve(export)
            self._serving.append(export)
            self.look_again()

    def _fail(self, export: Export, error: CallError) -> None:
        self._memory.release_block(self._memory.exports.fail(export))
        self._answer(export.owner, export.future, error)
        self._ask_again(export)

    def _ask_again(self, export: Export) -> None:
        """An export will not stand, or is that of a beginning, which stands or will take long: those who wait for it
        have what there is now."""
        self._again += self._take_waiting(export)

    def look_again(self) -> None:
        """Looks at imports that have waited: as many as a turn has time for."""
        searches = self._searches
        while self._serving and searches.left > 0:
            export = self._serving[0]
            if not export.waiting:
                self._memory.release_block(self._memory.exports.has_served(self._serving.popleft()))
                continue
            owner, future = next(iter(export.waiting))
            account, one = self._accounts[owner], self._wait_no_more(owner, future)
            searches.note(account, one.command.searches)
            self._give(export, account, one.command)
        while self._again and searches.left > 0:
            account, (_, command, number) = self._again.popleft()
            assert command.future is not None
            if self._accounts.get(command.owner) is account and not account.forget_cancelled(command.future):
                searches.note(account, command.searches)
                self._fetch(account, command, number)

    def next(self, now: float) -> float | None:
        """When something goes on though nothing happens."""
        return now if self._again or self._serving else None

    def _adopt(self, note: Adopt) -> None:
        if account := self._accounts.get(note.owner):
            self._memory.adopt(account.holdings, note.future, note.first, note.state)

    def _discard(self, note: Discard) -> None:
        account, future = self._accounts.get(note.owner), note.future
        if account is None:
            return
        if future in account.holdings.lent:
            self._memory.discard(account.holdings, future)
        elif account.answer(future):
            if future in self._waiting.get(note.owner, ()):
                self._wait_no_more(note.owner, future)
            else:
                account.cancel(future)

    def held(self, owners: Sequence[Owner]) -> None:
        """These inferlets wait for their budgets, so nobody waits for the beginnings of texts that they compute."""
        announced = [export for owner in owners for export in self._announced.get(owner, {}).values()]
        for export in [one for one in announced if one.is_beginning]:
            self._memory.exports.defer(export)
            self._ask_again(export)

    # ---- ends ----

    def last_offers(self, account: Account, backlog: Backlog, waves: Sequence[Wave], now: float) -> None:
        """An inferlet ends: its exports that wait for nothing have their turn before. So nobody has to wait for them,
        and they come though they were issued just now; but not if they are thousands."""
        account.settle()
        left = MOST_SEARCHES
        for queue in [one for one in account.queues.values() if one.run is None]:
            while left > 0 and queue.goes_on_locally and type(command := queue.commands[0]) is Offer:
                left -= command.searches
                self._memory.keep(account.holdings, command)
                backlog.remove_local(queue)
                self.reached(queue, command, waves, now)

    def closed(self, owner: Owner) -> None:
        """An inferlet has ended: what it has announced does not come. What has had its turn outlives it."""
        self._last_held.pop(owner, None)
        for future in tuple(self._waiting.get(owner, ())):
            self._wait_no_more(owner, future)
        for future in tuple(self._announced.get(owner, ())):
            self._fail(self._take_announced(owner, future), _ended())

    def _take_announced(self, owner: Owner, future: int) -> Export:
        own = self._announced[owner]
        export = own.pop(future)
        if not own:
            del self._announced[owner]
        return export

    def failed(self, owner: Owner) -> None:
        """The worker could not run a command of an inferlet: what it wrote is not what it should be."""
        for one in [one for one in self._held if one[1].owner == owner]:
            self._held.remove(one)
            self._fail(one[1], _ended())


def _ended() -> NotFound:
    return NotFound("the inferlet that made the export has ended before it stood")
