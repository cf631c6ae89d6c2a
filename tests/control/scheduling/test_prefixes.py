"""Beginnings of texts that inferlets share, as the scheduler keeps them."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from pie_control.calls.exports.sharing import Fetch, fetched, keys_of
from pie_control.calls.values import Import
from pie_control.errors import NotFound
from pie_control.resources.exports import text_keys
from pie_control.resources.exports.export import Export
from pie_control.resources.exports.exports import Exports
from pie_control.resources.holdings import Block
from pie_control.resources.kinds import PAGES
from pie_control.resources.pool import Pool
from pie_control.scheduling import searches
from pie_control.scheduling.local import MOST_WAITS
from pie_control.tenants.budgets import Budget
from pie_control.tenants.tenant import DEFAULT_STANDING, ServiceClass, Standing, Tenant
from pie_inference.protocol import DropAdapter, Failure, Forward
from tests.control.scheduling.test_exports import fill, next_token, tenant, used
from tests.helpers.integrity import check_exports, check_pool, check_scheduler, held_by
from tests.helpers.scheduling import Inferlet, World, by_kind

SIZE = 4
"""Tokens of a page."""
TEXT = tuple(range(65, 81))


def packed(tokens: Sequence[int]) -> str:
    return b64encode(array("I", tokens)).decode()


def offer(inferlet: Inferlet, pages: int, text: Sequence[int] = TEXT, apart: str = "") -> int:
    return int(inferlet.call("export_prefix", 1, [inferlet.pages, pages], packed(text[: pages * SIZE]), apart))


def ask(inferlet: Inferlet, text: Sequence[int] = TEXT, apart: str = "") -> int:
    return int(inferlet.call("import_prefix", 1, packed(text), apart))


def found(inferlet: Inferlet, future: int) -> tuple[int, int]:
    """First address and number of pages."""
    assert isinstance(inferlet.answers[future], Import)
    return fetched(inferlet.space, future)


def count(inferlet: Inferlet, future: int) -> int:
    return found(inferlet, future)[1]


def test_the_longest_beginning_is_found_whoever_has_made_its_pages() -> None:
    world = World()
    first, second = world.open(2, 64), world.open(4, 64)
    fill(first, range(65, 73))
    fill(second, range(65, 81))
    offer(first, 2)
    world.drain()
    offer(second, 4)
    world.drain()
    alone = next_token(second, (second.pages, 4), 16, world)
    assert used(world) == 6
    for one in (first, second):
        world.close(one)
    world.drain()
    assert used(world) == 4, "what was there is not kept twice"
    reader = world.open(0, 64)
    longest, shorter, other = ask(reader), ask(reader, (*TEXT[:13], 1, 2, 3)), ask(reader, TEXT[1:])
    world.drain()
    assert next_token(reader, found(reader, longest), 16, world) == alone
    assert (count(reader, shorter), count(reader, other)) == (3, 0)
    assert reader.held(PAGES) == 7


def test_who_keeps_apart_finds_nothing_of_others() -> None:
    world = World()
    maker, stranger = world.open(4, 64, tenant("one")), world.open(0, 64, tenant("two"))
    fill(maker, range(65, 81))
    offer(maker, 4, apart="mine")
    offer(maker, 2)
    world.drain()
    futures = [ask(maker, apart="mine"), ask(maker), ask(maker, apart="yours")]
    theirs = ask(stranger, apart="mine")
    world.drain()
    assert [count(maker, future) for future in futures] == [4, 2, 0]
    assert count(stranger, theirs) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_beginning_that_is_being_written_is_waited_for(fails: bool) -> None:
    world = World()
    maker, longer, reader = world.open(2, 64), world.open(4, 64), world.open(0, 8)
    fill(maker, range(65, 73))
    offer(maker, 2)
    world.drain()
    fill(longer, range(65, 81))
    offer(longer, 4)
    wave = world.send()
    future = ask(reader)
    world.turn()
    assert future not in reader.answers
    done = world.run()
    if fails:
        assert wave is not None
        place = list(by_kind(wave)).index(Forward)
        done = type(done)(done.wave, done.results, done.seconds, (Failure(place, 0, "out of memory"),))
    world.turn(done)
    assert count(reader, future) == (2 if fails else 4)
    world.drain()


@pytest.mark.parametrize(("most", "waves"), [(64, 1), (4, 4)])
def test_an_offer_does_not_hold_up_what_is_behind_it_in_its_queue(most: int, waves: int) -> None:
    world = World(max_batch_tokens=most)
    maker, reader = world.open(4, 64), world.open(0, 64)
    world.drain()
    fill(maker, range(65, 81))
    offer(maker, 4)
    first = maker.sample(63)
    assert len(world.drain()) == waves
    future = ask(reader)
    world.drain()
    assert first in maker.answers
    assert count(reader, future) == 4


def test_who_waits_for_a_beginning_that_another_one_has_made_meanwhile_gets_that() -> None:
    world = World()
    first, second, reader = world.open(5, 64), world.open(4, 64), world.open(0, 64)
    world.drain()
    fill(first, range(65, 81))
    first.call("copy_kvpage", 1, [first.pages * SIZE, 1], [(first.pages + 4) * SIZE, 1])  # takes a wave more
    offer(first, 4)
    future = ask(reader)
    fill(second, range(65, 81))
    offered = offer(second, 4)
    world.drain()
    assert offered in second.answers
    alone = next_token(second, (second.pages, 4), 16, world)
    assert next_token(reader, found(reader, future), 16, world) == alone


def test_what_is_behind_goes_first_when_there_is_no_room() -> None:
    world = World()
    maker = world.open(8, 64, tenant("one", max_pages=5))
    fill(maker, range(65, 97))
    text = tuple(range(65, 97))
    for pages in (2, 3, 5):
        offer(maker, pages, text)
        world.drain()
    maker.call("export_kvpage", 1, "named", [maker.pages, 2], "")
    world.drain()
    future = ask(maker, text)
    world.drain()
    assert count(maker, future) == 3


@pytest.mark.parametrize("seed", range(8))
def test_random_offers_give_the_pages_of_the_text_and_lose_none(seed: int) -> None:
    random, pool = Random(seed), Pool(200)
    exports, holds = Exports(pool, Pool(0), 0), dict[int, tuple[int, ...]]()
    tenants = Tenant("one", max_pages=40), Tenant("two")
    coming: list[tuple[Export, tuple[int, ...]]] = []

    def release(block: Block) -> None:
        pool.release(block.pages, None)

    for step in range(400):
        text = tuple(random.randint(1, 2) for _ in range(SIZE * random.randint(1, 6)))
        owner, asked = random.choice(tenants), keys_of(np.array(text, np.int32), SIZE, "")
        there = exports.beginning(Standing(owner), asked)
        there_pages = there.block.pages
        assert [holds[page] for page in there_pages] == [text[: SIZE * (n + 1)] for n in range(len(there_pages))]
        match random.randrange(6):
            case 0 | 1 if pool.free >= 60:
                export = Export(Standing(owner), "", 1, step, keys=asked.pages)
                exports.announce(export)
                coming.append((export, text))
            case 2 | 3 if coming:
                export, text = coming.pop(random.randrange(len(coming)))
                pages = pool.take(len(export.keys))
                holds.update((page, text[: SIZE * (n + 1)]) for n, page in enumerate(pages))
                exports.hold(export, Block(pages))
                release(Block(pages))
                export.fill(np.arange(len(text), dtype=np.int32), np.zeros(0, np.int32), step)
                for freed in exports.stand(export) if random.random() < 0.9 else [exports.fail(export)]:
                    release(freed)
            case 4:
                for export in there.exports:
                    export.use(step)
            case 5 if random.random() < 0.3:
                for freed in exports.shed(PAGES, random.randint(1, 12), step):
                    release(freed)
        check_exports(exports)
        check_pool(pool)
        held = [page for block in held_by(exports) for page in block.pages]
        assert len(held) == len(set(held)) == sum(pool.all_references())
    assert len(exports)


LONG = tuple(range(65, 65 + 60))
"""Fifteen pages."""


def begin_text(world: World, text: Sequence[int], pages: int) -> Inferlet:
    """An inferlet that runs a text, and offers so many pages of it when that is done."""
    inferlet = world.open(pages, 64)
    fill(inferlet, range(text[0], text[-1] + 1))
    offer(inferlet, pages, text)
    return inferlet


def test_an_import_waits_for_a_few_exports_one_after_the_other() -> None:
    world, text = World(max_batch_tokens=SIZE), range(65, 65 + 8 * SIZE)
    maker, reader = world.open(8, 64), world.open(0, 8)
    for page in range(8):
        maker.embed(page * SIZE, SIZE, tokens=text[page * SIZE : (page + 1) * SIZE])
        maker.forward(0, SIZE)
        offer(maker, page + 1, text)
    wanted = ask(reader, text)
    world.drain()
    assert count(reader, wanted) == MOST_WAITS


def test_a_long_text_counts_as_several_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 texts of 8,192 pages each, in one turn, held up all others for a sixth of a second."""
    monkeypatch.setattr(text_keys, "PAGES_OF_A_SEARCH", 1)
    world = World()
    reader = world.open(0, 8)
    text = packed([1] * (31 * 4))
    asked = [reader.call("import_prefix", 1, text, "") for _ in range(3)]
    asked += [reader.call("pin_exports", 1, "", text, "", 60) for _ in range(3)]
    answered = [world.turn().completions]
    while len(reader.answers) < len(asked):
        answered.append(world.turn(quiet=False).completions)
    assert [len(completions) for completions in answered] == [2, 2, 2]


def test_who_has_waited_for_a_long_text_looks_it_up_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_keys, "PAGES_OF_A_SEARCH", 1)
    monkeypatch.setattr(searches, "MOST_SEARCHES", 10)
    world = World(max_batch_tokens=16)
    maker = world.open(4, 64)
    fill(maker, range(65, 81))
    offer(maker, 4)
    readers = [world.open(0, 8) for _ in range(4)]
    asked = [ask(reader) for reader in readers]
    world.turn()
    while world.turn().deadline == world.now:
        pass
    assert not any(reader.answers for reader in readers), "they wait"
    assert readers[0].cancel_import(asked[0])
    turns = [world.answer()]
    while turns[-1].deadline == world.now:
        turns.append(world.turn(quiet=False))
    assert [sum(one.owner != maker.owner for one in turn.completions) for turn in turns] == [2, 1]
    assert [count(reader, future) for reader, future in zip(readers[1:], asked[1:], strict=True)] == [4] * 3


@pytest.mark.parametrize("name", ["", "rules"])
def test_nobody_waits_for_what_one_of_a_lower_class_has_announced(name: str) -> None:
    """It may wait for memory that the other one holds."""
    world, standing = World(num_pages=34), Standing(Tenant("t"))
    one = world.open(16, 64, standing)
    world.drain()
    jobs = [world.open(4, 64, Standing(Tenant("t"), ServiceClass.BATCH)) for _ in range(2)]
    for job in jobs:
        fill(job, range(65, 81))
    if name:
        jobs[0].call("export_kvpage", 1, name, [jobs[0].pages, 4], "")
    else:
        offer(jobs[0], 4)
    world.turn()
    asked = [inferlet.call("import_kvpage", 1, name) if name else ask(inferlet) for inferlet in (one, jobs[1])]
    world.finish()
    if name:
        assert isinstance(one.answers[asked[0]], NotFound)
    else:
        assert count(one, asked[0]) == 0
    assert asked[1] not in jobs[1].answers, "batch jobs wait for each other"
    world.close(one)
    world.finish()
    assert count(jobs[1], asked[1]) == 4


def test_who_shares_little_of_a_long_text_does_not_wait_for_all_of_it() -> None:
    world = World(max_batch_tokens=16)
    begin_text(world, LONG, 15)
    assert world.turn().waves
    short, same, half = world.open(0, 8), world.open(0, 8), world.open(0, 8)
    futures = ask(short, (*LONG[:16], *[1] * 8)), ask(same, LONG), ask(half, (*LONG[:32], *[1] * 8))
    commands = [event for event in world.events if isinstance(event, Fetch)]
    world.turn()
    kept = [world.scheduler.kept_pages(DEFAULT_STANDING, command) for command in commands]
    assert kept == [0, 15, 8], "who would not wait is placed elsewhere"
    assert count(short, futures[0]) == 0
    assert not same.answers
    assert not half.answers
    world.drain()
    assert (count(same, futures[1]), count(half, futures[2])) == (15, 8)


def test_others_wait_for_the_shorter_of_two_texts_that_begin_alike() -> None:
    world = World(max_batch_tokens=16)
    begin_text(world, LONG, 15)
    assert world.turn().waves
    short, reader = world.open(4, 64), world.open(0, 8)
    fill(short, range(65, 81))
    offered = offer(short, 4, LONG)
    future = ask(reader, (*LONG[:16], *[1] * 8))
    world.turn()
    assert not reader.answers
    while offered not in short.answers:
        world.answer()
        world.turn()
    assert world.scheduler.statistics().exports == 1, "the long one goes on"
    assert count(reader, future) == 4
    world.drain()


@pytest.mark.parametrize("late", [False, True])
def test_nobody_waits_for_a_text_of_one_that_waits_for_its_budget(late: bool) -> None:
    world = World(max_batch_tokens=16)
    world.meters.use_key("spent", Budget(tokens_per_minute=6))
    spent = Standing(Tenant("one"), key="spent")
    maker, reader = world.open(4, 64, spent), world.open(0, 8, tenant("one"))
    world.drain()
    for begin in (0, 8):
        maker.embed(begin, 8, tokens=TEXT[begin : begin + 8])
        maker.forward(0, 8)
    offer(maker, 4)
    future = 0 if late else ask(reader)
    world.drain()
    assert world.scheduler.statistics().queues_held
    future = future or ask(reader)
    world.drain()
    assert count(reader, future) == 0
    world.finish()
    again = ask(reader)
    world.drain()
    assert count(reader, again) == 4


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_an_import_that_nobody_wants_leaves_nothing(reached: bool, ends: bool) -> None:
    world = World()
    maker, reader = world.open(4, 64), world.open(0, 8)
    fill(maker, range(65, 81))
    offer(maker, 4)
    maker.call("export_kvpage", 1, "named", [maker.pages, 4], "")
    assert world.send() is not None
    futures = [ask(reader), int(reader.call("import_kvpage", 1, "named"))]
    if reached:
        world.turn()
    if ends:
        world.close(reader)
    else:
        assert all(map(reader.cancel_import, futures))
    world.turn()
    assert not vars(vars(world.scheduler)["_local"])["_waiting"]
    world.drain()
    assert not reader.answers
    assert used(world) == 4
    assert not vars(reader.space)["_watchers"] or ends


def test_an_import_that_is_cancelled_as_it_arrives_is_given_back() -> None:
    world = World()
    maker, reader = world.open(4, 64), world.open(0, 8)
    fill(maker, range(65, 81))
    offer(maker, 4)
    world.drain()
    world.lateness = lambda: 1
    future = ask(reader)
    world.turn()
    assert reader.cancel_import(future)
    world.turn()
    world.lateness = lambda: 0
    world.drain()
    world.close(maker)
    world.drain()
    assert (used(world), reader.held(PAGES)) == (4, 0)
    check_scheduler(world.scheduler)


@pytest.mark.parametrize("held", [False, True])
def test_keys_of_an_adapter_that_was_dropped_never_stand(held: bool) -> None:
    world = World(max_batch_tokens=8)
    world.meters.use_key("spent", Budget(tokens_per_minute=6))
    spent = Standing(Tenant("one"), key="spent" if held else "")
    makers = [world.open(4, 64, spent) for _ in range(1 if held else 2)]
    world.drain()
    for maker in makers:
        maker.space.adapters_used.add(7)
        for begin in (0, 8):
            maker.embed(begin, 8, tokens=TEXT[begin : begin + 8])
            maker.forward(0, 8)
        offer(maker, 4)
    world.turn()
    world.turn(DropAdapter(7))
    world.finish()
    assert world.scheduler.statistics().exports == 0
