"""Exports: pages that outlive the inferlet that filled them, by name within a tenant and one worker of a model.

Theory of operation. An export is *announced* when its command arrives, so that an import that comes meanwhile waits for
it instead of computing the same again. When the command has its turn, the export *holds* its pages: it has a reference
to each, as every inferlet has that imports it. Once the worker has run all that writes them it *stands*, and takes the
place of an older one of its name. What is asked of a name behind that turn is about this export, whether it stands or
not: an import waits for it, and one that takes the name back keeps it from standing. Nobody writes to exported pages:
address spaces seal them (tables/pages.py).

The *beginning of a text* has no name, but a key for each of its pages: a hash of all tokens up to the page's end. Who
asks gives the keys of its own text, and gets the pages of all that stand, up to the first that is missing. It waits for
what is coming if that is at most WORTH times what it wants of it: otherwise it has computed that sooner. Nor does it
wait for who waits for a budget. Pages whose keys stand already are left out of a later export, so exports of beginnings
are the edges of a radix tree.

Nobody waits for what one of a lower class has announced, by name or as a beginning: until it stands, it is not there.

At a model that keeps a state of each text, the state at the end of what has a name is exported, too, and of a beginning
those at its end and at the ends of its pages. Who asks for a beginning gets it up to the last place with a state, which
may be within a page (text_keys.py): nothing could go on from behind it.

What stands goes when it is taken back, when its tenant has too much, or when memory is short: first what would cost
least to compute again and was used longest ago. Those who have imported it keep their pages.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice, takewhile

import numpy as np

from pie_control.errors import QuotaExceeded
from pie_control.tenants.tenant import Standing, Tenant

from ..holdings import Block
from ..kinds import PAGES, Resource
from ..pool import Pool
from .export import Beginning, Export, Name
from .text_keys import PAGES_OF_A_SEARCH, OpenPages, TextKeys

WORTH = 2
"""Who wants fewer pages of what is coming than one in so many does not wait for it."""
MOST_EXPORTS = 4096
"""Most exports of a tenant at one worker."""
ROOM_OF_MOST, SHED_OF_ALL = 64, 256
"""To find the least valuable ones takes a look at all. So a tenant with the most, or with the most pages, loses this
part of them together, and where memory is short, this part of the pool comes free."""
PINNED_OF_TENANT, PINNED_OF_ALL = 4, 2
"""A tenant may pin a quarter of the pages that it may have, and all together half of the pool."""


class _Own:
    """What stands of a tenant: the last used ones last, and their pages in all."""

    __slots__ = ("exports", "pages")

    def __init__(self) -> None:
        self.exports: dict[Export, None] = {}
        self.pages = 0


class Exports:
    """All exports at one worker."""

    def __init__(self, pages: Pool, states: Pool, state_pages: int) -> None:
        """`state_pages`: what a state counts for, in pages."""
        self._pool = pages
        self._states = states
        self._state_pages = state_pages
        self._standing: dict[Export, None] = {}
        self._pinned: dict[Export, None] = {}  # of these, those that were pinned, perhaps for a time that is over
        self._places: dict[Name, tuple[Export, int]] = {}  # what stands, and the place among its pages
        self._open = OpenPages()
        self._coming: dict[Name, Export] = {}  # by which of those that do not stand yet it is found
        self._held: dict[Name, dict[Export, None]] = {}  # by their first name: these do not stand yet either
        self._served: dict[Export, Block] = {}  # that imports get which have waited for it
        self._dropped: set[int] = set()  # adapters
        self._holds = array("i", bytes(4 * pages.total))  # how often exports hold each page
        self._of_tenant: dict[str, _Own] = {}

    # ---- life ----

    def announce(self, export: Export) -> None:
        for name in export.names:
            other = self._coming.get(name)
            if other is None or self._goes_before(export, other):
                self._coming[name] = export
        if export.adapters:
            self._reject_outdated(export)

    def _goes_before(self, export: Export, other: Export) -> bool:
        """Whether others wait for this one, which is announced behind the other one."""
        classes = export.standing.service_class, other.standing.service_class
        if classes[0] != classes[1]:
            return classes[0] < classes[1]
        return not export.is_beginning or len(other.keys) > WORTH * len(export.keys)  # else the first is there soonest

    def hold(self, export: Export, block: Block, places: Sequence[int] = ()) -> None:
        """The export has its turn; its states hang on the pages at these places. Raises QuotaExceeded: it is larger
        than all that its tenant may hold."""
        most, size = self._most_pages(export.tenant), len(block.pages) + len(block.states) * self._state_pages
        if size > most:
            raise QuotaExceeded(
                f"export {export.name!r} has {size} pages, all exports of tenant {export.tenant.name} may have "
                f"{most}: export less"
            )
        self._retain(block)
        export.pages, export.states = block.pages, dict(zip(places, block.states, strict=True))
        self._held.setdefault(export.names[0], {})[export] = None

    def _retain(self, block: Block) -> None:
        self._pool.retain(block.pages)
        self._states.retain(block.states)
        for page in block.pages:
            self._holds[page] += 1

    def _gives_back(self, block: Block) -> Block:
        for page in block.pages:
            self._holds[page] -= 1
        return block

    def _size(self, export: Export) -> int:
        """In pages."""
        return len(export.pages) + len(export.states) * self._state_pages

    def _most_pages(self, tenant: Tenant) -> int:
        return self._pool.total if tenant.max_pages is None else min(tenant.max_pages, self._pool.total)

    def stand(self, export: Export) -> Iterator[Block]:
        """What it holds was written. Gives what the exports had that make room for it, and its own pages that are there
        already, to be released."""
        self._forget(export)
        self._reject_outdated(export)
        if export.unwanted or export.taken_back:
            yield self._gives_back(export.block)
            return
        if export.is_beginning:
            yield self._leave_known(export)
            if not export.pages:
                return
        elif older := self._places.get(export.names[0]):
            yield self._drop(older[0])
        yield from self._make_room(export)
        own = self._of_tenant.setdefault(export.tenant.name, _Own())
        own.exports[export] = None
        own.pages += self._size(export)
        self._standing[export] = None
        for place, name in enumerate(export.names):
            self._places[name] = export, place
        if export.open_page is not None:
            self._open.add(export.tenant.name, export.open_page)

    def _make_room(self, export: Export) -> Iterator[Block]:
        """Drops the least valuable ones of a tenant that has the most, or would."""
        own, size = self._of_tenant.get(export.tenant.name), self._size(export)
        most, most_pages = MOST_EXPORTS, self._most_pages(export.tenant)
        if own is None or (len(own.exports) < most and own.pages + size <= most_pages):
            return
        if len(own.exports) >= most:
            most -= most // ROOM_OF_MOST
        if own.pages + size > most_pages:
            most_pages = max(size, most_pages - most_pages // ROOM_OF_MOST)
        others = [(one.value(export.used), n, one) for n, one in enumerate(own.exports)]
        heapq.heapify(others)
        while len(own.exports) >= most or own.pages + size > most_pages:
            yield self._drop(heapq.heappop(others)[2])

    def _leave_known(self, export: Export) -> Block:
        """What a beginning has that is there already, and does not have any more. States of pages that are there go to
        those who have them, which are used as it stands."""
        known = {place: found for place, name in enumerate(export.names) if (found := self._places.get(name))}
        for other, _ in known.values():
            self.use(other, export.used)
        left = []
        for place in export.states.keys() & known:
            other, at = known[place]
            state = export.states.pop(place)
            if at in other.states or not set(export.adapters) <= set(other.adapters):
                left.append(state)
            else:
                other.states[at] = state
                self._of_tenant[other.tenant.name].pages += self._state_pages
        return self._gives_back(Block(export.leave_out(known), left))

    def fail(self, export: Export) -> Block:
        """It will not stand. Gives what it has, to be released."""
        self._forget(export)
        return self._gives_back(export.block)

    def _forget(self, export: Export) -> None:
        held = self._held.get(first := export.names[0], {})
        held.pop(export, None)
        if not held:
            self._held.pop(first, None)
        self.defer(export)

    def defer(self, export: Export) -> None:
        """Nobody waits for it from now on, though it may stand."""
        for name in export.names:
            if self._coming.get(name) is export:
                del self._coming[name]

    def use(self, export: Export, now: float) -> None:
        """An import gets pages of what stands, or of what was taken back before it stood."""
        export.use(now)
        if self.stands(export):
            own = self._of_tenant[export.tenant.name].exports
            own[export] = own.pop(export)

    def serve(self, export: Export) -> None:
        """Imports that have waited for it get what it has until `has_served`, whatever becomes of it meanwhile."""
        self._served[export] = export.block
        self._retain(export.block)

    def has_served(self, export: Export) -> Block:
        """They have it. Gives what is to be released."""
        return self._gives_back(self._served.pop(export))

    def _drop(self, export: Export) -> Block:
        del self._standing[export]
        for name in export.names:
            del self._places[name]
        if export.open_page is not None:
            self._open.remove(export.tenant.name, export.open_page)
        self._pinned.pop(export, None)
        own = self._of_tenant[export.tenant.name]
        del own.exports[export]
        own.pages -= self._size(export)
        if not own.exports:
            del self._of_tenant[export.tenant.name]
        return self._gives_back(export.block)

    # ---- by name ----

    def find(self, tenant: Tenant, name: str) -> Export | None:
        """The newest that has had its turn; else one that is coming. Only one that stands has pages that may be read
        yet."""
        held = self._held_as(tenant, name)
        return held[-1] if held else self.standing(tenant, name) or self._coming.get((tenant.name, name))

    def standing(self, tenant: Tenant, name: str) -> Export | None:
        """The one that stands."""
        known = self._places.get((tenant.name, name))
        return known[0] if known else None

    def _held_as(self, tenant: Tenant, name: str) -> list[Export]:
        """Those of a name that have had their turns, in this order, and do not stand yet."""
        named = self._held.get((tenant.name, name), ())
        return [one for one in named if not (one.unwanted or one.taken_back)]

    def stands(self, export: Export) -> bool:
        return export in self._standing

    def beginning(self, standing: Standing, text: TextKeys) -> Beginning:
        """What stands of a text, up to where it can go on."""
        tenant = standing.tenant
        pages, exports, coming = list[int](), dict[Export, None](), None
        end, states = 0, list[int]()
        for key in text.pages:
            known = self._places.get((tenant.name, key))
            if known is None:
                coming = self._worth_waiting(standing, text.pages[len(pages) :])
                break
            export, place = known
            pages.append(export.pages[place])
            exports[export] = None
            if place in export.states:
                end, states = len(pages), [export.states[place]]
        if not self._states.total:
            return Beginning(Block(pages), len(pages) * text.page_size, exports, coming)
        for place, length, key in self._open.within(tenant.name, text, end, len(pages)):
            known = self._places.get((tenant.name, key))
            if known is not None and (state := known[0].states.get(known[1])) is not None:
                exports[known[0]] = None
                block = Block([*pages[:place], known[0].pages[known[1]]], [state])
                return Beginning(block, place * text.page_size + length, exports, coming)
        return Beginning(Block(pages[:end], states), end * text.page_size, exports, coming)

    def _worth_waiting(self, standing: Standing, wanted: Sequence[bytes]) -> Export | None:
        """The export that is coming with the first of these pages, if it has enough of them."""
        export = self._coming.get((standing.tenant.name, wanted[0]))
        if export is None or export.keeps_waiting(standing.service_class):
            return None
        coming = set(export.keys[export.keys.index(wanted[0]) :])
        return export if len(coming) <= WORTH * len(coming.intersection(wanted)) else None

    def known(self, tenant: Tenant, names: Sequence[str | bytes]) -> int:
        """How many of the first names stand or are coming."""
        found = ((tenant.name, name) in self._places or (tenant.name, name) in self._coming for name in names)
        return sum(takewhile(bool, found))

    def soon(self, standing: Standing, name: str, text: TextKeys | None) -> int:
        """How many first pages of a text stand, or are coming and worth waiting for; of what has a name 1 or 0."""
        tenant = standing.tenant
        if text is None:
            return self.known(tenant, [name])
        there = sum(takewhile(bool, ((tenant.name, key) in self._places for key in text.pages)))
        wanted = text.pages[there:]
        return self.known(tenant, text.pages) if wanted and self._worth_waiting(standing, wanted) else there

    def pages_in(self, tenant: Tenant, keys: Sequence[bytes], exports: Collection[Export]) -> int:
        """How many first pages of a text these exports have."""
        found = (self._places.get((tenant.name, key), (None,))[0] in exports for key in keys)
        return sum(takewhile(bool, found))

    def take_back(self, tenant: Tenant, name: str) -> Block | None:
        """The name is free. Those that have had no turn come behind that. Gives what is to be released; None: there was
        no such export."""
        held, known = self._held_as(tenant, name), self.standing(tenant, name)
        for export in held:
            export.take_back()
            self.defer(export)
        if known is not None:
            return self._drop(known)
        return Block(()) if held else None

    def drop_adapter(self, adapter: int) -> Iterator[Block]:
        """Nothing that an adapter has changed is there any more, or will be: another one may get its name. Gives what
        is to be released."""
        self._dropped.add(adapter)
        for export in {*self._coming.values(), *chain.from_iterable(self._held.values())}:
            self._reject_outdated(export)
        for export in list(self._standing):
            if adapter in export.adapters:
                yield self._drop(export)

    def _reject_outdated(self, export: Export) -> None:
        if not self._dropped.isdisjoint(export.adapters):
            export.unwanted = True
            self.defer(export)

    def listed(self, tenant: Tenant, prefix: str, most: int) -> list[Export]:
        """Those of a tenant that stand under a name, the last used first."""
        own = self._of_tenant.get(tenant.name)
        found = (one for one in reversed(own.exports if own else {}) if not one.is_beginning)
        return list(islice((one for one in found if one.name.startswith(prefix)), most))

    def searches(self, tenant: Tenant) -> int:
        """As how many a list or a pin counts: they look at so many exports."""
        own = self._of_tenant.get(tenant.name)
        return (len(self._pinned) + len(own.exports if own else ())) // PAGES_OF_A_SEARCH

    # ---- memory ----

    def pin(self, tenant: Tenant, exports: Sequence[Export], until: float, now: float) -> Sequence[Export]:
        """These exports of a tenant, which stand, do not go before `until`, from the first one on: as many as it may
        pin, and as the pool has room for what is pinned. Those that do not go."""
        asked = set(exports)
        held = [one for one in self._pinned if one.pinned > now and one not in asked]
        own = sum(self._size(one) for one in held if one.tenant.name == tenant.name)
        room = self._pool.total // PINNED_OF_ALL - sum(self._size(one) for one in held)
        room = min(room, self._most_pages(tenant) // PINNED_OF_TENANT - own)
        for place, export in enumerate(exports):
            room -= self._size(export)
            if room < 0:
                return exports[:place]
            export.pin(until)
            self._pinned[export] = None
        return exports

    def pinned(self, resource: Resource, now: float) -> Sequence[int]:
        """What does not come free, whoever ends."""
        return [slot for one in self._pinned if one.pinned > now for slot in one.block.of(resource)]

    def shed(self, resource: Resource, missing: int, now: float) -> Iterator[Block]:
        """Drops the least valuable exports of what nobody else holds and nobody has pinned, until so many pages or
        states come free, or the least part of the pool: what several have, with the most valuable of them. Gives what
        each had, to be released before the next is asked for."""
        pool = self._pool if resource is PAGES else self._states
        missing = max(missing, pool.total // SHED_OF_ALL)
        passed: dict[int, list[Export]] = {}  # by what they hold that has other holders
        staying = Counter[int]()  # of these, those that stand still
        for export in sorted(self._standing, key=lambda one: one.value(now)):
            if missing <= 0 or export.pinned > now:
                return
            slots = export.block.of(resource)
            free = [slot for slot in slots if pool.references(slot) == 1 + staying[slot]]
            missing -= len(free)
            for one in dict.fromkeys(one for slot in free for one in passed.get(slot, ()) if one in self._standing):
                staying.subtract(one.block.of(resource))
                yield self._drop(one)
            if free:
                yield self._drop(export)
            else:
                staying.update(slots)
                for slot in slots:
                    passed.setdefault(slot, []).append(export)

    def __len__(self) -> int:
        """Those that stand."""
        return len(self._standing)

    def own_pages(self) -> int:
        """Pages that nothing but exports holds. While texts come, somebody asks twenty times a second."""
        holds = np.asarray(self._holds)
        return int(np.count_nonzero((holds > 0) & (holds == np.asarray(self._pool.all_references()))))
