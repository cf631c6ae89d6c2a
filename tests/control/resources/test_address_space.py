"""What an address space accepts and hands on, and what it makes of what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.calls.kind import Bind, CloseQueue, OpenQueue, Release
from pie_control.errors import CallError, Cancelled, Exhausted, InvalidArgument, NotFound, QuotaExceeded, WorkerError
from pie_control.resources import address_space
from pie_control.resources.address_space import DRAINING, again
from pie_control.resources.hazards import MAX_QUEUE
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.quotas import Quota, Usage
from pie_control.resources.tables.addresses import INITIAL_CAPACITY
from tests.helpers.scheduling import Inferlet, describe, name_token

Q = 1


def make_inferlet(quota: Quota | None = None) -> tuple[Inferlet, list[Any]]:
    """An inferlet with one queue, and what its space hands on."""
    handed_on: list[Any] = []
    inferlet = Inferlet(7, describe(num_pages=32 + 16, num_embeds=100), quota or Quota(), handed_on.append)
    inferlet.create_queue()
    return inferlet, handed_on


def test_commands_are_handed_on_in_order_and_numbered() -> None:
    inferlet, handed_on = make_inferlet()
    inferlet.call("alloc", Q, "emb", 2)
    inferlet.call("embed_txt", Q, [65], [0], [0, 1])
    inferlet.call("dealloc", Q, "emb", [0, 1])
    inferlet.call("synchronize", Q)
    opened, bind, embed, release, synchronize = handed_on
    assert opened == OpenQueue(7, Q)
    assert isinstance(bind, Bind)
    assert (bind.owner, bind.queue, bind.resource, bind.first, bind.count) == (7, Q, EMBEDS, 0, 2)
    assert isinstance(release, Release)
    assert [bind.seq, embed.seq, release.freed.seq, synchronize.seq] == [1, 2, 3, 4]
    assert synchronize.future == 1


def test_usage_counts_what_is_owned_and_what_is_not_known_to_be_dispatched() -> None:
    inferlet, _ = make_inferlet()
    inferlet.call("alloc", Q, "kvpage", 4)
    inferlet.call("alloc", Q, "emb", 8)
    inferlet.call("dealloc", Q, "kvpage", [0, 1])
    assert inferlet.space.usage() == Usage(pages=4, embeds=8, queues=1, commands=2), "commands may still use the page"
    inferlet.space.progressed(2, 1)
    assert inferlet.space.usage() == Usage(pages=4, embeds=8, queues=1, commands=1)
    inferlet.space.progressed(4, 2)
    assert inferlet.space.usage() == Usage(pages=3, embeds=8, queues=1, commands=0)


def test_a_full_queue_takes_more_when_it_is_told_of_progress() -> None:
    inferlet, handed_on = make_inferlet(Quota(commands=1))
    inferlet.call("alloc", Q, "kvpage", 1)
    before = inferlet.space.usage(), len(handed_on)
    with pytest.raises(QuotaExceeded, match="1 waiting commands held and 1 more asked for, the limit is 1"):
        inferlet.call("alloc", Q, "kvpage", 1)
    assert (inferlet.space.usage(), len(handed_on)) == before
    inferlet.call("dealloc", Q, "kvpage", [0, 1])  # does not wait in a queue
    inferlet.space.progressed(3, 1)
    inferlet.call("alloc", Q, "kvpage", 1)


def test_an_address_is_handed_out_again_when_no_earlier_command_waits() -> None:
    inferlet, _ = make_inferlet(Quota(embeds=INITIAL_CAPACITY + 1))
    inferlet.call("alloc", Q, "emb", INITIAL_CAPACITY)  # command 1
    inferlet.call("dealloc", Q, "emb", [3, 1])  # 2
    inferlet.space.progressed(2, 1)
    assert inferlet.call("alloc", Q, "emb", 1) == INITIAL_CAPACITY, "not known to be free"
    inferlet.call("dealloc", Q, "emb", [INITIAL_CAPACITY, 1])
    inferlet.space.progressed(3, 1)
    assert inferlet.call("alloc", Q, "emb", 1) != INITIAL_CAPACITY
    inferlet.call("dealloc", Q, "emb", [5, 1])


def test_an_address_given_back_is_invalid_at_once() -> None:
    inferlet, _ = make_inferlet()
    inferlet.call("alloc", Q, "kvpage", 4)
    inferlet.call("alloc", Q, "emb", 8)
    inferlet.call("embed_txt", Q, [65, 66], [0, 1], [0, 2])
    inferlet.call("dealloc", Q, "emb", [0, 1])
    inferlet.call("dealloc", Q, "kvpage", [0, 1])
    with pytest.raises(NotFound, match="embed 0"):
        inferlet.sample(0)
    with pytest.raises(NotFound, match="page 0"):
        inferlet.call("forward", Q, [0, 1], [1, 1], [1, 1], [])
    with pytest.raises(NotFound, match="embed 0"):
        inferlet.call("dealloc", Q, "emb", [0, 1])
    assert (inferlet.space.pages.owned, inferlet.space.embeds.owned) == (3, 7)


@pytest.mark.parametrize(
    ("resource", "count", "error", "message"),
    [
        (PAGES, 0, InvalidArgument, "0 KV pages asked for; ask for at least 1"),
        (EMBEDS, -1, InvalidArgument, "-1 embeds asked for"),
        (PAGES, 33, Exhausted, "0 KV pages held and 33 more asked for, the whole pool has 32"),
        (EMBEDS, 101, Exhausted, "the whole pool has 100"),
        (PAGES, 11, QuotaExceeded, "0 KV pages held and 11 more asked for, the limit is 10; free some first"),
        (EMBEDS, 41, QuotaExceeded, "the limit is 40"),
    ],
)
def test_too_large_an_allocation_is_refused(
    resource: Resource, count: int, error: type[CallError], message: str
) -> None:
    inferlet, _ = make_inferlet(Quota(pages=10, embeds=40))
    with pytest.raises(error, match=message):
        inferlet.space.check_allocation(resource, count)


def test_the_last_pages_are_kept_for_keys_that_are_dropped() -> None:
    model = describe(num_pages=20, page_size=4, max_batch_tokens=30, num_embeds=9)
    assert (PAGES.pool_size(model), EMBEDS.pool_size(model)) == (12, 9)


# ---- queues ----


def test_a_queue_that_was_destroyed_takes_no_commands() -> None:
    inferlet, handed_on = make_inferlet()
    inferlet.destroy_queue(Q)
    assert handed_on[-1] == CloseQueue(7, Q)
    for use in (lambda: inferlet.call("synchronize", Q), lambda: inferlet.destroy_queue(Q)):
        with pytest.raises(NotFound, match="queue 1 does not exist"):
            use()


def test_queues_are_limited() -> None:
    inferlet, _ = make_inferlet(Quota(queues=2))
    inferlet.create_queue()
    with pytest.raises(QuotaExceeded, match="2 queues held and 1 more asked for, the limit is 2"):
        inferlet.create_queue()


def test_destroyed_queues_whose_commands_wait_are_limited() -> None:
    inferlet, _ = make_inferlet(Quota(queues=2))
    for _ in range(2 * DRAINING):
        inferlet.call("synchronize", inferlet.create_queue())
        inferlet.destroy_queue(inferlet.queues)
    with pytest.raises(QuotaExceeded, match="8 destroyed queues whose commands may wait held"):
        inferlet.create_queue()
    inferlet.space.progressed(inferlet.space.seq + 1, inferlet.space.seq)
    for _ in range(3 * DRAINING):
        inferlet.create_queue()
        inferlet.destroy_queue(inferlet.queues)  # nothing waits


def test_numbers_of_queues_are_not_used_twice_and_may_run_out() -> None:
    """A queue that was destroyed may still hold commands."""
    inferlet, _ = make_inferlet()
    inferlet.destroy_queue(Q)
    with pytest.raises(AssertionError, match="queue number 1 comes after 1"):
        inferlet.space.open_queue(Q)
    inferlet.space.open_queue(MAX_QUEUE)
    with pytest.raises(QuotaExceeded, match=f"{MAX_QUEUE} queues were created"):
        inferlet.space.open_queue(MAX_QUEUE + 1)


# ---- ends ----


def test_a_space_that_has_ended_says_why_every_time() -> None:
    inferlet, handed_on = make_inferlet()
    inferlet.space.end(Cancelled("the client went away"))
    inferlet.space.end(WorkerError("and then the worker did"))
    before = len(handed_on)
    raised = []
    for use in (inferlet.create_queue, lambda: inferlet.call("alloc", Q, "emb", 1), lambda: inferlet.destroy_queue(Q)):
        with pytest.raises(Cancelled, match="the client went away") as caught:
            use()
        raised.append(caught.value)
    assert len(set(map(id, raised))) == 3, "one error has one traceback"
    assert len(handed_on) == before


def test_an_error_is_raised_again_as_it_was() -> None:
    first = NotFound("there is no page 5")
    second = again(first)
    assert (type(second), second.args) == (NotFound, first.args)
    assert second is not first


# ---- sampled tokens ----


def with_samples(count: int) -> Inferlet:
    inferlet, _ = make_inferlet()
    inferlet.call("alloc", Q, "emb", 8)
    inferlet.embed(0)
    for _ in range(count):
        inferlet.sample(0)
    return inferlet


def name(inferlet: Inferlet, future: int, queue: int = Q) -> None:
    inferlet.call("embed_txt", queue, [name_token(future)], [1], [1, 1])


def test_a_token_is_named_in_its_queue_only() -> None:
    inferlet = with_samples(1)
    other = inferlet.create_queue()
    name(inferlet, 1)
    with pytest.raises(InvalidArgument, match="token reference 1 belongs to queue 1, not to queue 2"):
        name(inferlet, 1, other)
    with pytest.raises(NotFound, match="token reference 2 names no `sample`"):
        name(inferlet, 2)


def test_a_failed_sample_cannot_be_named() -> None:
    inferlet = with_samples(2)
    inferlet.space.answered(1, WorkerError("no memory"))
    with pytest.raises(WorkerError, match="no memory"):
        name(inferlet, 1)
    name(inferlet, 2)


def test_old_tokens_are_forgotten_in_the_order_of_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_space, "REMEMBERED_TOKENS", 2)
    monkeypatch.setattr(address_space, "FORGOTTEN_AT_ONCE", 1)
    inferlet = with_samples(4)
    for future in (2, 1, 3):
        name(inferlet, 2)
        inferlet.space.answered(future, (65,))
    with pytest.raises(NotFound, match="token reference 2 names no `sample` of this inferlet, or one long delivered"):
        name(inferlet, 2)
    for future in (1, 3, 4):
        name(inferlet, future)


def test_a_watcher_hears_of_its_future_once() -> None:
    inferlet, _ = make_inferlet()
    heard: list[Any] = []
    inferlet.space.watch(5, heard.append)
    inferlet.space.answered(6, (1,))
    inferlet.space.answered(5, (2,))
    inferlet.space.answered(5, (3,))
    assert heard == [(2,)]
