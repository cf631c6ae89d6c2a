"""Large memory on the host."""

from __future__ import annotations

import pytest

from pie_inference.host_memory import HUGE_PAGE, lazy_zero_bytes


@pytest.mark.parametrize("count", [0, 1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 17])
def test_memory_is_zero_and_can_be_written(count: int) -> None:
    memory = lazy_zero_bytes(count)
    assert (memory.size, memory.any()) == (count, False)
    memory[:] = 1
    assert memory.all()


def test_large_memory_begins_at_a_huge_page() -> None:
    assert lazy_zero_bytes(5 * HUGE_PAGE + 1).ctypes.data % HUGE_PAGE == 0
