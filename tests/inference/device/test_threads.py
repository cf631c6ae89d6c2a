"""Threads are counted by what the process may use."""

from __future__ import annotations

import pytest

from pie_inference.device import threads


def test_default_threads_leave_a_core_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    assert threads.default_threads(threads.SMALL_MODEL_BYTES - 1) == 1
    assert threads.default_threads(threads.SMALL_MODEL_BYTES) == 7
