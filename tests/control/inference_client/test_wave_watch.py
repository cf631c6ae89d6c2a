from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pie_control.inference_client.wave_watch import WaveWatch


class PlayedLoop:
    """A loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[Any] = []

    def time(self) -> float:
        return self._now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(due=self._now + seconds, call=call)
        timer.cancel = lambda: self._timers.remove(timer)
        self._timers.append(timer)
        return timer

    def go_on(self, seconds: float) -> None:
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.due <= end]:
            timer = min(due, key=lambda one: one.due)
            self._now = timer.due
            timer.cancel()
            timer.call()
        self._now = end


def test_waves_that_are_answered_in_time_are_no_silence(monkeypatch: Any) -> None:
    loop, silences = PlayedLoop(), list[tuple[str, float]]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def watching(name: str, seconds: float) -> WaveWatch:
        watch = WaveWatch(seconds, lambda: silences.append((name, loop.time())))
        watch.sent()
        return watch

    watching("never", 0.0)
    watching("stopped", 5.0).stop()
    watch = watching("silence", 5.0)
    for _ in range(8):
        loop.go_on(4.0)
        watch.sent()
        watch.answered()
    assert not silences
    loop.go_on(100.0)
    assert silences == [("silence", 8 * 4.0 + 5.0)]
