"""Many pieces of work run as far as there are pages for them."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock, Mock

import pytest

from inferlet_sdk import embed, event_loop, rerank, traits
from inferlet_sdk.retrieval.together import AT_ONCE, each
from tests.helpers.native_host import install


class Work:
    """Work on items, each of which is the number of its pages."""

    def __init__(self, bad: int = -1) -> None:
        self.running: list[int] = []
        self.most = self.most_pages = self.ended = 0
        self._bad = bad

    async def __call__(self, item: int) -> int:
        self.running.append(item)
        self.most = max(self.most, len(self.running))
        self.most_pages = max(self.most_pages, sum(self.running))
        try:
            for _ in range(item % 5):
                await asyncio.sleep(0)
            if item == self._bad:
                raise ValueError("no")
            return -item
        finally:
            self.running.remove(item)
            self.ended += 1


def run(work: Work, items: list[int], room: int, late: bool = False) -> list[int]:
    """The answers. `late`: pages come back when all that runs has ended and was waited for."""
    held = 0

    async def took(item: int) -> int:
        nonlocal held
        assert held + item <= max(room, item)
        held += item
        try:
            return await work(item)
        finally:
            held -= 0 if late else item

    async def synchronize(_queue: int) -> None:
        nonlocal held
        held = sum(work.running)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traits, "usage", lambda: Mock(max_pages=room, pages=held))
        patch.setattr(traits, "synchronize", synchronize)
        return asyncio.run(each(took, items, lambda item: item, MagicMock()))


@pytest.mark.parametrize("late", [False, True])
def test_as_many_run_as_have_room(late: bool) -> None:
    work, items = Work(), [3, 8, 9, 1, 4, 4, 2, 7] * 9
    assert run(work, items, 20, late) == [-item for item in items]
    assert 10 < work.most_pages <= 20
    assert run(work, [30, 31], 20, late) == [-30, -31], "one at a time, where there is room for none"
    assert work.most_pages == 31
    run(work, [1] * 100, 1000, late)
    assert work.most == AT_ONCE
    assert run(work, [], 5) == []


def test_if_one_fails_the_others_end() -> None:
    work = Work(bad=6)
    with pytest.raises(ValueError, match="no"):
        run(work, [4, 6, 4, 4, 4], 20)
    assert work.running == []
    assert work.ended == 4, "the last has not begun"


def test_ranks_may_have_an_adapter() -> None:
    install(adapters=["x"], max_context=1000)
    plain, adapted = (event_loop.run(rerank("a", ["b"], adapter=adapter)) for adapter in (None, "x"))
    assert plain != adapted
    assert event_loop.run(embed(["a"], adapter=None))
