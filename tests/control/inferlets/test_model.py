"""A model as the inferlets of a host see it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pie_control.calls.allocate import alloc
from pie_control.calls.core import create_queue, synchronize
from pie_control.calls.kind import Barrier, OpenQueue
from pie_control.errors import Cancelled, Exhausted, QuotaExceeded, Unsupported, WorkerError
from pie_control.inferlets.model import ModelView
from pie_control.resources.quotas import Ledgers, Quota
from pie_control.scheduling import Closed, Ending, Opened, Progress, Reason
from pie_control.tenants.tenant import Standing, Tenant
from pie_control.testing.fake_model import FakeModel


def view(name: str = "fake", ledgers: Ledgers | None = None) -> ModelView:
    return ModelView(FakeModel(name).describe()[0], ledgers or Ledgers(Quota()))


def raises(_owner: int, error: Exception) -> None:
    raise error


def test_a_quota_and_the_bound_of_a_tenant_hold_over_the_models_of_a_host() -> None:
    ledgers = Ledgers(Quota(pages=10))
    first, second = view("one", ledgers), view("two", ledgers)
    standing = Standing(Tenant("bounded", max_pages=14))
    one, two = first.open(1, standing), second.open(1, standing)
    other = first.open(2, standing)
    for space in (one, two, other):
        create_queue.issue(space, 1)
    alloc.issue(one, 1, "kvpage", 6)
    with pytest.raises(QuotaExceeded, match="6 KV pages held and 5 more asked for, the limit is 10"):
        alloc.issue(two, 1, "kvpage", 5)
    alloc.issue(two, 1, "kvpage", 4)
    with pytest.raises(QuotaExceeded, match="tenant bounded hold 10 KV pages, and 5 more were asked for"):
        alloc.issue(other, 1, "kvpage", 5)
    first.release(1)  # the guest ends its spaces, then releases them
    one.end(Cancelled("it is over"))
    alloc.issue(other, 1, "kvpage", 5)


def test_what_inferlets_do_comes_out_once_in_order() -> None:
    model = view()
    for owner in (1, 2):
        space = model.open(owner)
        create_queue.issue(space, 1)
        synchronize.issue(space, 1, 5)
    model.release(1)
    model.release(1)
    events = model.take_events()
    assert [type(event) for event in events] == [Opened, OpenQueue, Barrier] * 2 + [Closed]
    assert [event.owner for event in events] == [1, 1, 1, 2, 2, 2, 1]
    assert model.take_events() == ()


def test_spaces_hear_of_progress_and_of_the_end_that_a_scheduler_made() -> None:
    model = view()
    space = model.open(1)
    create_queue.issue(space, 1)
    synchronize.issue(space, 1, 5)
    assert space.usage().commands == 1
    model.hear([], [Progress(1, 2, 1), Progress(7, 1, 1)], [], raises)
    assert space.usage().commands == 0
    model.hear([], [], [Ending(1, Reason.EVICTED, Exhausted("others need it"))], raises)
    with pytest.raises(Exhausted, match="others need it"):
        create_queue.issue(space, 2)
    model.take_events()
    model.release(1)
    assert model.take_events() == (), "the scheduler has closed it already"


def test_a_model_that_is_down_refuses_at_once() -> None:
    model = view()
    model.down = "model fake has no worker: tried twice"
    with pytest.raises(WorkerError, match="tried twice"):
        model.open(1)
    assert model.take_events() == ()
    model.down = None
    assert model.open(1).owner == 1


def test_a_model_without_a_tokenizer_says_so() -> None:
    model = ModelView(replace(FakeModel().describe()[0], tokenizer=b""), Ledgers(Quota()))
    assert not model.has_chat_template
    with pytest.raises(Unsupported, match="model fake has no tokenizer"):
        _ = model.tokenizer
