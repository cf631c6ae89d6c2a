from __future__ import annotations

import pytest

from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, TOnly
from pie_inference.protocol import Sample
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
