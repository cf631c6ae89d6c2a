"""Memory, endings and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pie_control.calls.fused.verify import Verified
from pie_control.calls.output_text.get_logprobs import Logprobs
from pie_control.calls.output_text.get_next_dist import Dists
from pie_control.calls.values import Completion, Done
from pie_control.errors import Exhausted, NotFound, WorkerError
from pie_control.resources import address_space
from pie_control.resources.contention import Action, End, Holder, Shortage
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.scheduling import Adaptive, Reason, WorkerLost
from pie_inference.protocol import EmbedTxt, Sample
from tests.helpers.scheduling import World, by_kind, greedy, name_token

SIZES: dict[str, Any] = {"num_pages": 16 + 16, "num_embeds": 10}  # 16 pages, for 16 are kept for keys that are dropped
AHEAD = Adaptive(surplus=0)


def start(policy: Adaptive = AHEAD) -> World:
    return World(policy, **SIZES)


def ended(world: World, *owners: int) -> bool:
    """Whether these inferlets, and no others, were ended."""
    return set(range(1, world.opened + 1)) - set(world.inferlets) == set(owners)


# ---- values ----


def test_each_future_gets_its_kind_of_value() -> None:
    world = start()
    one = world.open(1, 2)
    one.embed(0)
    sample = one.sample(0)
    dist = one.call("get_next_dist", one.queue, 0, 3, 1.0)
    everything = one.call("get_next_dist", one.queue, 0, 0, 1.0)
    logprobs = one.call("get_logprobs", one.queue, 0, [4, 5])
    verify = one.call("verify", one.queue, [0, 1], [], greedy())
    done = one.call("synchronize", one.queue)
    world.drain()
    assert set(one.answers) == one.accepted
    small, large = one.answers[dist], one.answers[everything]
    assert isinstance(small, Dists)
    assert isinstance(large, Dists)
    assert one.token(sample) == small.tokens[0]
    assert len(small.tokens) == len(small.probabilities) == 3
    assert small.probabilities.sum() + small.rest.sum() == pytest.approx(1)
    assert len(large.tokens) == 256
    scores = one.answers[logprobs]
    assert isinstance(scores, Logprobs)
    assert len(scores.logprobs) == 2
    assert one.answers[verify] == Verified(0, one.token(sample))
    assert one.answers[done] == Done()


# ---- synchronize ----


def test_synchronize_is_done_when_the_wave_with_the_last_command_is() -> None:
    world = start()
    one = world.open(1, 2)
    one.embed(0)
    world.turn()
    future = one.call("synchronize", one.queue)
    turn = world.turn()
    assert not turn.waves
    assert not turn.completions
    assert world.answer().completions == (Completion(1, future, Done()),)


def test_synchronize_on_an_idle_queue_is_done_without_a_wave() -> None:
    world = start()
    one = world.open()
    future = one.call("synchronize", one.create_queue())
    turn = world.turn()
    assert (turn.waves, turn.completions) == ((), (Completion(1, future, Done()),))


def test_synchronize_waits_for_every_part_of_a_split_forward() -> None:
    world = World(max_batch_tokens=20)
    one = world.open(12, 48)
    one.embed(0, 48)
    one.forward(0, 48)
    one.call("synchronize", one.queue)
    world.turn()
    answered = []
    while world.sent:
        answered.append(len(world.turn(world.run()).completions))
    assert answered == [0, 0, 1]


# ---- queues ----


def test_a_queue_ends_after_the_commands_that_it_holds() -> None:
    world = start()
    one = world.open(1, 2)
    one.embed(0)
    future = one.sample(0)
    one.destroy_queue(1)
    with pytest.raises(NotFound, match="queue 1"):
        one.call("synchronize", 1)
    world.drain()
    assert set(one.answers) == {future}
    assert one.space.usage().queues == 0


# ---- tokens ----


def test_a_token_is_kept_as_long_as_its_inferlet_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the address space hears of it; and longer, if a command that names it waits."""
    monkeypatch.setattr(address_space, "REMEMBERED_TOKENS", 2)
    monkeypatch.setattr(address_space, "FORGOTTEN_AT_ONCE", 2)
    world = World(AHEAD, Prepared(), **SIZES)
    one, holder = world.open(1, 3), world.open(15, 2)
    one.embed(0)
    world.drain()
    world.lateness = lambda: 100
    first = one.sample(0)
    for _ in range(5):
        one.sample(0)
    world.drain()
    one.call("alloc", 1, "kvpage", 1)  # waits for a page
    one.call("embed_txt", 1, [name_token(first)], [1], [1, 1])
    world.tell()
    with pytest.raises(NotFound, match="token reference 1 names no"):
        one.call("embed_txt", 1, [name_token(first)], [1], [2, 1])
    world.turn()
    world.close(holder)
    (wave,) = world.drain()
    assert by_kind(wave)[EmbedTxt].tokens.tolist() == [one.token(first)]
    tokens = vars(world.scheduler)["_accounts"][1].holdings.tokens
    assert set(tokens) == {5, 6}, "the others are forgotten"


# ---- giving back ----


def test_freed_pages_come_back_when_their_last_wave_has_completed() -> None:
    world = start()
    one = world.open(10, 2)
    one.embed(0)
    one.forward()
    world.turn()
    one.call("dealloc", 1, "kvpage", [0, 10])
    one.call("alloc", 1, "kvpage", 10)
    assert world.turn().waves == ()
    assert world.scheduler.statistics().pages.quarantined == 10
    world.answer()
    assert world.scheduler.statistics().pages.used == 10, "those that wait for memory wait for no policy"
    world.turn()
    assert ended(world)


def test_embeds_are_not_freed_while_another_queue_has_an_earlier_command_that_uses_them() -> None:
    world = World(AHEAD, max_batch_rows=1, **SIZES)
    one = world.open(1, 2)
    one.embed(0)
    world.drain()
    other = one.create_queue()
    one.sample(0)
    one.sample(0)
    one.call("dealloc", other, "emb", [0, 2])
    world.turn(quiet=False)
    assert world.scheduler.statistics().embeds.quarantined == 0, "the samples have not been dispatched"
    assert len(world.turn().waves) == 2
    assert world.scheduler.statistics().embeds.quarantined == 2
    world.answer()
    assert world.scheduler.statistics().embeds.quarantined == 2
    world.answer()
    assert world.scheduler.statistics().embeds.free == 10


def test_an_embed_freed_by_one_inferlet_is_not_reused_in_the_same_wave() -> None:
    world = World(AHEAD, num_embeds=2)
    for _ in range(2):
        one = world.open(0, 2)
        one.embed(0)
        one.sample(0)
        one.call("dealloc", 1, "emb", [0, 2])
    assert [len(by_kind(wave)[Sample].embeds) for wave in world.drain()] == [1, 1]
    assert ended(world)


# ---- too little memory ----


def test_the_youngest_inferlet_is_ended_when_pages_run_out() -> None:
    world = start()
    old, middle, young = (world.open(5, 1) for _ in range(3))
    young.embed(0)
    world.drain()
    future = young.sample(0)
    world.turn()
    old.call("alloc", 1, "kvpage", 2)
    turn = world.turn()
    assert turn.waves == ()
    (ending,) = turn.endings
    assert (ending.owner, ending.reason) == (3, Reason.EVICTED)
    assert not turn.completions, "its end answers them all"
    assert isinstance(young.answers[future], Exhausted)
    with pytest.raises(Exhausted, match="first come, first served"):
        young.create_queue()
    assert world.scheduler.statistics().pages.quarantined == 5, "its pages may still be in use"
    assert world.answer().completions == (), "answered when it was ended"
    world.turn()
    assert (old.space.waiting, middle.space.usage().pages) == (0, 5)
    assert world.scheduler.statistics().pages.used == 12
    assert world.scheduler.statistics().evictions == 1
    assert ended(world, 3)


def test_room_is_made_at_once_if_nothing_is_in_flight() -> None:
    world = start()
    old, _ = world.open(8, 2), world.open(8, 2)
    world.drain()
    old.call("alloc", 1, "kvpage", 3)
    old.embed(0)
    turn = world.turn()
    assert len(turn.waves) == 1
    assert ended(world, 2)


def test_the_requester_is_ended_when_it_is_the_youngest() -> None:
    world = start()
    world.open(14, 2)
    young = world.open(2, 2)
    world.drain()
    young.call("alloc", 1, "kvpage", 1)
    world.turn()
    assert ended(world, 2)


def test_what_was_ended_runs_in_its_wave_but_answers_nobody() -> None:
    world = start()
    one, young = world.open(8, 2), world.open(8, 2)
    world.drain()
    young.embed(0)
    future = young.sample(0)
    one.embed(0)
    one.call("alloc", 1, "kvpage", 1)  # behind a command for the worker: it is reached when the wave is formed
    turn = world.turn()
    assert len(turn.waves) == 1
    assert isinstance(young.answers[future], Exhausted)
    assert world.answer().completions == ()
    assert world.scheduler.statistics().token_slots.used == 0


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    world = start()
    first, second = world.open(12, 1), world.open(1, 1)
    first.embed(0)
    world.drain()
    first.sample(0)
    world.turn()
    first.call("dealloc", 1, "kvpage", [0, 12])  # in quarantine until the wave is done
    first.call("alloc", 1, "kvpage", 14)
    second.call("alloc", 1, "kvpage", 1)
    world.turn()
    assert (first.space.waiting, second.space.waiting) == (1, 1)
    world.answer()
    world.turn()
    assert (first.space.waiting, second.space.waiting) == (0, 0)
    assert world.scheduler.statistics().pages.used == 16
    assert ended(world)


class Prepared:
    """A policy that notes what it sees, and answers with actions that were prepared."""

    def __init__(self) -> None:
        self.answer: tuple[Action, ...] = ()
        self.seen: list[tuple[Shortage, tuple[Holder, ...]]] = []

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        self.seen.append((shortage, tuple(holders)))
        return self.answer


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        (PAGES, "kvpage"),
        (EMBEDS, "emb"),
    ],
)
def test_who_is_to_wait_waits_until_something_is_given_back(resource: Resource, kind: str) -> None:
    policy = Prepared()
    world = World(AHEAD, policy, num_pages=16 + 10, num_embeds=10)
    one, two = world.open(), world.open()
    one.create_queue()
    two.create_queue()
    one.call("alloc", 1, kind, 8)
    world.drain()
    two.call("alloc", 1, kind, 3)
    done = two.call("synchronize", 1)
    for now in (5.0, 6.0):
        world.now = now
        world.turn()
    assert policy.seen == [(Shortage(2, resource, 3, 1, 10), (Holder(1, 1.0, 8), Holder(2, 2.0, 0)))]
    assert ended(world)
    assert not two.answers
    one.call("dealloc", 1, kind, [0, 2])
    world.turn()
    assert two.answers == {done: Done()}
    assert len(policy.seen) == 1


def test_a_policy_may_end_whom_it_likes() -> None:
    policy = Prepared()
    world = World(AHEAD, policy, **SIZES)
    _, two = world.open(16, 1), world.open(0, 1)
    world.drain()
    two.call("alloc", 1, "kvpage", 1)
    policy.answer = (End(77, "nobody"), End(1, "the operator wants it so"), End(1, "twice"))
    (ending,) = world.turn().endings
    assert (ending.owner, str(ending.error)) == (1, "the operator wants it so")
    assert two.space.waiting == 0
    assert world.scheduler.statistics().evictions == 1


# ---- ends ----


def test_an_inferlet_that_has_closed_hears_nothing_and_holds_nothing() -> None:
    world = start()
    one = world.open(1, 2)
    one.embed(0)
    one.sample(0)
    world.turn()
    one.sample(0)
    world.close(one)
    one.sample(0)  # on its way when it was closed
    turn = world.turn()
    assert not turn.completions
    assert not turn.endings
    assert not turn.waves
    assert world.answer().completions == ()
    statistics = world.scheduler.statistics()
    assert statistics.pages.used == statistics.embeds.used == statistics.token_slots.used == 0
    assert (statistics.commands_waiting, statistics.inferlets) == (0, 0)


def test_a_lost_worker_ends_everything() -> None:
    world = start()
    inferlets = [world.open(1, 2) for _ in range(2)]
    for one in inferlets:
        one.embed(0)
        one.sample(0)
    world.turn()
    for one in inferlets:
        one.sample(0)
    turn = world.turn(WorkerLost("killed by signal 9"))
    assert not turn.completions, "the ends answer them"
    assert [(ending.owner, ending.reason) for ending in turn.endings] == [(1, Reason.LOST), (2, Reason.LOST)]
    for one in inferlets:
        with pytest.raises(WorkerError, match="signal 9"):
            one.create_queue()
    world.open(1, 1)
    assert world.turn().waves == ()


def test_late_commands_of_an_inferlet_that_was_ended_are_dropped() -> None:
    world = start()
    _, young = world.open(16, 2), world.open(0, 2)
    world.drain()
    world.lateness = lambda: 1
    young.call("alloc", 1, "kvpage", 1)
    world.turn()
    assert young.ending is None
    young.create_queue()
    young.embed(0)
    young.sample(0)
    young.call("dealloc", 1, "emb", [1, 1])
    young.call("set_queue_priority", 2, 1)
    young.destroy_queue(2)
    turn = world.turn()
    assert not turn.waves
    assert not turn.completions
    assert young.ending is not None
    world.close(young)
    world.turn()
    assert world.scheduler.statistics().commands_waiting == 0


# ---- progress ----


@pytest.mark.parametrize("name", ["synchronize", "set_queue_priority", "destroy_queue"])
def test_who_names_a_queue_that_the_scheduler_does_not_know_ends_and_nobody_else(name: str) -> None:
    world = start()
    one, other = world.open(4, 4), world.open(4, 4)
    world.drain()
    lost = one.create_queue()
    world.events.clear()
    other.embed(0)
    sample = other.sample(0)
    if name == "destroy_queue":
        one.destroy_queue(lost)
    else:
        one.call(name, lost, *([1] if name == "set_queue_priority" else []))
    world.drain()
    assert ended(world, 1)
    assert one.ending is not None
    assert one.ending.reason is Reason.FAILED
    assert "queue 2 is not known to the scheduler" in str(one.ending.error)
    assert sample in other.answers


def test_that_commands_have_left_their_queues_is_told_with_an_answer() -> None:
    world = start()
    one = world.open(1, 2)
    world.drain()
    one.embed(0)
    sent = world.turn()
    assert (len(sent.waves), sent.progress) == (1, ())
    answered = world.answer()
    assert [progress.owner for progress in answered.progress] == [one.owner]
    one.call("synchronize", one.queue)
    done = world.turn()
    assert (len(done.completions), len(done.progress)) == (1, 1), "nothing is in flight that could tell it later"


def test_memory_that_comes_back_is_told_at_once() -> None:
    world = start()
    one, two = world.open(1, 2), world.open(1, 2)
    world.drain()
    one.embed(0)
    assert len(world.turn().waves) == 1
    two.call("dealloc", two.queue, "kvpage", [0, 1])
    turn = world.turn()
    assert [(progress.owner, bool(progress.returned)) for progress in turn.progress] == [(two.owner, True)]
    world.drain()


def test_who_is_only_told_what_the_control_layer_answers_leaves_nothing_behind() -> None:
    world = World()
    one = world.open()
    one.create_queue()
    for _ in range(20):
        one.call("synchronize", 1)
        world.turn()
    assert len(one.answers) == 20
    assert len(vars(vars(world.scheduler)["_guests"])["_deliveries"]) <= 1
