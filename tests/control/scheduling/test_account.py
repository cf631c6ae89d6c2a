"""Calls that are refused: the right error, a message that names the number, and no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pie_control.errors import CallError, Exhausted, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.resources import Quota
from pie_control.scheduling import Account, SamplingParams, Scheduler
from pie_control.testing.fake_model import FakeModel

GREEDY = SamplingParams(temperature=0)
Q = 1
REFERENCE = 0x8000_0000


@pytest.fixture
def account() -> Account:
    """Queues 1 and 2; pages 0 to 3, the first with 3 tokens; embeds 0 to 7, the first four filled; sample future 1."""
    model = FakeModel(page_size=4, num_pages=32, num_embeds=100, max_batch_tokens=16, max_context=40)
    quota = Quota(pages=10, embeds=40, queues=2, futures=3)
    account = Scheduler(model.describe()[0], quota=quota).open(0, 0.0)
    assert [account.create_queue(), account.create_queue()] == [1, 2]
    account.alloc_kvpage(Q, 4, 0.0)
    account.alloc_emb(Q, 8, 0.0)
    account.embed_txt(Q, [65, 66, 67, 68], [0, 1, 2, 3], [0, 4], 0.0)
    account.forward(Q, [0, 1], [0, 3], [0, 1], [], 0.0)
    account.sample(Q, 0, GREEDY, 0.5, 1, 0.0)
    return account


Call = Callable[[Account], Any]
REFUSED: list[tuple[type[CallError], str, Call]] = [
    (NotFound, "queue 9", lambda a: a.synchronize(9, 5, 0.0)),
    (NotFound, "queue 9", lambda a: a.destroy_queue(9)),
    (NotFound, "queue 9", lambda a: a.set_queue_priority(9, 1)),
    (QuotaExceeded, "limit is 2", lambda a: a.create_queue()),
    (InvalidArgument, "0 pages", lambda a: a.alloc_kvpage(Q, 0, 0.0)),
    (QuotaExceeded, "limit is 10", lambda a: a.alloc_kvpage(Q, 7, 0.0)),
    (Exhausted, "whole pool has 28", lambda a: a.alloc_kvpage(Q, 29, 0.0)),
    (Exhausted, "4 KV pages held and 25 more", lambda a: a.alloc_kvpage(Q, 25, 0.0)),
    (InvalidArgument, "0 embeds", lambda a: a.alloc_emb(Q, 0, 0.0)),
    (QuotaExceeded, "limit is 40", lambda a: a.alloc_emb(Q, 33, 0.0)),
    (Exhausted, "whole pool has 100", lambda a: a.alloc_emb(Q, 101, 0.0)),
    (NotFound, "page 4", lambda a: a.dealloc_kvpage(Q, [3, 2], 0.0)),
    (InvalidArgument, "twice", lambda a: a.dealloc_kvpage(Q, [0, 2, 1, 1], 0.0)),
    (NotFound, "embed 8", lambda a: a.dealloc_emb(Q, [7, 2], 0.0)),
    # embed_txt
    (InvalidArgument, "2 tokens, 1 positions and 1 embeds", lambda a: a.embed_txt(Q, [1, 2], [4], [4, 1], 0.0)),
    (InvalidArgument, "position 40", lambda a: a.embed_txt(Q, [1], [40], [4, 1], 0.0)),
    (InvalidArgument, "token 300", lambda a: a.embed_txt(Q, [300], [4], [4, 1], 0.0)),
    (NotFound, "embed 8", lambda a: a.embed_txt(Q, [1, 2], [4, 5], [7, 2], 0.0)),
    (InvalidArgument, "embed 4 is named twice", lambda a: a.embed_txt(Q, [1, 2], [4, 5], [4, 1, 4, 1], 0.0)),
    (NotFound, "reference 7", lambda a: a.embed_txt(Q, [REFERENCE + 7], [4], [4, 1], 0.0)),
    (InvalidArgument, "belongs to queue 1", lambda a: a.embed_txt(2, [REFERENCE + 1], [4], [4, 1], 0.0)),
    # forward
    (InvalidArgument, "at least one", lambda a: a.forward(Q, [0, 1], [], [0, 2], [], 0.0)),
    (InvalidState, "embed 4 was never filled", lambda a: a.forward(Q, [0, 1], [3, 2], [0, 2], [], 0.0)),
    (NotFound, "embed 8", lambda a: a.forward(Q, [0, 1], [8, 1], [0, 2], [], 0.0)),
    (NotFound, "page 4", lambda a: a.forward(Q, [3, 2], [3, 1], [0, 1], [], 0.0)),
    (NotFound, "page 4", lambda a: a.forward(Q, [0, 1], [3, 1], [4, 1], [], 0.0)),
    (InvalidState, "have 1;", lambda a: a.forward(Q, [0, 1], [0, 2], [0, 1], [], 0.0)),
    (InvalidArgument, "2 output embeds for 1", lambda a: a.forward(Q, [0, 1], [3, 1], [0, 1], [4, 2], 0.0)),
    (NotFound, "embed 8", lambda a: a.forward(Q, [0, 1], [2, 2], [0, 2], [7, 2], 0.0)),
    (InvalidArgument, "twice", lambda a: a.forward(Q, [0, 1, 0, 1], [3, 1], [0, 1], [], 0.0)),
    # copy and trim
    (InvalidState, "source slot 3", lambda a: a.copy_kvpage(Q, [2, 2], [8, 2], 0.0)),
    (InvalidArgument, "2 source slots and 1", lambda a: a.copy_kvpage(Q, [0, 2], [8, 1], 0.0)),
    (InvalidArgument, "twice", lambda a: a.copy_kvpage(Q, [0, 2], [8, 1, 8, 1], 0.0)),
    (NotFound, "page 4", lambda a: a.copy_kvpage(Q, [0, 2], [15, 2], 0.0)),
    (NotFound, "page 4", lambda a: a.trim_kvpage(Q, [4, 1], 0, 0.0)),
    (InvalidArgument, "-1", lambda a: a.trim_kvpage(Q, [0, 1], -1, 0.0)),
    # outputs
    (InvalidState, "embed 5", lambda a: a.sample(Q, 5, GREEDY, 0.5, 2, 0.0)),
    (NotFound, "embed 9", lambda a: a.sample(Q, 9, GREEDY, 0.5, 2, 0.0)),
    (InvalidArgument, "uniform is 1.0", lambda a: a.sample(Q, 0, GREEDY, 1.0, 2, 0.0)),
    (InvalidArgument, "has 3 bytes", lambda a: a.sample(Q, 0, GREEDY, 0.5, 2, 0.0, (), b"abc")),
    (InvalidArgument, "allows no token", lambda a: a.sample(Q, 0, GREEDY, 0.5, 2, 0.0, (), bytes(33))),
    (InvalidArgument, "token 999", lambda a: a.sample(Q, 0, GREEDY, 0.5, 2, 0.0, [999])),
    (InvalidArgument, "k is 999", lambda a: a.get_next_dist(Q, 0, 999, 1.0, 2, 0.0)),
    (InvalidArgument, "temperature is 0", lambda a: a.get_next_dist(Q, 0, 5, 0.0, 2, 0.0)),
    (InvalidArgument, "temperature is nan", lambda a: a.get_next_dist(Q, 0, 5, float("nan"), 2, 0.0)),
    (InvalidState, "embed 5", lambda a: a.get_next_dist(Q, 5, 5, 1.0, 2, 0.0)),
    (InvalidArgument, "token 300", lambda a: a.get_logprobs(Q, 0, [1, 300], 2, 0.0)),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(
    account: Account, error: type[CallError], message: str, call: Call
) -> None:
    before = snapshot(account)
    with pytest.raises(error, match=message):
        call(account)
    assert snapshot(account) == before


def snapshot(account: Account) -> tuple[object, ...]:
    pages, embeds = account.pages, account.embeds
    return (
        account.usage(),
        account.backlog.commands,
        account.backlog.issued,
        sorted(account.futures),
        sorted(account.sources),
        dict(account.rewrites),
        len(account.frees),
        {number: queue.priority for number, queue in account.queues.items()},
        (list(pages.fill), list(pages.top), list(pages.writes), pages.positions.tolist(), list(pages.physical)),
        (list(embeds.positions), list(embeds.writes), list(embeds.reads), list(embeds.physical)),
    )


def test_a_context_longer_than_the_model_allows_is_refused(account: Account) -> None:
    account.dealloc_kvpage(Q, [0, 4], 0.0)
    pages = account.alloc_kvpage(Q, 10, 0.0)
    embeds = account.alloc_emb(Q, 32, 0.0)
    account.embed_txt(Q, [1] * 32, list(range(32)), [embeds, 32], 0.0)
    account.forward(Q, [pages, 10], [embeds, 32], [pages, 10], [], 0.0)
    account.embed_txt(Q, [1] * 9, [39] * 9, [embeds, 9], 0.0)
    with pytest.raises(InvalidArgument, match="32 context tokens and 9 inputs, the model's limit is 40"):
        account.forward(Q, [pages, 10], [embeds, 9], [], [], 0.0)
    account.forward(Q, [pages, 10], [embeds, 8], [], [], 0.0)


def test_more_inputs_than_a_batch_need_output_pages(account: Account) -> None:
    embeds = account.alloc_emb(Q, 17, 0.0)
    account.embed_txt(Q, [1] * 17, list(range(17)), [embeds, 17], 0.0)
    with pytest.raises(InvalidArgument, match="17 inputs without output pages; at most 16"):
        account.forward(Q, [], [embeds, 17], [], [], 0.0)
    account.forward(Q, [], [embeds, 16], [], [], 0.0)


def test_futures_are_limited(account: Account) -> None:
    account.synchronize(Q, 2, 0.0)
    account.synchronize(Q, 3, 0.0)
    with pytest.raises(QuotaExceeded, match="limit is 3"):
        account.sample(Q, 0, GREEDY, 0.5, 4, 0.0)


def test_an_address_given_back_is_invalid_at_once(account: Account) -> None:
    account.dealloc_emb(Q, [0, 1], 0.0)
    account.dealloc_kvpage(Q, [0, 1], 0.0)
    with pytest.raises(NotFound, match="embed 0"):
        account.sample(Q, 0, GREEDY, 0.5, 2, 0.0)
    with pytest.raises(NotFound, match="page 0"):
        account.forward(Q, [0, 1], [1, 1], [1, 1], [], 0.0)
    with pytest.raises(NotFound, match="embed 0"):
        account.dealloc_emb(Q, [0, 1], 0.0)
    assert (account.usage().pages, account.usage().embeds) == (3, 7)


def test_empty_lists_do_nothing(account: Account) -> None:
    before = account.usage()
    account.embed_txt(Q, [], [], [], 0.0)
    account.copy_kvpage(Q, [], [], 0.0)
    account.dealloc_kvpage(Q, [], 0.0)
    account.trim_kvpage(Q, [], 0, 0.0)
    assert account.usage() == before


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition": 0.0},
        {"frequency": float("inf")},
    ],
)
def test_sampling_parameters_out_of_range_are_refused(params: dict[str, Any]) -> None:
    (name,) = params
    with pytest.raises(InvalidArgument, match=name.replace("_", "-")):
        SamplingParams(**params)
