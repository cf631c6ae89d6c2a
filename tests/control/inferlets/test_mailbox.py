"""Messages to an inferlet, and sizes. What it says is tested with the outbox, in tests/control/registry."""

from __future__ import annotations

import pytest

from pie_control.inferlets.mailbox import Inbox
from pie_control.texts import byte_size, cut


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("ü", 2), ("世", 3), ("🎉", 4), ("\ud800", 3)])
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert byte_size(text) == size


def test_a_cut_text_fits_and_ends_with_a_whole_character() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("世世世", 7) == "世世"
    assert byte_size(cut("ü" * 100, 11)) == 10


# ---- inbox ----


def test_messages_come_in_order_and_once() -> None:
    inbox = Inbox()
    for text in ("a", "b", "c"):
        inbox.put(text)
    received = [inbox.try_get() for _ in range(4)]
    assert [one and one.text for one in received] == ["a", "b", "c", None]


def test_messages_put_back_keep_their_order() -> None:
    inbox = Inbox()
    for text in ("a", "b", "c"):
        inbox.put(text)
    first, second = inbox.try_get(), inbox.try_get()
    assert first
    assert second
    inbox.put_back(first)
    inbox.put_back(second)
    inbox.put("d")
    received = [inbox.try_get() for _ in range(4)]
    assert [one and one.text for one in received] == ["a", "b", "c", "d"]
