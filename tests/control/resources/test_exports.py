"""Exports go several at a time where there is no room: to find the least valuable takes a look at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pie_control.resources.exports import exports as module
from pie_control.resources.exports.export import Export
from pie_control.resources.exports.exports import ROOM_OF_MOST, SHED_OF_ALL, Exports
from pie_control.resources.holdings import Block
from pie_control.resources.kinds import PAGES
from pie_control.resources.pool import Pool
from pie_control.tenants.tenant import Standing, Tenant
from tests.helpers.integrity import check_exports
from tests.helpers.work import lines_of

TENANT = Tenant("a")


def standing(pool: Pool, exports: Exports, number: int, tenant: Tenant = TENANT) -> list[int]:
    """Makes an export of one page; the pages of those that made room for it."""
    pages = pool.take(1)
    gone = made(exports, number, pages, tenant)
    pool.release([*gone, *pages], None)
    return gone


def made(exports: Exports, number: int, pages: list[int], tenant: Tenant = TENANT) -> list[int]:
    """The same of these pages, which stay held."""
    export = Export(Standing(tenant), f"{number}", 0, number)
    exports.announce(export)
    exports.hold(export, Block(pages))
    export.fill(np.zeros(16 * len(pages), np.int32), np.zeros(0, np.int32), float(number))
    gone = [page for block in exports.stand(export) for page in block.pages]
    check_exports(exports)
    return gone


def test_what_several_exports_have_goes_with_the_most_valuable_of_them() -> None:
    """It never went: a prompt that is shared by its tokens, and has a name, filled the memory for good."""
    pool = Pool(12)
    exports, pages = Exports(pool, Pool(0), 0), pool.take(6)
    for number, some in enumerate(([0, 1], [1, 2], [3], [1, 2, 4], [4, 5])):
        made(exports, number, [pages[place] for place in some])
    pool.release([page for page in pages if page != pages[5]], None)

    def shed(missing: int) -> str:
        for block in exports.shed(PAGES, missing, 100.0):
            pool.release(block.pages, None)
        check_exports(exports)
        return "".join(str(n) for n in range(5) if exports.find(TENANT, f"{n}"))

    assert (shed(1), pool.free) == ("1234", 7)
    assert (shed(1), pool.free) == ("134", 8)
    assert (shed(1), pool.free) == ("4", 10)
    assert (shed(1), pool.free) == ("", 11), "one page is held by another one"


@pytest.mark.parametrize(
    "pages_of",
    [lambda _: [0, 1, 2], lambda number: [number, number + 1], lambda number: [0, number + 1]],
    ids=["all the same", "each two of a neighbour", "one of all"],
)
def test_the_work_to_make_room_grows_as_what_stands_does(pages_of: Callable[[int], list[int]]) -> None:
    """A thousand exports of one long prompt held up the scheduler for seconds."""

    def work(count: int) -> int:
        pool = Pool(4 * count)
        exports, pages = Exports(pool, Pool(0), 0), pool.take(count + 1)
        for number in range(count):
            made(exports, number, [pages[place] for place in pages_of(number)])
        pool.release(pages, None)

        def shed() -> None:
            for block in exports.shed(PAGES, pool.total, 1000.0):
                pool.release(block.pages, None)

        lines = lines_of(shed)
        assert (len(exports), pool.free) == (0, pool.total)
        return lines

    few, many = work(40), work(160)
    assert few < many < 5 * few


def test_what_exports_alone_hold_is_known_without_a_look_at_all() -> None:
    """Half of the control process's time went into it, where they filled the memory of a GPU."""

    def work(count: int) -> int:
        pool = Pool(count)
        exports = Exports(pool, Pool(0), 0)
        for number in range(count):
            standing(pool, exports, number)
        assert exports.own_pages() == count
        return lines_of(exports.own_pages)

    assert work(40) == work(160)


def test_where_memory_is_short_a_part_of_the_pool_comes_free() -> None:
    pool = Pool(4 * SHED_OF_ALL)
    exports = Exports(pool, Pool(0), 0)
    for number in range(20):
        standing(pool, exports, number)
    assert [len(block.pages) for block in exports.shed(PAGES, 1, 100.0)] == [1] * 4
    assert not exports.find(TENANT, "3")
    assert exports.find(TENANT, "4")
    assert sum(len(block.pages) for block in exports.shed(PAGES, 6, 100.0)) == 6


def test_a_tenant_with_the_most_pages_loses_several_exports() -> None:
    pool = Pool(3 * ROOM_OF_MOST)
    exports = Exports(pool, Pool(0), 0)
    tenant = Tenant("a", max_pages=2 * ROOM_OF_MOST)
    assert not any(standing(pool, exports, number, tenant) for number in range(2 * ROOM_OF_MOST))
    gone = [len(standing(pool, exports, 1000 + number, tenant)) for number in range(5)]
    assert gone == [3, 0, 0, 3, 0]


def test_a_tenant_with_the_most_exports_loses_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EXPORTS", 2 * module.ROOM_OF_MOST)
    pool = Pool(1000)
    exports = Exports(pool, Pool(0), 0)
    assert not any(standing(pool, exports, number) for number in range(2 * module.ROOM_OF_MOST))
    gone = [len(standing(pool, exports, 1000 + number)) for number in range(5)]
    assert gone == [3, 0, 0, 3, 0]


def test_a_name_is_looked_up_among_its_own() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    pool = Pool(1000)
    exports = Exports(pool, Pool(0), 0)
    for number in range(100):
        export = Export(Standing(TENANT), Name(number), 0, number)
        exports.announce(export)
        exports.hold(export, Block(pool.take(1)))
    Name.compared = 0
    assert exports.find(TENANT, "99") is export
    assert Name.compared < 10
