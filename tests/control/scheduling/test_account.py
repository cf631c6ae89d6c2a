"""What is kept of one inferlet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pie_control.resources.holdings import Holdings, Returns
from pie_control.scheduling.account import STALE_HEADS, Account
from pie_control.scheduling.fairness import Share
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import DEFAULT_STANDING


def start(queues: int) -> Account:
    holdings = Holdings(1, 0.0, Returns(16))
    account = Account(1, holdings, DEFAULT_STANDING, Share(None), Meters().of(DEFAULT_STANDING))
    for number in range(queues):
        account.open_queue(number + 1)
    return account


def test_what_is_kept_of_queues_that_go_on_behind_one_that_waits_is_bounded() -> None:
    account = start(3)

    def put(number: int, seq: int) -> None:
        command: Any = SimpleNamespace(seq=seq)
        account.queues[number].put(command)
        account.head_changed(account.queues[number])

    put(1, 1)
    for seq in range(2, 2000):
        put(2 + seq % 2, seq)
        assert account.oldest_now() == 1
        account.queues[2 + seq % 2].take(1)
    assert account._heads is not None
    assert len(account._heads) <= STALE_HEADS + 2 * 3
    put(3, 2000)
    account.queues[1].take(1)
    assert account.oldest_now() == 2000
