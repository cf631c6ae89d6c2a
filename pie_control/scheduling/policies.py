"""When a wave is sent (paper, section 6.1 and Table 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DispatchState(NamedTuple):
    """What a policy looks at. Commands that take effect in the control layer wait for no policy and do not count."""

    ready: tuple[int, ...]  # queues whose next command can go to the worker, by service class
    expected: tuple[int, ...]  # queues in flight whose inferlets have issued nothing further yet, by service class
    commands: int  # for the worker, in all queues
    since: float  # seconds; when the first command began to wait, or the last wave was sent
    in_flight: int  # waves
    wave_seconds: float  # that the worker took for a wave, lately; 0: not known
    guest_seconds: float  # that inferlets took between the results and their next commands, lately; 0: not known


class DispatchPolicy(Protocol):
    """Decides when a wave is sent and how large it may be."""

    @property
    def max_commands(self) -> int | None:
        """Commands in one wave; None: as many as the worker's limits allow."""
        ...

    def should_send(self, state: DispatchState, now: float) -> bool:
        """Called only while commands wait."""
        ...

    def deadline(self, state: DispatchState) -> float | None:
        """When to ask again though nothing happened; None: not before something happens."""
        ...


WORTH_SECONDS = 0.002
"""Of a wave: below it, the worker's time is not worth a wave more, which costs the control layer half a millisecond."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Work-conserving: an idle worker gets what there is. The caller asks only when every inferlet waits.

    While a wave runs, the next one is sent if that is worth more than to wait for the inferlets that are about to
    return. Sent at once, the worker does not idle while they run; but they miss this wave, and from then on take part
    in every second one. With `ready` and `expected` queues, a wave of w seconds and guests that need g seconds, that is
    a choice between (ready + expected / 2) / w and (ready + expected) / (w + g) steps in a second. Until both times are
    known, and where a wave takes next to no time, `ready` has to be more than `surplus` times `expected`. Nothing of a
    lower class is sent ahead of somebody of a higher class who is expected.
    """

    max_in_flight: int = 2
    surplus: float = 4
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        if state.in_flight == 0:
            return True
        return state.in_flight < self.max_in_flight and self._pays(state)

    def _pays(self, state: DispatchState) -> bool:
        """Whether to send now beats to wait for who is expected."""
        expected = sum(state.expected)
        if not expected:
            return True
        highest = next(number for number, queues in enumerate(state.expected) if queues)
        ready = sum(state.ready[: highest + 1])
        wave, guests = state.wave_seconds, state.guest_seconds
        if wave < WORTH_SECONDS or not guests:
            return ready > self.surplus * expected
        return (2 * ready + expected) * guests > expected * wave

    def deadline(self, state: DispatchState) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Eager:
    """No batching: every command alone, as soon as the worker can take it."""

    max_in_flight: int = 2
    max_commands: int = 1

    def should_send(self, state: DispatchState, now: float) -> bool:
        return state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class KOnly:
    """Waits for `k` commands for the worker. With fewer it sends after `patience` seconds: no more may come before
    these are done."""

    k: int
    patience: float = 0.05
    max_in_flight: int = 2
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        enough = state.commands >= self.k or now - state.since >= self.patience
        return enough and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.patience


@dataclass(frozen=True, slots=True)
class TOnly:
    """Sends what has gathered every `seconds`."""

    seconds: float
    max_in_flight: int = 2
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        return now - state.since >= self.seconds and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.seconds
