"""Full garbage collections wait for leisure."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pie_control import garbage
from pie_control.garbage import collect_at_leisure


@pytest.fixture
def full() -> Iterator[list[int]]:
    """An item for each full collection."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(1)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.fixture(autouse=True)
def of_other_tests() -> Iterator[None]:
    """What was there before stays out of full collections: `collect_at_leisure` lets it in again at its end."""
    yield
    gc.freeze()


async def working(is_idle: Callable[[], bool], body: Callable[[], Any]) -> None:
    task = asyncio.create_task(collect_at_leisure(is_idle))
    await asyncio.sleep(0)
    try:
        await body()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_many_objects_cause_no_full_collection(full: list[int]) -> None:
    async def body() -> None:
        full.clear()
        kept: list[Any] = [[[]] for _ in range(300_000)]
        assert full == []
        assert kept

    asyncio.run(working(lambda: True, body))
    assert gc.get_freeze_count() == 0
    full.clear()
    kept: list[Any] = [[[]] for _ in range(300_000)]
    assert full, "the test would see one"
    assert kept


def test_one_comes_when_nothing_runs(full: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "EVERY_SECONDS", 0.0)
    asked = []

    def is_idle() -> bool:
        asked.append(1)
        return len(asked) % 3 == 0

    async def body() -> None:
        full.clear()
        sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
        while len(asked) < 30:
            await sleep(0)

    asyncio.run(working(is_idle, body))
    assert 8 <= len(full) <= 10


def test_the_settings_are_given_back() -> None:
    before = gc.get_threshold()

    async def body() -> None:
        assert gc.get_threshold() != before

    asyncio.run(working(lambda: True, body))
    assert gc.get_threshold() == before
