from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pie_control.calls.allocate import alloc, dealloc
from pie_control.calls.core import create_queue, destroy_queue
from pie_control.calls.forward.command import INTERVAL_BYTES, POSITION_BYTES
from pie_control.calls.input_text import embed_txt
from pie_control.errors import Cancelled, QuotaExceeded
from pie_control.resources.address_space import COMMAND_BYTES, FEW_COMMANDS, AddressSpace
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.resources.quotas import WAITING_PART, Ledgers, Quota, check_quota
from pie_control.tenants.tenant import DEFAULT_TENANT, Tenant
from tests.helpers.scheduling import Inferlet, describe, greedy

Q = 1
BOUNDED = Tenant("bounded", max_pages=12, max_embeds=5)


def open_space(ledgers: Ledgers, owner: int, tenant: Tenant = DEFAULT_TENANT) -> AddressSpace:
    """What an inferlet holds at one more model, with one queue."""
    handed_on: list[Any] = []
    space = AddressSpace(owner, describe(), ledgers.of(owner, tenant), handed_on.append)
    create_queue.issue(space, Q)
    return space


def test_each_kind_of_memory_has_its_limit() -> None:
    quota = Quota(pages=3, embeds=5)
    assert (quota.limit(PAGES), quota.limit(EMBEDS)) == (3, 5)


def test_a_limit_may_be_reached_but_not_passed() -> None:
    check_quota(3, 2, 5, "KV pages", "free some")
    with pytest.raises(QuotaExceeded, match="3 KV pages held and 3 more asked for, the limit is 5; free some"):
        check_quota(3, 3, 5, "KV pages", "free some")


def test_a_quota_holds_over_all_models_of_an_inferlet() -> None:
    ledgers = Ledgers(Quota(pages=10, queues=3))
    one, another, other_inferlet = open_space(ledgers, 1), open_space(ledgers, 1), open_space(ledgers, 2)
    alloc.issue(one, Q, "kvpage", 6)
    with pytest.raises(QuotaExceeded, match="6 KV pages held and 5 more asked for, the limit is 10"):
        alloc.issue(another, Q, "kvpage", 5)
    alloc.issue(another, Q, "kvpage", 4)
    alloc.issue(other_inferlet, Q, "kvpage", 10)
    create_queue.issue(one, 2)
    with pytest.raises(QuotaExceeded, match="3 queues held"):
        create_queue.issue(another, 3)
    destroy_queue.issue(one, 2)
    create_queue.issue(another, 3)
    assert (one.usage().pages, another.usage().pages) == (6, 4)


def test_commands_that_wait_have_a_bound_for_a_tenant_and_for_all() -> None:
    each = FEW_COMMANDS * COMMAND_BYTES
    ledgers = Ledgers(Quota(), 6 * each * WAITING_PART)
    one, two, other = (open_space(ledgers, owner, Tenant(name)) for owner, name in ((1, "a"), (2, "a"), (3, "b")))
    embeds = [alloc.issue(space, Q, "emb", 1) for space in (one, two, other)]

    def flood(space: AddressSpace, embed: int) -> int:
        """Commands that may wait."""
        with suppress(QuotaExceeded):
            while True:
                embed_txt.issue(space, Q, [1], [0], [embed, 1])
        return space.waiting

    assert flood(one, embeds[0]) == 4 * FEW_COMMANDS
    assert flood(two, embeds[1]) == FEW_COMMANDS, "few may always wait"
    two.check_queue(Q)
    with pytest.raises(QuotaExceeded, match="commands of all inferlets of tenant a that wait take"):
        two.check_large(1)
    other.check_large(3 * each)
    other.note_large(3 * each - 1)
    with pytest.raises(QuotaExceeded, match="commands of all inferlets that wait take most of"):
        open_space(ledgers, 4, Tenant("c")).check_large(2)
    one.progressed(one.seq + 1, one.waiting)
    two.check_large(3 * each)
    assert flood(one, embeds[0]) == 4 * FEW_COMMANDS
    one.end(Cancelled("it ended"))
    two.check_large(3 * each)
    other.progressed(other.seq + 1, other.waiting)
    assert other.large_bytes == 0
    other.check_large(3 * each)


def test_what_commands_see_counts_however_short_the_lists_of_their_calls_are() -> None:
    """Each forward over pages with holes names two numbers, and keeps thousands: 1,024 that wait took gigabytes."""
    quota = Quota(list_bytes=1 << 16)
    inferlet = Inferlet(1, describe(max_batch_tokens=256, max_context=1024), quota, lambda _: None)
    inferlet.allocate(65, 256)
    inferlet.call("embed_txt", Q, [65] * 256, list(range(256)), [0, 256])
    inferlet.call("forward", Q, [], [0, 256], [0, 64], [])
    inferlet.call("mask_kvpage", Q, [0, 64], [number for slot in range(0, 240, 2) for number in (slot, 1)])
    inferlet.call("embed_txt", Q, [65], [900], [0, 1])
    space, issued = inferlet.space, 0

    def take_all() -> None:
        nonlocal issued
        issued += space.waiting
        space.progressed(space.seq + 1, issued)

    def flood(*call: Any) -> int:
        count = 0
        with suppress(QuotaExceeded):
            while count < 100:
                inferlet.call(*call)
                count += 1
        return count

    take_all()
    held = INTERVAL_BYTES * 120
    assert flood("forward", Q, [0, 64], [0, 1], [], [1, 1]) == quota.list_bytes // (held + POSITION_BYTES) == 4
    take_all()
    assert flood("shift_kvpage", Q, [0, 64], 1) == quota.list_bytes // (held + 136 * 4) == 4
    run: tuple[Any, ...] = ("decode", Q, 1, greedy(), 0, 901, [0, 64], [64, 1], 3, [], "")
    with pytest.raises(QuotaExceeded, match="of lists in commands that wait held and 15360 more asked for"):
        inferlet.call(*run)
    take_all()
    future = inferlet.call(*run)
    take_all()
    assert space.large_bytes == held, "the run goes on"
    assert flood("export_kvpage", Q, "name", [0, 64], "") == (quota.list_bytes - held) // (256 * 4)
    inferlet.cancel(future)
    take_all()
    assert space.large_bytes == 0


def test_what_is_on_its_way_back_at_one_model_counts_at_the_other() -> None:
    ledgers = Ledgers(Quota(pages=10))
    one, another = open_space(ledgers, 1), open_space(ledgers, 1)
    pages = alloc.issue(one, Q, "kvpage", 8)
    dealloc.issue(one, Q, "kvpage", [pages, 8])
    with pytest.raises(QuotaExceeded, match="8 of those held were given back"):
        alloc.issue(another, Q, "kvpage", 3)
    one.progressed(1, 0, returned=(2,))
    alloc.issue(another, Q, "kvpage", 10)


def test_a_space_that_ends_takes_out_of_the_ledger_what_it_has_put_in() -> None:
    ledgers = Ledgers(Quota(pages=10, queues=2))
    one, another = open_space(ledgers, 1), open_space(ledgers, 1)
    pages = alloc.issue(one, Q, "kvpage", 6)
    dealloc.issue(one, Q, "kvpage", [pages, 2])
    alloc.issue(another, Q, "kvpage", 1)
    for _ in range(2):
        one.end(Cancelled("it is over"))
    one.progressed(9, 1)
    assert (another.ledger.held[PAGES], another.ledger.returning[PAGES], another.ledger.queues) == (1, 0, 1)
    alloc.issue(another, Q, "kvpage", 9)


def test_a_tenant_has_bounds_over_all_its_inferlets_and_models() -> None:
    ledgers = Ledgers(Quota())
    spaces = [open_space(ledgers, owner, BOUNDED) for owner in (1, 1, 2)]
    stranger = open_space(ledgers, 3)
    for space in spaces:
        alloc.issue(space, Q, "kvpage", 3)
    message = (
        "all inferlets of tenant bounded hold 9 KV pages, and 4 more were asked for; the limit is 12: free some, or "
        "wait until another one ends"
    )
    with pytest.raises(QuotaExceeded, match=message):
        alloc.issue(spaces[0], Q, "kvpage", 4)
    with pytest.raises(QuotaExceeded, match="hold 0 embeds, and 6 more were asked for; the limit is 5"):
        alloc.issue(spaces[2], Q, "emb", 6)
    assert spaces[0].usage().pages == 3, "a refused call changes nothing"
    alloc.issue(stranger, Q, "kvpage", 100)
    spaces[2].end(Cancelled("it is over"))
    alloc.issue(spaces[0], Q, "kvpage", 6)


def test_a_ledger_lasts_as_long_as_somebody_uses_it_and_a_tenant_has_the_bounds_that_it_has_now() -> None:
    ledgers = Ledgers(Quota())
    first = ledgers.of(1, BOUNDED)
    assert ledgers.of(1, BOUNDED) is first
    second = ledgers.of(2, Tenant("bounded", max_pages=99))
    assert second.tenant is first.tenant
    second.check(PAGES, 99)
    del first, second
    assert not vars(ledgers)["_inferlets"]
    assert not vars(ledgers)["_tenants"]


def test_a_family_holds_no_more_than_its_root_may() -> None:
    ledgers = Ledgers(Quota(pages=100))
    root, narrow, free = (1, Quota(pages=100)), (2, Quota(pages=30)), (3, Quota(pages=100))
    grandchild = ledgers.of(4, DEFAULT_TENANT, [root, narrow, (4, Quota(pages=30))])
    child = ledgers.of(2, DEFAULT_TENANT, [root, narrow])
    other = ledgers.of(3, DEFAULT_TENANT, [root, free])
    above = ledgers.of(1, DEFAULT_TENANT)
    assert grandchild.above is child
    assert child.above is other.above is above
    grandchild.add(PAGES, 20)
    with pytest.raises(QuotaExceeded, match="20 KV pages held and 11 more asked for, the limit is 30; 20 of those are"):
        child.check(PAGES, 11)
    child.add(PAGES, 10)
    with pytest.raises(QuotaExceeded, match="30 KV pages of the family held and 1 more asked for, the limit is 30"):
        grandchild.check(PAGES, 1)
    other.check(PAGES, 70)
    other.add(PAGES, 60)
    with pytest.raises(QuotaExceeded, match="90 KV pages of the family held and 11 more asked for, the limit is 100"):
        other.check(PAGES, 11)
    with pytest.raises(QuotaExceeded, match="90 KV pages held"):
        above.check(PAGES, 11)
    assert above.tenant is not None
    assert above.tenant.held[PAGES] == 90, "of the tenant, each page counts once"
    for ledger, count in ((grandchild, 20), (child, 10), (other, 60)):
        ledger.add(PAGES, -count)
    assert above.below[PAGES] == child.below[PAGES] == above.tenant.held[PAGES] == 0


def test_queues_of_a_family_are_counted_together() -> None:
    ledgers = Ledgers(Quota(queues=3))
    lineage = [(1, Quota(queues=3)), (2, Quota(queues=2))]
    child, above = ledgers.of(2, DEFAULT_TENANT, lineage), ledgers.of(1, DEFAULT_TENANT)
    above.open_queue()
    child.open_queue()
    child.open_queue()
    with pytest.raises(QuotaExceeded, match="2 queues held and 1 more asked for, the limit is 2"):
        child.open_queue()
    with pytest.raises(QuotaExceeded, match="3 queues held"):
        above.open_queue()
    child.close_queues(1)
    above.open_queue()
    with pytest.raises(QuotaExceeded, match="3 queues of the family held"):
        child.open_queue()
    assert (child.queues, above.queues) == (1, 3), "a refused queue counts nowhere"
