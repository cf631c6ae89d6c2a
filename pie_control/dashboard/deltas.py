"""What a viewer is told: all that there is at first, then what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pie_control.ids import Owner


class About(NamedTuple):
    """What stays as it is of an inferlet. `created` is in seconds since the epoch."""

    id: str
    tenant: str
    program: str
    created: float


class Now(NamedTuple):
    """What changes. `waits_since` and `ended` are in seconds since the epoch; `tokens_generated` since somebody has
    begun to look."""

    status: str
    waits_for: str
    waits_since: float
    tokens_generated: int
    pages: int
    cpu_seconds: float
    ended: float


class WaveRow(NamedTuple):
    """A wave that was answered. `begin` is in seconds since the epoch. `commands`: by call, the inferlets of the
    commands that the viewer is shown; all together are `total`, with `tokens` input tokens."""

    model: str
    worker: int
    begin: float
    seconds: float
    tokens: int
    total: int
    commands: dict[str, list[Owner]]


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """News for a viewer. Inferlets by number: those that are new, those that have changed, those that are gone.
    `sections` that have changed, whole. `skipped`: waves that were too many to be shown."""

    time: float
    about: dict[Owner, About] = {}
    now: dict[Owner, Now] = {}
    gone: list[Owner] = []
    sections: dict[str, Any] = {}
    waves: list[WaveRow] = []
    skipped: int = 0


class Deltas:
    """What one viewer knows."""

    def __init__(self) -> None:
        self.inferlets: Mapping[Owner, Now] = {}
        """What it was told last."""
        self._sections: dict[str, Any] = {}

    def next(
        self,
        time: float,
        inferlets: Mapping[Owner, Now],
        describe: Callable[[Owner], About],
        sections: Mapping[str, Any],
        waves: Iterable[WaveRow] = (),
        skipped: int = 0,
    ) -> Delta:
        """What it does not know yet. `inferlets`: all that it shall see, which is kept;
        `sections`: those that were looked at."""
        known, get = self.inferlets, self.inferlets.get
        changed = {number: now for number, now in inferlets.items() if (last := get(number)) is not now and last != now}
        about = {number: describe(number) for number in changed if number not in known}
        gone = [number for number in known if number not in inferlets]
        news = {name: value for name, value in sections.items() if self._sections.get(name) != value}
        self.inferlets = inferlets
        self._sections.update(news)
        return Delta(time, about, changed, gone, news, list(waves), skipped)
