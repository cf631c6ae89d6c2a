from __future__ import annotations

import pytest

from pie_control.calls.values import Done
from pie_control.scheduling import Adaptive, DispatchPolicy, DispatchState, Eager, KOnly, TOnly
from pie_inference.protocol import Sample, WaveDone
from tests.helpers.scheduling import Inferlet, World, by_kind


def start(policy: DispatchPolicy, inferlets: int) -> tuple[World, list[Inferlet]]:
    """Inferlets whose memory is bound and whose embed 0 is filled."""
    world = World(policy)
    opened = [world.open(1, 1) for _ in range(inferlets)]
    for inferlet in opened:
        inferlet.embed(0)
    world.turn(quiet=False)
    world.now = 1000.0  # behind every deadline
    world.drain()
    return world, opened


def sample(inferlets: list[Inferlet]) -> None:
    for inferlet in inferlets:
        inferlet.sample(0)


def send(world: World, now: float) -> int | None:
    """Samples in the wave that is sent now, if one is."""
    world.now = now
    wave = world.send()
    return None if wave is None else len(by_kind(wave)[Sample].embeds)


def test_adaptive_sends_at_once_when_the_worker_is_idle() -> None:
    world, inferlets = start(Adaptive(), 3)
    assert send(world, 2000.0) is None
    sample(inferlets)
    assert send(world, 2000.0) == 3
    assert world.turn().deadline is None


def test_adaptive_does_not_split_programs_that_look_at_every_token() -> None:
    world, inferlets = start(Adaptive(), 8)
    sample(inferlets[:6])
    assert send(world, 2000.0) == 6
    sample(inferlets[6:])
    assert send(world, 2000.0) is None, "six inferlets are about to return"
    world.answer()
    sample(inferlets[:6])
    assert send(world, 2000.0) == 8


def test_adaptive_runs_ahead_when_nobody_is_expected() -> None:
    world, inferlets = start(Adaptive(), 8)
    for size in (8, 8, None):
        sample(inferlets)
        assert send(world, 2000.0) == size
    assert len(world.sent) == 2


def test_adaptive_does_not_expect_those_that_have_ended() -> None:
    world, inferlets = start(Adaptive(), 8)
    sample(inferlets[:6])
    assert send(world, 2000.0) == 6
    sample(inferlets[6:])
    for inferlet in inferlets[:6]:
        world.close(inferlet)
    assert send(world, 2000.0) == 2


def test_eager_sends_every_command_alone() -> None:
    world, inferlets = start(Eager(), 4)
    sample(inferlets)
    assert [len(by_kind(wave)[Sample].embeds) for wave in world.drain()] == [1, 1, 1, 1]


def test_k_only_waits_for_k_commands_or_its_patience() -> None:
    world, inferlets = start(KOnly(3, patience=0.5), 3)
    world.now = 2000.0
    sample(inferlets[:2])
    assert world.turn().deadline == 2000.5
    assert send(world, 2000.1) is None
    assert world.turn().deadline == 2000.5
    sample(inferlets[2:])
    assert send(world, 2000.2) == 3
    world.answer()
    sample(inferlets[:1])
    world.now = 2001.0
    world.turn(quiet=False)
    assert send(world, 2001.4) is None
    assert send(world, 2001.5) == 1


def test_a_wave_of_k_only_has_k_commands() -> None:
    world, inferlets = start(KOnly(3, patience=0.5), 6)
    world.now = 2000.0
    sample(inferlets)
    waves = [len(by_kind(wave)[Sample].embeds) for wave in world.turn().waves]
    assert waves == [3, 3]
    assert send(world, 2000.5) is None, "two are in flight"


def test_t_only_sends_what_has_gathered() -> None:
    world, inferlets = start(TOnly(0.5), 3)
    sample(inferlets[:1])
    assert send(world, 2000.0) is None
    sample(inferlets[1:])
    assert send(world, 2000.4) is None
    assert world.turn().deadline == 2000.5
    assert send(world, 2000.5) == 3


@pytest.mark.parametrize("policy", [TOnly(0.5), KOnly(9, patience=0.5)])
def test_a_deadline_that_has_passed_is_not_told_again(policy: DispatchPolicy) -> None:
    world, inferlets = start(policy, 3)
    for number, inferlet in enumerate(inferlets):
        world.now = 2000.0 + number
        inferlet.sample(0)
        world.turn(quiet=False)
        world.now += 0.5
        world.turn()
    world.now = 2010.0
    turn = world.turn()
    assert turn.waves == (), "two waves are in flight"
    assert len(world.sent) == 2
    assert turn.deadline is None


# ---- what adaptive decides by ----


def state(
    ready: tuple[int, int] = (0, 0),
    expected: tuple[int, int] = (0, 0),
    ahead: int = 0,
    wave: float = 0.0,
    guests: float = 0.0,
) -> DispatchState:
    """One wave is in flight, and all that is expected with it. Numbers are those of interactive and of batch queues."""
    return DispatchState(
        ready=ready,
        ahead=(ahead, 0),
        expected=expected,
        in_flight=1,
        ends=wave,
        wave_seconds=wave,
        fixed_seconds=wave,
        guest_seconds=guests,
        half_seconds=guests / 2,
    )


@pytest.mark.parametrize(
    ("ready", "ahead", "expected", "wave", "guests", "sends"),
    [
        (32, 32, 1, 0.015, 0.0004, True),  # one that reads each token does not keep 32 that run ahead from doing so
        (32, 32, 8, 0.015, 0.0004, False),  # eight would lose more than the worker's rest is worth
        (32, 32, 8, 0.015, 0.004, True),  # unless the worker rests for long
        (6, 0, 6, 0.015, 0.0004, False),
        (6, 0, 6, 0.015, 0.014, False),
        (6, 0, 6, 0.015, 0.018, True),  # guests slower than the worker: half and half
        (2, 0, 40, 0.015, 0.018, True),
        (6, 0, 6, 0.0005, 0.005, False),  # the rest of so fast a worker is worth nothing
        (33, 0, 8, 0.0005, 0.005, False),
        (33, 33, 8, 0.0005, 0.005, True),
        (32, 32, 8, 0.0, 0.0, False),  # nothing was measured yet
        (33, 33, 8, 0.0, 0.0, True),
    ],
)
def test_adaptive_weighs_measured_times(
    ready: int, ahead: int, expected: int, wave: float, guests: float, sends: bool
) -> None:
    now = state((ready, 0), (expected, 0), ahead, wave, guests)
    assert Adaptive().should_send(now, 0.0) is sends
    assert not Adaptive().should_send(now._replace(in_flight=2), 0.0)


def test_adaptive_weighs_only_what_a_wave_costs_however_small_it_is() -> None:
    """Two waves of six tokens take no longer than one of twelve, so there is nothing to lose."""
    full = state((6, 0), (6, 0), wave=0.015, guests=0.004)
    assert not Adaptive().should_send(full, 0.0)
    assert Adaptive().should_send(full._replace(fixed_seconds=0.002, each_seconds=0.001), 0.0)


def test_half_waves_are_no_better_for_guests_that_take_as_long_alone() -> None:
    full = state((6, 0), (6, 0), wave=0.015, guests=0.03)
    assert Adaptive().should_send(full, 0.0)
    assert not Adaptive().should_send(full._replace(half_seconds=0.03), 0.0)


@pytest.mark.parametrize("waves", ["full", "half"])
def test_what_is_not_known_of_waves_is_tried(waves: str) -> None:
    """All waves were of one size, so nobody can tell what another size costs."""
    lately = state((6, 0), (6, 0), wave=0.015, guests=0.01)._replace(only_size={"full": 12, "half": 6}[waves])
    assert Adaptive().should_send(lately, 0.0) is (waves == "full")
    alone = lately._replace(ready=(12, 0), expected=(0, 0), in_flight=0)
    assert (Adaptive().portion(alone) == 6) is (waves == "full")
    assert not Adaptive().should_send(lately._replace(guest_seconds=0.001), 0.0), "it does not matter"


def test_adaptive_sends_no_batch_work_ahead_of_an_interactive_inferlet_that_is_expected() -> None:
    assert not Adaptive().should_send(state((0, 500), (1, 0)), 0.0)
    assert Adaptive().should_send(state((500, 0), (0, 1)), 0.0)
    assert Adaptive().should_send(state((0, 500), (0, 1)), 0.0)


def test_an_idle_worker_waits_for_guests_only_as_long_as_they_usually_take() -> None:
    idle = state((4, 0), (4, 0), wave=0.015, guests=0.004)._replace(in_flight=0, hands=4, told=10.0, back=10.004)
    assert not Adaptive().should_send(idle, 10.001), "they are back soon"
    assert Adaptive().deadline(idle) == pytest.approx(10.006)
    assert not Adaptive().should_send(idle, 10.0059)
    assert Adaptive().should_send(idle, 10.0061), "something keeps them"
    assert Adaptive().should_send(idle._replace(back=10.1), 10.001), "that takes longer than a wave"
    assert Adaptive().should_send(idle._replace(expected=(0, 0), hands=0), 10.001)


def test_a_wave_waits_for_guests_until_shortly_before_the_worker_is_done() -> None:
    one = state((4, 0), (8, 0), 4, wave=0.016, guests=0.02)._replace(hands=4, ends=10.016, told=10.0, back=10.04)
    assert Adaptive().deadline(one) == pytest.approx(10.013)
    assert not Adaptive().should_send(one, 10.012)
    assert Adaptive().should_send(one, 10.0131)
    assert not Adaptive().should_send(one._replace(back=10.017), 10.0131), "they come right behind it"


def test_a_wave_behind_a_long_one_waits_for_whoever_may_come() -> None:
    long = state((8, 0), ahead=8, wave=0.08)._replace(ends=10.08)
    assert not Adaptive().should_send(long, 10.0)
    assert Adaptive().deadline(long) == pytest.approx(10.069)
    assert Adaptive().should_send(long, 10.0691), "the worker must not idle"
    assert Adaptive().should_send(long._replace(in_flight=0), 10.0), "it was faster than usual"
    short = state((8, 0), ahead=8, wave=0.02)._replace(ends=10.02)
    assert Adaptive().should_send(short, 10.0)
    assert Adaptive().deadline(short) is None


def test_a_wave_is_sent_in_halves_where_guests_take_longer_than_it() -> None:
    everybody = state((9, 0), wave=0.015, guests=0.02)._replace(in_flight=0)
    assert Adaptive().portion(everybody) == 5
    assert Adaptive().portion(everybody._replace(guest_seconds=0.01)) is None
    assert Adaptive().portion(everybody._replace(wave_seconds=0.001)) is None
    assert Adaptive().portion(everybody._replace(in_flight=1)) is None
    assert Adaptive(max_in_flight=1).portion(everybody) is None


def test_the_scheduler_measures_waves_and_guests() -> None:
    seen: list[DispatchState] = []

    class Spy(Adaptive):
        def should_send(self, state: DispatchState, now: float) -> bool:
            seen.append(state)
            return super().should_send(state, now)

    world, (one, two) = start(Spy(max_in_flight=1), 2)
    for _ in range(2):
        sample([one, two])
        world.turn()
        seen.clear()
        done = world.run()
        world.turn(WaveDone(done.wave, done.results, 0.25), quiet=False)
        world.now += 0.125
    sample([one])
    world.turn()
    assert seen[0].ready == (1, 0)
    assert 0 < seen[0].guest_seconds <= 0.125
    assert 0 < seen[0].wave_seconds <= 0.25


def test_one_reader_does_not_switch_running_ahead_off_for_thirty_two() -> None:
    """Each wave takes 15 ms, and the guests come back after 0.4 ms."""
    world, inferlets = start(Adaptive(), 33)
    reader, ahead = inferlets[0], inferlets[1:]
    in_flight = []
    for _ in range(12):
        sample(ahead)
        if reader.accepted == set(reader.answers):
            sample([reader])
        world.turn()
        if len(world.sent) < 2:
            sample(ahead)
            world.turn()
        in_flight.append(len(world.sent))
        world.now += 0.015
        done = world.run()
        world.turn(WaveDone(done.wave, done.results, 0.015), quiet=False)
        world.now += 0.0004
    assert in_flight[4:] == [2] * 8, "the worker is never without work"


# ---- what waits for no policy ----


@pytest.mark.parametrize("policy", [KOnly(2, patience=0.5), TOnly(0.5), Adaptive(), Eager()])
def test_what_takes_effect_in_the_control_layer_waits_for_no_policy(policy: DispatchPolicy) -> None:
    world, inferlets = start(policy, 2)
    one = inferlets[0]
    world.now = 2000.0
    before = world.scheduler.memory.free_pages
    one.call("alloc", 1, "kvpage", 3)
    done = one.call("synchronize", 1)
    turn = world.turn()
    assert world.scheduler.memory.free_pages == before - 3
    assert one.answers == {done: Done()}
    assert (turn.waves, turn.deadline) == ((), None)


def test_k_only_counts_commands_for_the_worker_only() -> None:
    world, inferlets = start(KOnly(3, patience=0.5), 2)
    world.now = 2000.0
    for inferlet in inferlets:
        inferlet.sample(0)
        for _ in range(4):
            inferlet.call("synchronize", 1)
    assert send(world, 2000.0) is None
    inferlets[0].sample(0)
    assert send(world, 2000.0) == 3
