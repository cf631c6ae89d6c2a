from __future__ import annotations

from pie_control.resources.pool import PoolUsage
from tests.helpers.scheduling import World


def test_statistics_tell_what_waits_and_what_ran() -> None:
    world = World(num_pages=16 + 16, num_embeds=70)
    inferlet = world.open(4, 64)
    inferlet.step(0, 3)
    world.turn(quiet=False)
    before = world.scheduler.statistics()
    assert (before.inferlets, before.queues_waiting, before.commands_waiting, before.waves) == (1, 1, 3, 0)
    world.turn()
    running = world.scheduler.statistics()
    assert (running.waves_in_flight, running.waves, running.commands_waiting) == (1, 1, 0)
    assert (running.pages, running.embeds) == (PoolUsage(16, 12, 4, 0), PoolUsage(70, 6, 64, 0))
    assert running.token_slots.used == 1
    world.answer()
    after = world.scheduler.statistics()
    assert after.commands == after.batches == {"embed_txt": 1, "forward": 1, "sample": 1}
    assert (after.input_tokens, after.waves_in_flight, after.evictions, after.token_slots.used) == (3, 0, 0, 0)
    assert after.worker_seconds > 0
    assert world.scheduler.memory.free_pages == 12


def test_a_split_forward_counts_for_each_part() -> None:
    world = World(max_batch_tokens=20)
    world.open(16, 64).step(0, 50)
    world.drain()
    statistics = world.scheduler.statistics()
    assert statistics.commands == {"embed_txt": 1, "forward": 3, "sample": 1}
    assert statistics.batches["forward"] == 3
    assert statistics.input_tokens == 50
