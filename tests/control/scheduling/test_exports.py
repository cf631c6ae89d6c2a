"""Exports between inferlets, as the scheduler keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pie_control.calls.exports.list_exports import Listing
from pie_control.calls.exports.sharing import fetched
from pie_control.calls.values import Done, Import
from pie_control.errors import NotFound, QuotaExceeded
from pie_control.resources.exports import exports
from pie_control.resources.exports.export import Export
from pie_control.resources.kinds import PAGES
from pie_control.scheduling import Reason, local, searches
from pie_control.scheduling.searches import MOST_SEARCHES
from pie_control.tenants.tenant import Standing, Tenant
from pie_inference.protocol import DropAdapter, Failure, Forward
from tests.helpers.integrity import check_scheduler
from tests.helpers.random_calls import write_adapters
from tests.helpers.scheduling import Inferlet, World, by_kind
from tests.helpers.work import lines_of


def fill(inferlet: Inferlet, tokens: range) -> None:
    """Puts tokens into its pages."""
    inferlet.embed(0, len(tokens), tokens=list(tokens))
    inferlet.forward(0, len(tokens), 63)


def next_token(inferlet: Inferlet, pages: tuple[int, int], position: int, world: World) -> int:
    """The token that follows these pages and one more token."""
    inferlet.call("embed_txt", 1, [70], [position], [inferlet.embeds, 1])
    inferlet.call("forward", 1, list(pages), [inferlet.embeds, 1], [], [inferlet.embeds + 1, 1])
    future = inferlet.sample(1)
    world.drain()
    return inferlet.token(future)


def imported(inferlet: Inferlet, future: int) -> tuple[int, int]:
    answer = inferlet.answers[future]
    assert isinstance(answer, Import), answer
    return fetched(inferlet.space, future)


def tenant(name: str, **bounds: Any) -> Standing:
    return Standing(Tenant(name, **bounds))


def used(world: World) -> int:
    return world.scheduler.statistics().pages.used


def test_an_import_reads_what_was_exported_by_an_inferlet_that_is_gone() -> None:
    world = World()
    maker = world.open(3, 64)
    fill(maker, range(65, 74))
    exported = maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    world.drain()
    assert maker.answers[exported] == Done()
    alone = next_token(maker, (maker.pages, 3), 9, world)
    world.close(maker)
    world.drain()
    assert used(world) == 3
    other = world.open(1, 64)
    future = other.call("import_kvpage", 1, "prefix")
    world.drain()
    pages = imported(other, future)
    assert other.held(PAGES) == 4
    assert next_token(other, pages, 9, world) == alone
    other.call("dealloc", 1, "kvpage", list(pages))
    world.drain()
    assert used(world) == 4
    again = other.call("import_kvpage", 1, "prefix")
    gone = other.call("unexport_kvpage", 1, "prefix")
    missing = other.call("import_kvpage", 1, "prefix")
    world.drain()
    assert next_token(other, imported(other, again), 9, world) == alone
    assert other.answers[gone] == Done()
    assert isinstance(other.answers[missing], NotFound)
    assert "there is no export 'prefix' of this tenant" in str(other.answers[missing])
    world.close(other)
    world.drain()
    assert used(world) == 0


def test_an_import_waits_for_an_export_that_was_announced_and_for_its_writes() -> None:
    world = World(max_batch_tokens=4)
    maker, other = world.open(3, 64), world.open(1, 8)
    world.drain()
    fill(maker, range(65, 74))
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    future = other.call("import_kvpage", 1, "prefix")
    waves = 0
    while future not in other.answers:
        assert world.sent or world.turn().waves
        world.answer()
        waves += 1
    assert waves == 3, "nine tokens take three waves"
    pages = imported(other, future)
    assert next_token(other, pages, 9, world) == next_token(maker, (maker.pages, 3), 9, world)


@pytest.mark.parametrize("gone", [False, True])
def test_who_has_waited_for_a_large_export_gets_it_in_turns(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,200 imports of 4,096 pages took a turn of 1.5 s, and 5 s to encode 300 MB. `gone`: it is taken back meanwhile,
    and who waits gets it all the same."""
    monkeypatch.setattr(local, "PAGES_OF_A_SEARCH", 1)
    world = World(max_batch_tokens=16)
    maker, others = world.open(11, 64), [world.open(1, 64) for _ in range(14)]
    world.drain()
    fill(maker, range(65, 81))
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 11], "")
    futures = [other.call("import_kvpage", 1, "prefix") for other in others]
    assert world.turn().waves
    turns = [world.answer()]
    world.close(others[-1])
    if gone:
        others[0].call("unexport_kvpage", 1, "prefix")
    while turns[-1].deadline == world.now:
        turns.append(world.turn(quiet=False))
    assert [sum(isinstance(one.value, Import) for one in turn.completions) for turn in turns] == [6, 6, 1]
    alone = next_token(maker, (maker.pages, 11), 16, world)
    for other, future in zip(others[:-1], futures, strict=False):
        assert next_token(other, imported(other, future), 16, world) == alone
    for inferlet in (maker, *others):
        world.close(inferlet)
    world.drain()
    assert used(world) == (0 if gone else 11)


def test_without_an_export_an_import_is_answered_at_once() -> None:
    world = World()
    other = world.open(1, 8)
    world.drain()
    future = other.call("import_kvpage", 1, "nothing")
    assert world.turn().waves == ()
    assert isinstance(other.answers[future], NotFound)
    unexport = other.call("unexport_kvpage", 1, "nothing")
    world.turn()
    assert isinstance(other.answers[unexport], NotFound)
    assert other.space.imports == {}


def test_a_maker_that_ends_before_its_turn_has_exported_nothing() -> None:
    world = World(max_batch_tokens=4)
    maker, other = world.open(3, 64), world.open(1, 8)
    world.drain()
    fill(maker, range(65, 74))
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    future = other.call("import_kvpage", 1, "prefix")
    world.turn()
    assert future not in other.answers
    world.close(maker)
    world.drain()
    assert isinstance(other.answers[future], NotFound)
    assert used(world) == 1


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_an_export_whose_writes_failed_does_not_stand(closed: bool, told: bool) -> None:
    """`told`: by a call that gives something, too."""
    world = World()
    maker, other = world.open(3, 64), world.open(1, 8)
    world.drain()
    if told:
        pages = [maker.pages, 3]
        step = [maker.embeds, 9], pages, pages, maker.embeds + 63
        maker.call("forward_with_dist", 1, list(range(65, 74)), list(range(9)), *step, 3, 1.0)
    else:
        fill(maker, range(65, 74))
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    future = other.call("import_kvpage", 1, "prefix")
    wave = world.send()
    if closed:
        world.close(maker)
        world.turn()
    done = world.run()
    assert wave is not None
    place = list(by_kind(wave)).index(Forward)
    failed = type(done)(done.wave, done.results, done.seconds, (Failure(place, 0, "out of memory"),))
    endings = world.turn(failed).endings
    assert [ending.reason for ending in endings] == ([] if closed else [Reason.FAILED])
    assert isinstance(other.answers[future], NotFound)
    world.drain()
    assert used(world) == 1


def test_tenants_do_not_see_each_other() -> None:
    world = World()
    maker, other = world.open(3, 64, tenant("one")), world.open(1, 8, tenant("two"))
    fill(maker, range(65, 74))
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    world.drain()
    futures = [other.call("import_kvpage", 1, "prefix"), other.call("unexport_kvpage", 1, "prefix")]
    listed = [one.call("list_exports", 1, "pre") for one in (maker, other)]
    nothing = maker.call("list_exports", 1, "x")
    world.drain()
    assert all(isinstance(other.answers[future], NotFound) for future in futures)
    assert other.answers[listed[1]] == maker.answers[nothing] == Listing("[]")
    [about] = json.loads(maker.answers[listed[0]][0])  # type: ignore[index]
    assert about == {"name": "prefix", "pages": 3, "tokens": 9}


def test_a_name_that_is_taken_goes_to_the_newer_export() -> None:
    world = World()
    maker, other = world.open(3, 64), world.open(1, 64)
    fill(maker, range(65, 69))
    maker.call("export_kvpage", 1, "name", [maker.pages, 1], "")
    world.drain()
    older = other.call("import_kvpage", 1, "name")
    world.drain()
    fill(maker, range(70, 74))
    maker.call("export_kvpage", 1, "name", [maker.pages + 1, 1], "")
    world.drain()
    newer = other.call("import_kvpage", 1, "name")
    world.drain()
    tokens = [next_token(other, imported(other, future), 9, world) for future in (older, newer)]
    assert tokens[0] == next_token(maker, (maker.pages, 1), 9, world) != tokens[1]
    for one in (maker, other):
        world.close(one)
    world.drain()
    assert used(world) == 1


# ---- bounds ----


def test_a_turn_answers_some_searches_and_the_next_one_comes_at_once() -> None:
    world = World()
    flood, other = world.open(1, 64), world.open(1, 64)
    fill(flood, range(65, 69))
    flood.call("export_kvpage", 1, "name", [flood.pages, 1], "")
    world.drain()
    wanted = [flood.call("list_exports", 1, "") for _ in range(2 * MOST_SEARCHES + 1)]
    flood.call("export_kvpage", 1, "behind", [flood.pages, 1], "")
    step, listed = other.step(0), other.call("list_exports", 1, "")
    turn = world.turn()
    assert turn.waves, "others go"
    answered = [turn.completions]
    while turn.deadline == world.now:
        turn = world.turn(quiet=False)
        answered.append(turn.completions)
    assert [len(completions) for completions in answered] == [MOST_SEARCHES, MOST_SEARCHES, 2]
    assert listed in [one.future for one in answered[1] if one.owner == other.owner], "each has its turn"
    world.drain()
    assert step in other.answers
    assert flood.answers[wanted[-1]] == Listing('[{"name":"name","pages":1,"tokens":4}]')
    for number in range(2 * MOST_SEARCHES):
        flood.call("export_kvpage", 1, f"last-{number}", [flood.pages, 1], "")
    world.close(flood)
    world.drain()
    assert world.scheduler.statistics().exports == 2 + MOST_SEARCHES, "an inferlet that ends searches no more either"


@pytest.mark.parametrize("asked", [("list_exports", 1, ""), ("pin_exports", 1, "name-3", "", "", 60)])
def test_who_looks_at_many_exports_has_few_such_looks_in_a_turn(
    asked: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 4,000 exports, 64 pins took a turn of 0.22 s, and 64 lists 0.12 s, again and again."""
    monkeypatch.setattr(exports, "PAGES_OF_A_SEARCH", 1)
    world = World()
    maker = world.open(1, 64)
    fill(maker, range(65, 69))
    for number in range(8):
        maker.call("export_kvpage", 1, f"name-{number}", [maker.pages, 1], "")
        world.drain()
        maker.call("pin_exports", 1, f"name-{number}", "", "", 60)
    world.drain()
    for _ in range(10):
        maker.call(*asked)
    turns = [world.turn()]
    while turns[-1].deadline == world.now:
        turns.append(world.turn(quiet=False))
    assert [len(turn.completions) for turn in turns] == [4, 4, 2]


def test_searches_that_wait_cost_a_turn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty thousand queues, of a few hundred inferlets, held up each wave for a quarter of a second, for minutes."""
    monkeypatch.setattr(searches, "MOST_SEARCHES", 4)

    def work(queues: int) -> int:
        world = World()
        for _ in range(8):
            flood = world.open()
            for _ in range(queues):
                flood.call("list_exports", flood.create_queue(), "")
        world.turn()
        return lines_of(lambda: world.scheduler.turn(0.0, ()))

    assert work(10) == work(40)


def test_a_tenant_has_room_for_new_exports_at_the_cost_of_its_least_valuable_ones() -> None:
    world = World()
    maker, stranger = world.open(8, 64, tenant("one", max_pages=5)), world.open(2, 64, tenant("two"))
    fill(stranger, range(65, 73))
    stranger.call("export_kvpage", 1, "theirs", [stranger.pages, 2], "")
    fill(maker, range(65, 97))
    for number, page in enumerate(range(0, 4, 2)):
        maker.call("export_kvpage", 1, str(number), [maker.pages + page, 2], "")
        world.drain()
        world.now += 1
    maker.call("import_kvpage", 1, "0")  # it was used last
    world.drain()
    maker.call("export_kvpage", 1, "2", [maker.pages + 4, 2], "")
    too_much = maker.call("export_kvpage", 1, "3", [maker.pages, 6], "")
    world.drain()
    assert isinstance(maker.answers[too_much], QuotaExceeded)
    assert "export '3' has 6 pages, all exports of tenant one may have 5" in str(maker.answers[too_much])
    listed = maker.call("list_exports", 1, "")
    world.drain()
    assert {one["name"] for one in json.loads(maker.answers[listed][0])} == {"0", "2"}  # type: ignore[index]
    assert world.scheduler.statistics().exports == 3


def test_all_exports_of_a_tenant_make_room_for_a_large_one() -> None:
    world = World()
    maker = world.open(6, 64, tenant("one", max_pages=5))
    fill(maker, range(65, 89))
    for name in "abab":
        maker.call("export_kvpage", 1, name, [maker.pages + 3 * (name == "b"), 3], "")
        world.drain()
        assert world.scheduler.statistics().exports == 1
        check_scheduler(world.scheduler)
    maker.call("unexport_kvpage", 1, "b")
    world.drain()
    check_scheduler(world.scheduler)
    assert world.scheduler.statistics().exports == 0


def test_a_tenant_has_a_bounded_number_of_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MOST_EXPORTS", 3)
    world = World()
    maker = world.open(1, 64)
    fill(maker, range(65, 69))
    looked_at, value = [], Export.value

    def counted(export: Export, now: float) -> tuple[bool, float, int]:
        looked_at.append(export.name)
        return value(export, now)

    monkeypatch.setattr(Export, "value", counted)
    for name in "abcde":
        maker.call("export_kvpage", 1, name, [maker.pages, 1], "")
        world.drain()
        world.now += 1
    assert looked_at == ["a", "b", "c", "b", "c", "d"], "only where one must make room"
    listed = maker.call("list_exports", 1, "")
    world.drain()
    assert [one["name"] for one in json.loads(maker.answers[listed][0])] == ["e", "d", "c"]  # type: ignore[index]


# ---- pressure ----


def test_exports_that_nobody_uses_go_before_anybody_is_ended() -> None:
    world = World(num_pages=16 + 12)
    maker = world.open(4, 64)
    fill(maker, range(65, 81))
    for number in range(2):
        maker.call("export_kvpage", 1, str(number), [maker.pages + 2 * number, 2], "")
    world.drain()
    reader = world.open(0, 8)
    reader.call("import_kvpage", 1, "1")
    world.drain()
    world.close(maker)
    world.drain()
    young = world.open(9, 8)
    world.drain()
    assert young.space.waiting == 0, "it has its pages"
    assert not reader.ending
    assert not young.ending
    lost, kept = (reader.call("import_kvpage", 1, name) for name in "01")
    world.drain()
    assert isinstance(reader.answers[lost], NotFound)
    assert isinstance(reader.answers[kept], Import)
    assert world.scheduler.statistics().evictions == 0


def test_pages_that_an_older_one_shares_do_not_come_back_when_a_younger_one_ends() -> None:
    world = World(num_pages=16 + 8)
    old = world.open(4, 64)
    fill(old, range(65, 81))
    old.call("export_kvpage", 1, "all", [old.pages, 4], "")
    world.drain()
    sharing = world.open(1, 8)
    sharing.call("import_kvpage", 1, "all")
    young = world.open(3, 8)
    world.drain()
    assert used(world) == 8
    old.call("alloc", 1, "kvpage", 3)
    world.drain()
    assert young.ending is not None
    assert sharing.ending is None, "it holds one page of its own only"


def test_a_shared_page_comes_back_when_its_last_holder_ends() -> None:
    world = World(num_pages=16 + 8)
    first = world.open(4, 64)
    fill(first, range(65, 81))
    first.call("export_kvpage", 1, "all", [first.pages, 4], "")
    world.drain()
    second = world.open(0, 8)
    second.call("import_kvpage", 1, "all")
    world.drain()
    world.close(first)
    second.call("unexport_kvpage", 1, "all")
    world.drain()
    assert used(world) == 4
    world.close(second)
    world.drain()
    assert used(world) == 0


def test_what_an_import_says_crosses() -> None:
    world = World()
    maker = world.open(1, 64)
    fill(maker, range(65, 68))
    maker.call("mask_kvpage", 1, [maker.pages, 1], [1, 1])
    maker.call("export_kvpage", 1, "a", [maker.pages, 1], "QQAAAEIAAABDAAAA")
    future = maker.call("import_kvpage", 1, "a")
    world.drain()
    answer = maker.answers[future]
    assert isinstance(answer, Import)
    np.testing.assert_array_equal(answer.tokens, [65, 66, 67])
    np.testing.assert_array_equal(answer.positions[:3] >= 0, [True, False, True])


# ---- adapters ----


def export_with(inferlet: Inferlet, adapter: str, name: str) -> int:
    """Fills its pages with an adapter, or with none, and exports them."""
    inferlet.embed(0, 9, tokens=list(range(65, 74)))
    if adapter:
        pages = [inferlet.pages, 3]
        inferlet.call("forward_with_adapter", 1, adapter, pages, [inferlet.embeds, 9], pages, [])
    else:
        inferlet.forward(0, 9, 63)
    future: int = inferlet.call("export_kvpage", 1, name, [inferlet.pages, 3], "")
    return future


def names(inferlet: Inferlet, world: World) -> set[str]:
    future = inferlet.call("list_exports", 1, "")
    world.drain()
    listing = inferlet.answers[future]
    assert isinstance(listing, Listing)
    return {one["name"] for one in json.loads(listing.text)}


def test_a_dropped_adapter_takes_only_what_was_exported_with_it(tmp_path: Path) -> None:
    world = World()
    world.load_adapters(write_adapters(tmp_path))
    for adapter in ("", "formal", "short"):
        export_with(world.open(3, 64), adapter, f"of {adapter}")
    reader = world.open(8, 64)
    importing = reader.call("import_kvpage", 1, "of formal")
    world.drain()
    imported(reader, importing)
    reader.call("export_kvpage", 1, "again", [reader.pages, 1], "")
    assert names(reader, world) == {"of ", "of formal", "of short", "again"}
    before = used(world)
    world.turn(DropAdapter(world.adapters["formal"]))
    assert names(reader, world) == {"of ", "of short"}, "nor is there what depends on an import with it"
    assert used(world) == before, "their makers and who has imported them keep their pages"
    missing = reader.call("import_kvpage", 1, "of formal")
    world.drain()
    assert isinstance(reader.answers[missing], NotFound)


@pytest.mark.parametrize("held", [False, True])
def test_what_is_exported_with_an_adapter_that_is_dropped_meanwhile_never_stands(tmp_path: Path, held: bool) -> None:
    """Whether its command has had its turn by then, or comes later still."""
    world = World()
    world.load_adapters(write_adapters(tmp_path))
    maker, reader = world.open(3, 64), world.open(3, 64)
    if held:
        exported = export_with(maker, "formal", "late")
        importing = reader.call("import_kvpage", 1, "late")
        world.turn()
        world.turn(DropAdapter(world.adapters["formal"]))
    else:
        maker.embed(0, 9, tokens=list(range(65, 74)))
        maker.call("forward_with_adapter", 1, "formal", [maker.pages, 3], [maker.embeds, 9], [maker.pages, 3], [])
        world.drain()
        world.turn(DropAdapter(world.adapters["formal"]))
        exported = maker.call("export_kvpage", 1, "late", [maker.pages, 3], "")
        importing = reader.call("import_kvpage", 1, "late")
    world.drain()
    assert maker.answers[exported] == Done()
    assert isinstance(reader.answers[importing], NotFound)
    assert names(reader, world) == set()
    for one in (maker, reader):
        world.close(one)
    world.drain()
    assert used(world) == 0


def test_an_export_that_waits_for_nothing_stands_though_its_maker_ends_at_once() -> None:
    world = World()
    maker, other = world.open(3, 64), world.open(1, 8)
    fill(maker, range(65, 74))
    world.drain()
    maker.call("export_kvpage", 1, "prefix", [maker.pages, 3], "")
    maker.call("dealloc", 1, "kvpage", [maker.pages, 3])
    world.close(maker)
    world.drain()
    future = other.call("import_kvpage", 1, "prefix")
    world.drain()
    assert imported(other, future)
    assert used(world) == 4
    check_scheduler(world.scheduler)


def test_what_is_pinned_stays_when_memory_is_short_until_its_time_is_over() -> None:
    world = World(num_pages=56)  # 16 of them are scratch
    maker = world.open(12, 64)
    fill(maker, range(65, 113))
    for place, name in enumerate("abc"):
        maker.call("export_kvpage", 1, name, [maker.pages + 4 * place, 4], "")
    world.drain()
    pins = [maker.call("pin_exports", 1, name, "", "", 60) for name in "abc"]
    missing = maker.call("pin_exports", 1, "d", "", "", 60)
    world.drain()
    assert [json.loads(maker.answers[one][0])["pages"] for one in pins] == [4, 4, 0]  # type: ignore[index]
    assert isinstance(maker.answers[missing], NotFound)
    world.close(maker)
    world.drain()
    others = [world.open(16, 8), world.open(16, 8)]
    world.drain()
    assert world.scheduler.statistics().exports == 2
    for other in others:
        world.close(other)
    world.drain()
    world.now += 61
    world.open(36, 8)
    world.drain()
    assert world.scheduler.statistics().exports < 2
    check_scheduler(world.scheduler)


TOLD = {"a": "QQAAAA==", "b": "QgAAAA=="}
"""What the two pages of a program hold."""


@settings(max_examples=120, deadline=None)
@given(st.text("aabb-??fs.,", max_size=12))
@example("a-b?")
@example("ab-?")
@example("a.,-b?")
@example("a?-?")
@example(".,,f.as.")
def test_a_name_means_what_the_commands_before_in_the_queue_say(script: str) -> None:
    """`a` and `b` export a page, `-` takes the name back, `?` imports it, `f` is a forward of another queue, `s`
    synchronizes, `.` and `,` are turns."""
    world = World()
    inferlet = world.open(2, 64)
    other = inferlet.create_queue()
    for place in range(2):
        inferlet.embed(0, 1, tokens=[65 + place])
        inferlet.call("forward", 1, [], [inferlet.embeds, 1], [inferlet.pages + place, 1], [])
    current, wanted, syncs = "", dict[int, str](), list[int]()
    for step in script:
        if step in TOLD:
            inferlet.call("export_kvpage", 1, "name", [inferlet.pages + "ab".index(step), 1], TOLD[step])
            current = step
        elif step == "-":
            wanted[inferlet.call("unexport_kvpage", 1, "name")] = current
            current = ""
        elif step == "?":
            wanted[inferlet.call("import_kvpage", 1, "name")] = current
        elif step == "f":
            inferlet.call("forward", other, [], [inferlet.embeds, 1], [], [])
        elif step == "s":
            syncs.append(inferlet.call("synchronize", 1))
        else:
            world.turn() if step == "." or not world.sent else world.answer()
            for sync in syncs:
                assert sync not in inferlet.answers or inferlet.answers.keys() >= set(range(1, sync)), script
    world.drain()
    for future, name in wanted.items():
        match inferlet.answers[future]:
            case NotFound():
                found = ""
            case Import(tokens=tokens):
                found = chr(tokens[0] + 32)
            case _:
                found = name or "something"  # it was taken back
        assert found == name, f"{script}: {found!r}, not {name!r}"
    world.close(inferlet)
    world.drain()
    assert used(world) == bool(current)
