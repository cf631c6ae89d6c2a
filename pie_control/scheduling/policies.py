"""When a wave is sent (paper, section 6.1 and Table 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DispatchState(NamedTuple):
    """What a policy looks at. Numbers of queues are given by service class. Commands that take effect in the control
    layer wait for no policy and do not count."""

    ready: tuple[int, ...]  # queues whose next command can go to the worker
    ahead: tuple[int, ...] = ()  # of these, those that are in flight as well: they run ahead of their results
    expected: tuple[int, ...] = ()  # queues whose inferlets will issue something: in flight, or in hands (guests.py)
    hands: int = 0  # of the expected ones, those in hands
    commands: int = 0  # for the worker, in all queues
    since: float = 0.0  # seconds; when the first command began to wait, or the last wave was sent
    in_flight: int = 0  # waves
    ends: float = 0.0  # when the oldest of them should be done
    wave_seconds: float = 0.0  # that the worker took for a wave, lately; 0: not known
    fixed_seconds: float = 0.0  # of these, what a wave costs however few take part in it
    each_seconds: float = 0.0  # and what each step costs
    only_size: float | None = None  # if all waves were of so many steps for long, so that nobody can tell
    guest_seconds: float = (
        0.0  # that all these guests need between their results and what they issue next; 0: not known
    )
    half_seconds: float = 0.0  # that half of them need
    told: float = 0.0  # when those in hands that should be back first got their results
    back: float = 0.0  # when they should be back
    stragglers: bool = False  # whether most of them are


class DispatchPolicy(Protocol):
    """Decides when a wave is sent and how large it may be."""

    @property
    def max_commands(self) -> int | None:
        """Commands in one wave; None: as many as the worker's limits allow."""
        ...

    def should_send(self, state: DispatchState, now: float) -> bool:
        """Called at the end of each turn, and again after each wave, while a queue is ready."""
        ...

    def portion(self, state: DispatchState) -> int | None:
        """Queues in the wave that is sent now; None: all that are ready."""
        return None

    def deadline(self, state: DispatchState) -> float | None:
        """When to ask again though nothing happened; None: not before something happens."""
        return None


WAVE_SECONDS = 0.0005
"""What a wave costs beside the worker's time: to form, to send, to answer it."""
WORTH_SECONDS = 0.002
"""A wave that takes the worker less is not worth a wave more."""
SHORTEST_SECONDS = 0.002
"""An idle worker waits at least this long for those who are expected at any moment: timers are no more exact."""
OVERRUN = 1.5
"""An idle worker waits for guests no longer than this multiple of their usual time."""
STRAGGLING = 1.25
"""It waits no longer than this multiple for those who are not back when most are."""
GAIN = 1.03
"""Half waves have to be better by this factor, for it is never known well."""
LONG_SECONDS = 0.05
"""While a wave that takes the worker this long runs, the next one is not sent before it has to be."""
LEAD_SECONDS = 0.001
"""A wave that waits goes this long, and an eighth of a wave, before the worker should be done with its last one."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Work-conserving: an idle worker gets what there is. It waits for nobody but those who are expected, and for these
    only where that pays.

    A wave takes the worker a + b n seconds for n steps, and guests need g seconds between their results and their next
    commands, in which the worker idles if everybody takes part in every wave. The other way is to send who is ready now
    without those who are expected: these go in the wave behind it, and so both halves alternate, each computing while
    the other one is at the worker. With `ready` = `ahead` + others, that makes 2 ahead + others + expected steps in two
    waves, instead of ahead + others + expected in one wave and a rest; b cancels out, and halves are better exactly if

        g (2 ahead + others + expected) > a (others + expected).

    So where guests take long against what a wave costs anyhow, half waves alternate; where they do not, one full
    wave waits for all. Times are those measured lately. If all are ready at once, and halves are better, the wave
    is sent in two. While a wave runs there is no hurry: the next one waits for those in hands until shortly before
    its end. Behind a long one it waits so for whoever may come: a text that begins meanwhile would have to wait for
    a whole wave more. Nobody waits much longer for guests than they usually take, nor with nobody expected. Until
    the times are known, `ready` has to be more than `surplus` times `expected`. Behind a wave that takes next to no
    time, only what runs ahead is sent. Nothing of a lower class is sent ahead of somebody of a higher class who is
    expected.
    """

    max_in_flight: int = 2
    surplus: float = 4
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        if state.in_flight >= self.max_in_flight or (self._has_time(state) and now < self._latest(state)):
            return False
        if not any(state.expected):
            return True
        if not state.in_flight:
            return now >= self._patience(state) or self._pays(state, max(0.0, state.back - now))
        if state.hands:
            return now >= self._latest(state) and self._pays(state, max(0.0, state.back - max(now, state.ends)))
        if state.wave_seconds and state.wave_seconds < WORTH_SECONDS and not any(state.ahead):
            return False
        return self._pays(state, state.guest_seconds)

    def portion(self, state: DispatchState) -> int | None:
        ready = sum(state.ready)
        alone = not state.in_flight and not any(state.expected) and self.max_in_flight > 1
        worth = state.wave_seconds >= WORTH_SECONDS and state.guest_seconds > 0
        return (ready + 1) // 2 if alone and ready > 1 and worth and self._halves(state) else None

    def deadline(self, state: DispatchState) -> float | None:
        if state.in_flight >= self.max_in_flight or not (state.hands or self._has_time(state)):
            return None
        return self._latest(state) if state.in_flight else self._patience(state)

    def _pays(self, state: DispatchState, rest: float) -> bool:
        """Whether to send now beats to let the worker rest for so long."""
        highest = next(number for number, queues in enumerate(state.expected) if queues)
        ready, expected = sum(state.ready[: highest + 1]), sum(state.expected)
        if not state.wave_seconds or not state.guest_seconds:
            return ready > self.surplus * expected
        ahead = sum(state.ahead[: highest + 1])
        if not ahead and not state.hands:
            return ready > 0 and self._halves(state)
        if not ahead and (probe := self._probe(state)) is not None:
            return probe
        late = ready - ahead + expected
        return rest * (late + 2 * ahead) > (WAVE_SECONDS + state.fixed_seconds) * late

    def _halves(self, state: DispatchState) -> bool:
        """Whether half waves take less time than a full one and a rest, if nobody runs ahead."""
        if (probe := self._probe(state)) is not None:
            return probe
        fixed = state.fixed_seconds + WAVE_SECONDS
        all_steps = state.each_seconds * (sum(state.ready) + sum(state.expected))
        halves = max(2 * fixed + all_steps, fixed + all_steps / 2 + state.half_seconds)
        return halves * GAIN < fixed + all_steps + state.guest_seconds

    @staticmethod
    def _probe(state: DispatchState) -> bool | None:
        """Whether to send half waves, or full ones, to see what that costs: what was not done for long. None if it is
        known, or does not matter."""
        matters = 0.1 < state.guest_seconds / max(state.wave_seconds, WAVE_SECONDS) < 4
        if state.only_size is None or not matters or state.wave_seconds < WORTH_SECONDS:
            return None
        return state.only_size > 0.75 * (sum(state.ready) + sum(state.expected))

    @staticmethod
    def _patience(state: DispatchState) -> float:
        """Until when an idle worker waits for those in hands."""
        usual = state.back - state.told
        return state.told + (STRAGGLING * usual if state.stragglers else max(SHORTEST_SECONDS, OVERRUN * usual))

    @staticmethod
    def _has_time(state: DispatchState) -> bool:
        """Whether a long wave runs, with none behind it."""
        return state.in_flight > 0 and state.wave_seconds >= LONG_SECONDS

    @staticmethod
    def _latest(state: DispatchState) -> float:
        """When to send, so that the worker does not idle after its wave."""
        return state.ends - LEAD_SECONDS - state.wave_seconds / 8


@dataclass(frozen=True, slots=True)
class Eager(DispatchPolicy):
    """No batching: every command alone, as soon as the worker can take it."""

    max_in_flight: int = 2
    max_commands: int = 1

    def should_send(self, state: DispatchState, now: float) -> bool:
        return state.in_flight < self.max_in_flight


@dataclass(frozen=True, slots=True)
class KOnly(DispatchPolicy):
    """Batches of fixed size: waits for `k` commands for the worker, and sends as many. With fewer it sends after
    `patience` seconds: no more may come before these are done."""

    k: int
    patience: float = 0.05
    max_in_flight: int = 2

    @property
    def max_commands(self) -> int:
        return self.k

    def should_send(self, state: DispatchState, now: float) -> bool:
        enough = state.commands >= self.k or now >= state.since + self.patience
        return enough and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.patience


@dataclass(frozen=True, slots=True)
class TOnly(DispatchPolicy):
    """Sends what has gathered every `seconds`."""

    seconds: float
    max_in_flight: int = 2
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        return now >= state.since + self.seconds and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.seconds
