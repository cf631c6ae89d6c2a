"""Decode runs: their tokens are those of decoding step by step, whatever happens around them."""

from __future__ import annotations

import random
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import CallError
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, TOnly
from tests.helpers.run_programs import Author
from tests.helpers.scheduling import World

POLICIES: list[DispatchPolicy] = [
    Adaptive(),
    Adaptive(max_in_flight=1),
    Adaptive(max_in_flight=3, surplus=0),
    Eager(),
    KOnly(5),
    TOnly(2.0),
]


def pump(world: World, choice: random.Random) -> None:
    """Some turns, or none."""
    for _ in range(choice.choice([0, 0, 1, 2, 3])):
        world.now += 1.0
        world.turn(quiet=choice.random() < 0.6)
        if world.sent and choice.random() < 0.6:
            world.answer()


def finish(world: World) -> None:
    """Runs until nothing moves any more."""
    world.lateness = lambda: 0
    for _ in range(5000):
        world.now += 10.0
        turn = world.turn()
        if world.sent:
            world.answer()
        elif not turn.waves and turn.deadline is None:
            break
    world.tell()


def play(world: World, authors: list[Author], choice: random.Random, steps: int) -> None:
    for _ in range(steps):
        if alive := [author for author in authors if author.alive]:
            with suppress(CallError):
                choice.choice(alive).step()
        pump(world, choice)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(POLICIES),
    inferlets=st.integers(1, 4),
    late=st.sampled_from([0, 0, 1, 5]),
    rows=st.sampled_from([1, 2, 64]),
    tokens=st.sampled_from([3, 17, 64]),
    slots=st.sampled_from([3, 64]),
)
def test_tokens_are_those_of_decoding_step_by_step(
    seed: int, policy: DispatchPolicy, inferlets: int, late: int, rows: int, tokens: int, slots: int
) -> None:
    choice = random.Random(seed)
    limits = {"max_batch_rows": rows, "max_batch_tokens": tokens, "num_token_slots": slots, "max_context": 2000}
    world = World(policy, None, None, None, **{"page_size": 4, "num_pages": 2000, "num_embeds": 2000, **limits})
    world.lateness = lambda: choice.randint(0, late)
    authors = [Author(world.open(), random.Random(seed * 7 + number)) for number in range(inferlets)]
    play(world, authors, choice, 40)
    finish(world)
    for author in authors:
        assert author.alive, author.inferlet.ending
        assert author.inferlet.space.waiting == 0
        assert set(author.inferlet.answers) >= author.inferlet.accepted
        assert not author.inferlet.space.runs
        assert not author.inferlet.space.pages.withheld or any(line.reserved for line in author.lines)
        author.check()
    for author in authors:
        world.close(author.inferlet)
    finish(world)
    usage = world.scheduler.statistics()
    assert (usage.pages.free, usage.embeds.free) == (usage.pages.total, usage.embeds.total)
    assert usage.token_slots.free == usage.token_slots.total
    assert usage.runs == 0
