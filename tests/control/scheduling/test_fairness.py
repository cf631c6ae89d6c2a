"""Who gets how much of the waves: shares, room for decodes, bounds on waiting, and what a wave costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.ids import Owner
from pie_control.resources.quotas import Quota
from pie_control.scheduling import Adaptive, Closed, Opened
from pie_control.scheduling.account import CommandQueue
from pie_control.scheduling.backlog import PATIENCE
from pie_control.scheduling.fairness import FEW, Tenants
from pie_control.scheduling.forming.taking import PARTS, Taking
from pie_control.tenants.tenant import DEFAULT_TENANT, ServiceClass, Standing, Tenant
from pie_inference.protocol import Forward, RunWave
from tests.helpers.scheduling import SIZES, Inferlet, World
from tests.helpers.tiers import corpus

ONE_AHEAD = Adaptive(max_in_flight=1)
DEFAULT = Standing()
BATCH = Standing(DEFAULT_TENANT, ServiceClass.BATCH)
WAVE = SIZES["max_batch_tokens"]
LIMIT = 8
"""Waves within which a ready command goes if its inferlet has not used its share up."""


class Arena(World):
    """Inferlets with queues that are kept busy. Forwards keep no keys, so that they may go on for ever, unless they are
    `split`: those write pages, which are emptied again each time."""

    check_every = 8  # hundreds of turns each; what can go wrong in one is a matter of test_properties.py

    def __init__(self, **sizes: int) -> None:
        # Checks go through all embeds and pages.
        sizes = {"num_embeds": 8000, "num_pages": 1200, "max_context": 100_000, **sizes}
        super().__init__(ONE_AHEAD, None, Quota(queues=2000), None, **sizes)
        self.tokens: Counter[Owner] = Counter()  # that ran, by inferlet
        self.served: Counter[tuple[Owner, int]] = Counter()  # commands that ran, by queue
        self.waves = 0

    def join(self, standing: Standing = DEFAULT, queues: int = 1, tokens: int = 4, priority: int = 0) -> Player:
        player = Player(self, self.open(standing=standing), queues, tokens, priority)
        self.drain()
        self.tokens.clear()
        return player

    def wave(self) -> RunWave | None:
        """Forms and runs a wave, and counts what was in it."""
        turn = self.turn()
        if not turn.waves:
            return None
        (formed,) = vars(self.scheduler)["_in_flight"]
        self.waves += 1
        for batch in formed.batches:
            message = batch.build()
            sizes = message.q_indptr[1:] - message.q_indptr[:-1] if isinstance(message, Forward) else [0] * 1000
            for command, size in zip(batch.commands, sizes, strict=False):
                self.tokens[command.owner] += int(size)
                self.served[command.owner, command.queue] += 1
        self.answer()
        return turn.waves[0]

    def run_busy(self, waves: int, players: Iterable[Player | Prefiller], deep: int = 2) -> dict[Owner, float]:
        """Shares of the tokens of so many waves, in which the players always have work."""
        players = list(players)
        for _ in range(waves):
            for player in players:
                player.keep_busy(deep)
            self.wave()
        total = sum(self.tokens.values())
        return {player.inferlet.owner: self.tokens[player.inferlet.owner] / total for player in players}


class Player:
    """An inferlet whose queues run forwards of `tokens` tokens."""

    def __init__(self, arena: Arena, inferlet: Inferlet, queues: int, tokens: int, priority: int) -> None:
        self.arena, self.inferlet, self.tokens = arena, inferlet, tokens
        self.embeds = {}
        for _ in range(queues):
            queue = inferlet.create_queue()
            if priority:
                inferlet.call("set_queue_priority", queue, priority)
            self.embeds[queue] = first = inferlet.call("alloc", queue, "emb", tokens)
            inferlet.call("embed_txt", queue, [1] * tokens, list(range(tokens)), [first, tokens])

    def forward(self, queue: int) -> None:
        self.inferlet.call("forward", queue, [], [self.embeds[queue], self.tokens], [], [])

    def waiting(self, queue: int) -> int:
        """Commands in a queue."""
        return len(vars(self.arena.scheduler)["_accounts"][self.inferlet.owner].queues[queue].commands)

    def keep_busy(self, deep: int) -> None:
        account = vars(self.arena.scheduler)["_accounts"][self.inferlet.owner]
        for queue in self.embeds:
            for _ in range(deep - len(account.queues[queue].commands)):
                self.forward(queue)


class Prefiller:
    """An inferlet whose queues run long forwards that keep their keys."""

    def __init__(self, arena: Arena, queues: int, tokens: int, standing: Standing = DEFAULT, priority: int = 0):
        self.arena, self.tokens, self.inferlet = arena, tokens, arena.open(standing=standing)
        self.places = {}
        size = arena.description.page_size
        for _ in range(queues):
            queue = self.inferlet.create_queue()
            if priority:
                self.inferlet.call("set_queue_priority", queue, priority)
            pages = self.inferlet.call("alloc", queue, "kvpage", -(-tokens // size))
            embeds = self.inferlet.call("alloc", queue, "emb", tokens)
            self.inferlet.call("embed_txt", queue, [1] * tokens, list(range(tokens)), [embeds, tokens])
            self.places[queue] = [pages, -(-tokens // size)], [embeds, tokens]
        arena.drain()
        arena.tokens.clear()

    def keep_busy(self, deep: int) -> None:
        account = vars(self.arena.scheduler)["_accounts"][self.inferlet.owner]
        for queue, (pages, embeds) in self.places.items():
            if not account.queues[queue].commands:
                self.inferlet.call("trim_kvpage", queue, pages, 0)
                self.inferlet.call("forward", queue, [], embeds, pages, [])


# ---- shares ----


QUEUES = [(1, 256, 1000), (16, 256, 0), (16, 16, 1000), (1, 256, 0), (16, 256, 1000), (16, 16, 0)]


@pytest.mark.parametrize("queues", corpus(QUEUES, kind=lambda one: one[:2]), ids=str)
def test_two_inferlets_get_half_each_whatever_their_queues_and_priorities(queues: tuple[int, int, int]) -> None:
    one, other, priority = queues
    arena = Arena()
    players = [arena.join(queues=one), arena.join(queues=other, priority=priority)]
    shares = arena.run_busy(100, players, deep=16 // one + 1)
    assert 0.45 <= shares[1] <= 0.55


@pytest.mark.parametrize("priority", [0, 1000])
def test_three_inferlets_with_hundreds_of_queues_leave_a_fourth_its_share(priority: int) -> None:
    arena = Arena(num_embeds=4000)
    modest = arena.join()
    crowd = [arena.join(queues=256, priority=priority) for _ in range(3)]
    gap = worst = 0
    for _ in range(60):
        before = arena.tokens[modest.inferlet.owner]
        arena.run_busy(1, [modest, *crowd])
        gap = 0 if arena.tokens[modest.inferlet.owner] > before else gap + 1
        worst = max(worst, gap)
    assert worst == 0, "its two forwards of 4 tokens are less than its share of 16"


def test_weights_of_tenants_are_their_shares() -> None:
    arena = Arena()
    light, heavy = Tenant("light", weight=1.0), Tenant("heavy", weight=3.0)
    players = [arena.join(Standing(light), queues=64), arena.join(Standing(heavy), queues=64)]
    assert 0.20 <= arena.run_busy(200, players)[1] <= 0.30


def test_a_tenant_does_not_get_more_by_more_inferlets() -> None:
    arena = Arena()
    one = arena.join(Standing(Tenant("one")), queues=16)
    many = [arena.join(Standing(Tenant("many")), queues=16) for _ in range(8)]
    shares = arena.run_busy(100, [one, *many])
    assert 0.45 <= shares[1] <= 0.55
    assert all(0.04 <= shares[player.inferlet.owner] <= 0.09 for player in many)


def test_the_priority_of_a_request_moves_shares_within_its_tenant_alone() -> None:
    arena = Arena()
    ann, bob = Tenant("ann"), Tenant("bob")
    urgent, usual = (arena.join(Standing(ann, priority=priority), queues=64) for priority in (-4, 0))
    other = arena.join(Standing(bob), queues=64)
    shares = arena.run_busy(200, [urgent, usual, other])
    assert 0.45 <= shares[other.inferlet.owner] <= 0.55
    assert 3.5 <= shares[urgent.inferlet.owner] / shares[usual.inferlet.owner] <= 4.5, "two steps are twice as much"


def test_the_least_priority_does_not_starve() -> None:
    arena = Arena(num_embeds=512, num_pages=64)  # checks go through all of them
    last, first = (arena.join(Standing(priority=priority), queues=16, tokens=16) for priority in (10, -10))
    arena.run_busy(1000, [last, first])
    assert arena.tokens[last.inferlet.owner] >= 30, "a 1024th of 64,000 tokens is 62"


def test_whoever_idled_gets_no_more_than_its_share_afterwards() -> None:
    arena = Arena()
    idle, busy = arena.join(queues=16), arena.join(queues=16)
    arena.run_busy(100, [busy])
    arena.tokens.clear()
    shares = arena.run_busy(20, [idle, busy])
    assert 0.4 <= shares[1] <= 0.6


def test_newcomers_do_not_starve_a_long_forward() -> None:
    """Each wave, new inferlets come that together could fill it, and go."""
    arena = Arena(num_pages=400)
    prefill = Prefiller(arena, 1, 64)
    prefill.keep_busy(1)
    owner = prefill.inferlet.owner
    for _ in range(LIMIT):
        comers = [Player(arena, arena.open(), 1, 4, 0) for _ in range(20)]
        for comer in comers:
            comer.forward(1)
        arena.turn(quiet=False)
        arena.wave()
        for comer in comers:
            arena.close(comer.inferlet)
        if arena.tokens[owner]:
            return
    raise AssertionError("not within the limit")


def test_cheap_commands_count() -> None:
    """Rows are scarce, tokens are not needed at all: who floods gets half of them."""
    arena = Arena(max_batch_rows=32)
    floods, modest = arena.join(queues=64), arena.join(queues=2)
    for player in (floods, modest):
        for embed in player.embeds.values():
            player.inferlet.take_as_outputs(embed)
    for _ in range(40):
        for player, deep in ((floods, 4), (modest, 40)):
            for queue, embed in player.embeds.items():
                for _ in range(deep - player.waiting(queue)):
                    player.inferlet.call("get_next_dist", queue, embed, 1, 1.0)
        arena.wave()
    rows = Counter[Owner]()
    for (owner, _), count in arena.served.items():
        rows[owner] += count
    assert 0.4 <= rows[modest.inferlet.owner] / sum(rows.values()) <= 0.6


# ---- classes ----


def test_batch_work_gets_what_interactive_work_leaves() -> None:
    arena = Arena()
    online, offline = arena.join(queues=8), arena.join(BATCH, queues=64)
    shares = arena.run_busy(20, [online, offline], deep=1)
    assert shares == {1: 0.5, 2: 0.5}, "8 forwards of 4 tokens leave half of 64"
    arena.tokens.clear()
    assert arena.run_busy(20, [online, offline], deep=2) == {1: 1.0, 2: 0.0}


def test_a_batch_inferlet_with_high_priority_does_not_go_first() -> None:
    arena = Arena()
    offline, online = arena.join(BATCH, queues=64, priority=1000), arena.join(queues=16)
    assert arena.run_busy(10, [offline, online])[2] == 1.0


# ---- room for decodes ----


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("priority", [0, 1])
def test_a_decode_is_in_every_wave_beside_forty_prefills(priority: int, apart: bool) -> None:
    arena = Arena(max_batch_tokens=512, page_size=16, num_embeds=30_000, num_pages=2000)
    decode = arena.join(tokens=1)
    crowd = [Prefiller(arena, 1, 700, priority=priority) for _ in range(40)] if apart else []
    crowd = crowd or [Prefiller(arena, 40, 700, priority=priority)]
    arena.run_busy(120, [decode, *crowd], deep=1)
    assert arena.tokens[1] >= 108, "in nine of ten waves"
    if apart:  # queues of one inferlet that empty pages wait for each other
        assert sum(arena.tokens.values()) == 120 * 512, "and no token of a wave is lost"


def test_forwards_that_need_a_wave_of_their_own_leave_six_of_seven_waves_to_decodes() -> None:
    arena = Arena(max_batch_tokens=512, num_embeds=25_000)
    decode, crowd = arena.join(tokens=1), arena.join(queues=40, tokens=512)
    arena.run_busy(140, [decode, crowd], deep=1)
    assert (arena.tokens[1], arena.tokens[2]) == (120, 20 * 512)


def test_prefills_share_what_decodes_leave() -> None:
    arena = Arena(max_batch_tokens=512, page_size=16)
    decode, prefills = arena.join(queues=100, tokens=1), [Prefiller(arena, 1, 700) for _ in range(5)]
    decode.keep_busy(1)
    for prefill in prefills:
        prefill.keep_busy(1)
    wave = arena.wave()
    assert wave is not None
    (forward,) = [batch for batch in wave.batches if isinstance(batch, Forward)]
    sizes = sorted((forward.q_indptr[1:] - forward.q_indptr[:-1]).tolist())
    assert sizes[:100] == [1] * 100
    assert sum(sizes) == 512
    assert sizes[100:] == [64, 64, 64, 92, 128]


def test_a_prefill_alone_gets_the_wave_in_one_part() -> None:
    arena = Arena(max_batch_tokens=512, page_size=16)
    prefill = Prefiller(arena, 1, 700)
    prefill.keep_busy(1)
    sizes = []
    while (wave := arena.wave()) is not None:
        sizes.append([batch.q_indptr.tolist() for batch in wave.batches if isinstance(batch, Forward)])
    assert sizes == [[[0, 512]], [[0, 188]]]


@pytest.mark.parametrize("tokens", [1, 16, 17, 200])
def test_a_forward_is_not_held_up_for_its_length(tokens: int) -> None:
    """Another inferlet fills each wave with forwards of 16 tokens."""
    arena = Arena(max_batch_tokens=512)
    crowd, one = arena.join(queues=40, tokens=16), arena.join(tokens=tokens)
    arena.run_busy(5, [crowd])
    arena.tokens.clear()
    one.forward(1)
    crowd.keep_busy(2)
    arena.wave()
    assert arena.tokens[2] == tokens


# ---- bounds ----


Draw = st.tuples(st.booleans(), st.integers(1, 64), st.sampled_from([1, 17, 64, 63, 4]), st.sampled_from([-5, 0, 1000]))
"""Of who comes beside: whether its forwards can be split, its queues, the tokens of a forward, its priority."""


@settings(max_examples=40, deadline=None)
@given(data=st.data(), crowd=st.lists(Draw, min_size=1, max_size=8), tenants=st.booleans())
def test_a_command_of_who_has_not_used_up_its_share_goes_within_eight_waves(
    data: st.DataObject, crowd: list[tuple[bool, int, int, int]], tenants: bool
) -> None:
    """Others arrive as they like, with any number of queues, any priority and any length, and may leave and come again.
    The victim issues one command at a time, rests, and issues the next.

    It may need a wave of its own. Then it goes within seven waves more for each other one of that kind that goes
    before it: of a tenant (or inferlet) as many as make up for what it may be behind the clock, a wave and a part."""
    needed = sum(queues * tokens for _, queues, tokens, _ in crowd)
    arena = Arena(num_pages=2000, num_embeds=needed + 64)
    victim = arena.join(Standing(Tenant("victim")) if tenants else DEFAULT, tokens=data.draw(st.integers(1, 64)))
    others = []
    smallest: dict[int, int] = {}  # of the forwards that cannot be split and are not short, by tenant or inferlet
    for number, (can_be_split, queues, tokens, priority) in enumerate(crowd):
        standing = Standing(Tenant(f"other {number % 2}")) if tenants else DEFAULT
        others.append(
            Prefiller(arena, min(queues, 8), tokens, standing, priority)
            if can_be_split
            else arena.join(standing, queues, tokens, priority)
        )
        if not can_be_split and tokens > FEW:
            own = number % 2 if tenants else number
            smallest[own] = min(tokens, smallest.get(own, tokens))
    ahead = sum(-(-(WAVE + WAVE // PARTS + FEW) // tokens) for tokens in smallest.values())
    limit = LIMIT + (PATIENCE + 1) * ahead * (victim.tokens > FEW)
    busy = st.lists(st.integers(0, 3), min_size=len(crowd), max_size=len(crowd))
    for _ in range(6):
        for _ in range(data.draw(st.integers(0, 12))):  # its share of these waves covers its next command
            _play(arena, others, data.draw(busy))
        for _ in range(victim.tokens * (len(crowd) + 1) // WAVE):
            _play(arena, others, [2] * len(crowd))
        victim.forward(1)
        for waves in range(1, limit + 2):
            assert waves <= limit, "it waits too long"
            _play(arena, others, data.draw(busy))
            if not victim.waiting(1):
                break


def _play(arena: Arena, others: list[Any], deep: list[int]) -> None:
    for player, commands in zip(others, deep, strict=True):
        if commands:
            player.keep_busy(commands)
    arena.wave()


@pytest.mark.parametrize("before", [10, 40])
def test_who_has_not_fitted_for_long_does_not_go_before_all_who_come(before: int) -> None:
    """A tenant has forwards that need a wave of their own, which they get seldom, and small ones. What it did not get
    meanwhile counts for no more than a wave: else its small forwards would go first as long as it had waited."""
    arena = Arena(num_pages=2000)
    victim = arena.join(Standing(Tenant("victim")), tokens=63)
    one, other = Standing(Tenant("one")), Standing(Tenant("other"))
    crowd: list[Any] = [
        arena.join(one, 3, 63),
        arena.join(one, tokens=4),
        Prefiller(arena, 2, 64, other),
        arena.join(other),
    ]
    arena.run_busy(before, crowd)
    victim.forward(1)
    arena.run_busy(LIMIT + 7, crowd)  # one forward of the tenant may go before it
    assert not victim.waiting(1)


# ---- within an inferlet ----


def test_a_tenant_whose_weight_was_lowered_may_be_as_far_behind_as_a_new_one() -> None:
    """One service moves it by more of the clock than the others: without credit for that, it would get too little."""
    lowered, new = Tenants[CommandQueue](100), Tenants[CommandQueue](100)
    for weight in (1.0, 0.01):
        lowered.enter(Standing(Tenant("t", weight)))
    new.enter(Standing(Tenant("t", 0.01)))
    assert [one.credit for one in lowered.classes] == [one.credit for one in new.classes]
    assert lowered.classes[ServiceClass.INTERACTIVE].credit == 100 / 0.01


def test_a_guest_orders_its_own_queues() -> None:
    arena = Arena()
    player = arena.join(queues=48)
    for queue in (7, 9):
        player.inferlet.call("set_queue_priority", queue, 1)
    for _ in range(10):
        player.keep_busy(1)
        arena.wave()
    of_queue = {queue: arena.served[1, queue] for queue in player.embeds}
    assert of_queue[7] == of_queue[9] == 10
    rest = [count for queue, count in of_queue.items() if queue not in (7, 9)]
    assert max(rest) - min(rest) <= 1, "equal ones go round"


def test_a_queue_that_holds_up_an_urgent_one_goes_as_urgently() -> None:
    """The urgent queue reads what the lowest queue writes, behind 40 queues in between."""
    arena = Arena(max_batch_tokens=16)
    player = arena.join(queues=43, tokens=4)
    one = player.inferlet
    lowest, urgent, *others = player.embeds
    one.call("set_queue_priority", lowest, -5)
    one.call("set_queue_priority", urgent, 5)
    for queue in others:
        player.forward(queue)
        player.forward(queue)
    player.inferlet.call("forward", lowest, [], [player.embeds[lowest], 4], [], [player.embeds[lowest], 1])
    one.call("embed_txt", urgent, [7], [9], [player.embeds[lowest], 1])
    one.take_as_outputs(player.embeds[urgent])
    future = one.sample(player.embeds[urgent], queue=urgent)
    arena.turn(quiet=False)
    earlier = 2 * len(others) * 4 // 16  # all that was issued before has to go first
    for _ in range(earlier + 3):
        for queue in others:
            if player.waiting(queue) < 2:
                player.forward(queue)
        arena.wave()
    assert future in one.answers


# ---- what a wave costs ----


def looks(monkeypatch: pytest.MonkeyPatch) -> list[CommandQueue]:
    """The queues that are looked at from now on."""
    seen: list[CommandQueue] = []

    def spy(name: str) -> None:
        original: Callable[..., Any] = getattr(Taking, name)

        def wrapped(self: Taking, queue: CommandQueue, *arguments: Any) -> Any:
            seen.append(queue)
            return original(self, queue, *arguments)

        monkeypatch.setattr(Taking, name, wrapped)

    for name in ("prefix", "grant", "take_local"):
        spy(name)
    return seen


def test_queues_that_wait_for_memory_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(num_pages=16 + 40, page_size=4)
    holder = arena.join(tokens=1)
    holder.inferlet.call("alloc", 1, "kvpage", 40)
    arena.drain()
    _never_end(arena)
    waiting = []
    for _ in range(50):
        one = arena.open()
        one.create_queue()
        one.call("alloc", 1, "kvpage", 4)
        waiting.append(one)
    arena.turn()
    seen = looks(monkeypatch)
    for _ in range(10):
        holder.forward(1)
        arena.wave()
    assert len(seen) == 10
    assert {queue.account.owner for queue in seen} == {1}
    seen.clear()
    holder.inferlet.call("dealloc", 1, "kvpage", [0, 8])
    arena.turn()
    arena.turn()
    assert [queue.account.owner for queue in seen] == [2, 3], "as far as there is room, in their order"


def _never_end(arena: Arena) -> None:
    """Nobody is ended for lack of memory."""

    class Patient:
        def resolve(self, *_: Any) -> tuple[()]:
            return ()

    vars(vars(arena.scheduler)["_memory"])["_policy"] = Patient()


def test_queues_that_wait_for_others_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(max_batch_tokens=16, num_pages=400)
    prefill = Prefiller(arena, 1, 160)
    one = prefill.inferlet
    _, (embeds, _) = prefill.places[1]
    prefill.keep_busy(1)
    for _ in range(50):
        queue = one.create_queue()
        one.call("embed_txt", queue, [7], [9], [embeds, 1])  # what the prefill reads
    arena.turn(quiet=False)
    seen = looks(monkeypatch)
    for _ in range(9):
        arena.wave()
    assert {queue.id for queue in seen} == {1}
    arena.wave()
    arena.wave()
    assert 2 in {queue.id for queue in seen}


def test_a_wave_looks_at_what_it_takes_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena()
    players = [arena.join(queues=50) for _ in range(10)]
    for player in players:
        player.keep_busy(1)
    arena.turn(quiet=False)
    seen = looks(monkeypatch)
    arena.wave()
    assert len(seen) <= 2 * 16, "of 500 queues, 16 fill the wave"


def test_inferlets_that_have_ended_leave_nothing_behind() -> None:
    arena = Arena()
    for number in range(20):
        player = arena.join(Standing(Tenant(f"tenant {number}")), queues=3)
        player.keep_busy(30)
        arena.wave()
        arena.close(player.inferlet)
    arena.turn()
    backlog = vars(arena.scheduler)["_backlog"]
    assert not any(root.ready for root in backlog.tenants.classes)
    assert not vars(backlog.tenants)["_shares"]
    assert (backlog.parts, backlog.commands, backlog.queues, sum(backlog.ready)) == (0, 0, 0, 0)
    assert sum(len(heap) for root in backlog.tenants.classes for heap in root.heaps) <= 20


def test_an_inferlet_may_close_before_it_has_a_queue() -> None:
    arena = Arena()
    arena.turn(Opened(77, 1.0, Standing(Tenant("t"))), Closed(77))
    assert not vars(vars(arena.scheduler)["_backlog"].tenants)["_shares"]
