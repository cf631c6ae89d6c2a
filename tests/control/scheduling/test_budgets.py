"""Tenants that flood get the tokens of their budget and no more, and others do not notice. Time is the test's."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pie_control.errors import QuotaExceeded
from pie_control.ids import Owner
from pie_control.scheduling import Adaptive, Reason
from pie_control.tenants.budgets import Budget
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing, Tenant
from tests.control.scheduling.test_decode_runs import begin, expected, run_of
from tests.helpers.scheduling import Inferlet, World

FLOOD, CALM = Standing(Tenant("flood")), Standing(Tenant("calm"))
WAVE_SECONDS = 0.2


class Arena(World):
    """Time passes with waves, and where nobody may go, up to the deadline of the scheduler."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(Adaptive(max_in_flight=1), None, None, None, num_pages=200, num_embeds=512, **sizes)
        self.players: list[tuple[Inferlet, int, int]] = []  # with the first embed and the tokens of a forward
        self.spent: dict[str, list[tuple[float, int]]] = defaultdict(list)  # when, tokens
        self.served: dict[Owner, int] = defaultdict(int)

    def join(self, standing: Standing, tokens: int = 4) -> Inferlet:
        """An inferlet that always has a forward to run, which keeps no keys."""
        inferlet = self.open(standing=standing)
        queue = inferlet.create_queue()
        first = inferlet.call("alloc", queue, "emb", tokens)
        inferlet.call("embed_txt", queue, [1] * tokens, list(range(tokens)), [first, tokens])
        self.players.append((inferlet, first, tokens))
        return inferlet

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            for inferlet, first, tokens in self.players:
                if inferlet.ending is None and inferlet.space.waiting < 2:
                    inferlet.call("forward", 1, [], [first, tokens], [], [])
            turn = self.turn()
            if self.sent:
                for wave in vars(self.scheduler)["_in_flight"]:
                    self._count(wave)
                self.now += WAVE_SECONDS
                self.answer()
            else:
                assert turn.deadline is not None, "nobody will ever go"
                assert turn.deadline > self.now
                self.now = turn.deadline

    def _count(self, wave: object) -> None:
        for batch in wave.batches:  # type: ignore[attr-defined]
            for command, size in zip(batch.commands, batch.sizes(), strict=False):
                name = vars(self.scheduler)["_accounts"][command.owner].standing.tenant.name
                self.spent[name].append((self.now, int(size)))
                self.served[command.owner] += bool(size)

    def in_a_minute(self, name: str, begin: float) -> int:
        return sum(tokens for now, tokens in self.spent[name] if begin <= now < begin + 60)


@pytest.mark.parametrize("wave", [32, 256])
def test_a_flood_gets_its_budget_and_others_do_not_notice(wave: int) -> None:
    """Whether waves have room for all, or queues go in fair order."""
    alone, arena = Arena(max_batch_tokens=wave), Arena(max_batch_tokens=wave)
    arena.meters.use({"flood": Budget(tokens_per_minute=3000)})
    for _ in range(12):
        arena.join(FLOOD)
    calm = [world.join(CALM) for world in (arena, alone)]
    for world in (arena, alone):
        world.run_for(125)
    for start in (0, 10, 30, 60, 64):
        assert arena.in_a_minute("flood", start) <= 3000 * 1.02
    for start in (60, 64):
        assert arena.in_a_minute("flood", start) == pytest.approx(3000, rel=0.02)
    assert arena.served[calm[0].owner] == pytest.approx(alone.served[calm[1].owner], rel=0.001)
    flooding = [arena.served[inferlet.owner] for inferlet, _, _ in arena.players[:12]]
    assert max(flooding) - min(flooding) <= 0.2 * max(flooding)


def test_whoever_floods_alone_goes_on_at_deadlines() -> None:
    arena = Arena()
    arena.meters.use({"flood": Budget(tokens_per_minute=1200)})
    for _ in range(3):
        arena.join(FLOOD)
    arena.run_for(125)
    assert arena.in_a_minute("flood", 62) == pytest.approx(1200, rel=0.02)


def test_long_prompts_are_counted_too() -> None:
    """A command goes whatever it costs: what it takes too much is missing later."""
    arena = Arena(max_batch_tokens=64)
    arena.meters.use({"flood": Budget(tokens_per_minute=6000)})
    for _ in range(3):
        arena.join(FLOOD, tokens=60)
    arena.run_for(125)
    assert arena.in_a_minute("flood", 62) == pytest.approx(6000, rel=0.02)


def test_tokens_of_decode_runs_count_and_those_of_ended_runs_do_not() -> None:
    world = World()
    inferlet = begin(world, 12, stop=expected(3)[-1])
    world.drain()
    usage = world.meters.of(DEFAULT_STANDING).usage
    assert inferlet.answers == {run_of(inferlet): tuple(expected(3))}
    assert (usage.prompt_tokens, usage.generated_tokens) == (3, 3)


def test_what_ended_runs_give_back_lets_others_go_on_though_nothing_else_happens() -> None:
    world = World()
    world.gated = False
    world.meters.use({DEFAULT_STANDING.tenant.name: Budget(tokens_per_minute=270)})
    for _ in range(4):
        begin(world, 14, stop=expected(5)[-1])
    goes_on = begin(world, 14)
    turn = world.turn()
    while goes_on.answers == {}:
        if world.sent:
            world.now += 0.001
            turn = world.answer()
            if world.scheduler.waits_for(0):
                turn = world.turn()
        else:
            assert turn.deadline is not None, "nobody will ever go"
            world.now = turn.deadline
            turn = world.turn(quiet=False)


def test_a_day_that_is_spent_ends_what_runs() -> None:
    arena = Arena()
    arena.meters.use({"flood": Budget(tokens_per_day=100)})
    flooding, calm = arena.join(FLOOD), arena.join(CALM)
    arena.run_for(10)
    assert calm.ending is None
    assert flooding.ending is not None
    assert flooding.ending.reason is Reason.EXCEEDED
    assert isinstance(flooding.ending.error, QuotaExceeded)
    assert str(flooding.ending.error) == "tenant flood has spent its 100 tokens of today (UTC)"
    assert arena.meters.of(FLOOD).usage.tokens == 100


def test_a_budget_that_is_raised_lets_go_on() -> None:
    arena = Arena()
    arena.meters.use({"flood": Budget(tokens_per_minute=60)})
    flooding = arena.join(FLOOD)
    arena.join(CALM)
    arena.run_for(5)
    before = arena.served[flooding.owner]
    arena.meters.use({})
    arena.run_for(5)
    assert arena.served[flooding.owner] > before + 20


def test_who_ends_while_it_waits_leaves_nothing() -> None:
    arena = Arena()
    arena.meters.use({"flood": Budget(tokens_per_minute=60)})
    flooding = arena.join(FLOOD)
    arena.join(CALM)
    arena.run_for(5)
    assert flooding.space.waiting
    arena.close(flooding)
    arena.players = arena.players[1:]
    arena.run_for(1)
    arena.players = []
    arena.turn()
    assert arena.turn().deadline is None
