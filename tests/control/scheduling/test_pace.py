"""How fast waves follow each other, in a simulated world where waves and guests take time: as fast as the better one of
full waves and half waves would be, whatever the times are. No inferlet starves."""

from __future__ import annotations

import pytest

from pie_control.scheduling import Adaptive, DispatchPolicy, DispatchState, Eager, KOnly, TOnly
from tests.helpers.pace import Host, Pace
from tests.helpers.tiers import corpus

WAVE = 0.016  # seconds, with everybody in it
GUESTS = 8


class Full(Adaptive):
    """Every wave waits for everybody."""

    def should_send(self, state: DispatchState, now: float) -> bool:
        return not state.in_flight and not any(state.expected)

    def portion(self, state: DispatchState) -> int | None:
        return None

    def deadline(self, state: DispatchState) -> float | None:
        return None


class Half(Full):
    """Every wave is for half of them, and the other half follows."""

    def should_send(self, state: DispatchState, now: float) -> bool:
        return state.in_flight < 2 and sum(state.ready) >= self.portion(state)

    def portion(self, state: DispatchState) -> int:
        return (sum(state.ready) + sum(state.expected)) // 2


def play(policy: DispatchPolicy, kind: str, fixed: float, ratio: float) -> tuple[float, int, Pace]:
    """Steps per second, steps of the slowest inferlet, and the world. `fixed`: the share of a wave that does not depend
    on its size. `ratio`: the time between a full wave's results and the last next command, to that of a wave."""
    guests = ratio * WAVE
    hosts = [Host()]
    thinks = [(guests, 0)] * GUESTS
    match kind:
        case "one processor":
            hosts, thinks = [Host(shared=True)], [(guests / GUESTS, 0)] * GUESTS
        case "one slow":
            thinks = [(guests / 5, 0)] * (GUESTS - 1) + [(guests, 0)]
        case "two groups":
            thinks = [(guests / 3, 0), (guests, 0)] * (GUESTS // 2)
        case "two hosts":
            hosts = [Host(shared=True, delay=0.0003), Host(shared=True, delay=0.0006)]
            thinks = [(guests / GUESTS * 2, number % 2) for number in range(GUESTS)]
    world = Pace(policy, fixed * WAVE, (1 - fixed) * WAVE / GUESTS, hosts)
    for think, host in thinks:
        world.add(think, host)
    cycle = WAVE + guests
    world.run(60 * cycle)
    before = [guest.steps for guest in world.guests]
    world.run(60 * cycle)
    steps = [guest.steps - earlier for guest, earlier in zip(world.guests, before, strict=True)]
    return sum(steps) / (60 * cycle), min(steps), world


KINDS = "alike", "one processor", "one slow", "two groups", "two hosts"
FIXED = 0.0, 0.5, 1.0
RATIOS = 0.01, 0.3, 0.6, 1.5, 10
PACES = [
    (kind, FIXED[(number + turn) % 3], RATIOS[(number + turn // 3) % 5])
    for number, kind in enumerate(KINDS)
    for turn in range(15)
]
"""Each kind with each fixed part of a wave's time and each ratio; each of these comes first for some kind."""


@pytest.mark.parametrize("pace", corpus(PACES, kind=lambda pace: pace[0]), ids=str)
def test_adaptive_is_as_fast_as_the_better_one_of_full_and_half_waves(pace: tuple[str, float, float]) -> None:
    kind, fixed, ratio = pace
    steps, least, _ = play(Adaptive(), kind, fixed, ratio)
    best = max(play(policy, kind, fixed, ratio)[0] for policy in (Full(), Half()))
    assert steps > (0.8 if kind == "two groups" else 0.9) * best
    assert least > 20, "an inferlet starves"


@pytest.mark.parametrize("policy", [Eager(), KOnly(6), TOnly(0.005)], ids=["eager", "k-only", "t-only"])
def test_the_policies_of_table_5_let_nobody_starve(policy: DispatchPolicy) -> None:
    _, least, _ = play(policy, "one processor", 1.0, 0.3)
    assert least > 0


@pytest.mark.parametrize("ratio", [0.5, 3])
def test_callers_of_a_worker_that_is_done_in_no_time_stay_in_step(ratio: float) -> None:
    """A wave takes 0.3 ms, and some come first: they do not become a group of their own."""
    world = Pace(Adaptive(), 0.0003, 0.0, [Host(shared=True)])
    for _ in range(3):
        world.add(ratio * 0.0003 / 16)
    world.run(0.00005)
    for _ in range(13):
        world.add(ratio * 0.0003 / 16)
    world.run(0.1)
    assert set(world.waves[-20:]) == {16}


def test_an_idle_worker_gets_what_is_ready_if_somebody_does_not_come_back() -> None:
    world = Pace(Adaptive(), WAVE, 0.0)
    for _ in range(4):
        world.add(0.001)
    world.run(1.0)
    world.guests[0].think = 100.0
    waves = len(world.waves)
    world.run(1.0)
    assert len(world.waves) - waves > 50
    assert world.waves[-1] == 3


def test_who_runs_ahead_keeps_the_worker_busy_beside_one_that_looks_at_every_token() -> None:
    world = Pace(Adaptive(), WAVE, 0.0)
    for _ in range(32):
        world.add(0.0, ahead=2)
    world.add(0.002)
    world.run(1.0)
    busy = world.busy
    world.run(1.0)
    assert world.busy - busy > 0.97
    assert world.guests[-1].steps > 50


def beside_a_prompt(decodes: int, fixed: float, each: float) -> tuple[list[int], float, float]:
    """Sizes of the waves from a prompt's coming on, the seconds until it has run, and how long it runs alone."""
    world = Pace(Adaptive(), fixed, each, num_embeds=5000, num_pages=4000, max_context=8192)
    for _ in range(decodes):
        world.add(0.0)
    world.run(60 * (fixed + each * decodes))
    before, begin = len(world.waves), world.now
    prompt = world.prefill(4000)
    alone = fixed + each * 4000
    while not prompt.told and world.now < begin + 20 * alone:
        world.run(alone / 50)
    return world.waves[before:], prompt.told[0] - begin, alone


TIMES = (0.015, 0.0002), (0.1, 0.002), (0.001, 0.004)
"""Of a wave, and of each token in it."""
PROMPTS = [((1, 8, 64)[(number + turn) % 3], times) for number, times in enumerate(TIMES) for turn in range(3)]


@pytest.mark.parametrize("beside", corpus(PROMPTS, kind=lambda one: one[1]), ids=str)
def test_a_long_prompt_holds_decodes_up_for_a_few_waves_time(beside: tuple[int, tuple[float, float]]) -> None:
    decodes, (fixed, each) = beside
    waves, took, alone = beside_a_prompt(decodes, fixed, each)
    usual = fixed + each * decodes
    longest = fixed + each * max(waves[1:])  # the first one may be longer: it is what shows how times depend on sizes
    assert longest <= 1.3 * max(4 * usual, 0.05) + 16 * each, "times are known roughly, while all waves are alike"
    assert took <= 1.4 * alone, "it has the better part of the time"


def test_a_long_prompt_runs_whole_where_nobody_waits_and_where_the_worker_is_fast() -> None:
    assert 4000 in beside_a_prompt(0, 0.015, 0.0002)[0]
    assert max(beside_a_prompt(8, 0.002, 0.00001)[0]) >= 3500, "all that the first wave has left"


def test_a_prompt_runs_whole_again_when_decodes_have_ended() -> None:
    world = Pace(Adaptive(), 0.015, 0.0002, num_embeds=30_000, num_pages=8000, max_context=8192)
    guest = world.add(0.0)
    world.run(1.0)
    world.prefill(4000)
    world.run(2.0)
    assert max(world.waves) < 400
    guest.think = 1000.0
    for _ in range(6):
        world.prefill(4000)
        world.run(5.0)
    assert world.waves[-1] == 4000
