"""Contexts that drop tokens, or are joined from parts: what the model sees is exactly what it should see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet_sdk import Context, IgnoreStopTokens, InvalidArgument, InvalidState
from inferlet_sdk.event_loop import run
from inferlet_sdk.sequences.page_table import PAGES_AHEAD, Page, PageTable
from tests.helpers.native_host import NativeHost, install, nothing_held

Pairs = tuple[tuple[int, int], ...]


def watched(**model: Any) -> tuple[NativeHost, list[Pairs]]:
    """A host, and what each query attended to whose output was read."""
    seen: list[Pairs] = []

    def next_token(state: Pairs) -> int:
        seen.append(tuple(pair for pair in state if pair[1] >= 0))
        return 97 + len(state) % 26

    return install(page_size=4, next_token=next_token, **model), seen


def pairs(tokens: Iterable[int], positions: Iterable[int]) -> list[tuple[int, int]]:
    return list(zip(tokens, positions, strict=True))


def test_dropped_tokens_are_not_seen_and_their_pages_come_back() -> None:
    host, seen = watched()
    ctx = Context().fill(range(30))
    run(ctx.sample())
    held = host.pages
    ctx.drop(5, 22)
    host.settle()
    assert held - host.pages == 3  # tokens 8 to 19
    assert (len(ctx), ctx.tokens) == (30, tuple(range(30)))
    ctx.fill([50])
    run(ctx.sample())
    left = [*range(5), *range(22, 30), 50]
    assert sorted(seen[-1]) == pairs(left, range(14)), "those behind move up"
    ctx.close()
    assert nothing_held(host)


def test_a_gap_stays_open_where_that_is_asked_for_or_the_model_cannot_move_tokens() -> None:
    for fixed in ("", "its positions are learned"):
        _, seen = watched(fixed_positions=fixed)
        ctx = Context().fill(range(30)).drop(5, 22, close_gap=bool(fixed))
        run(ctx.fill([50]).sample())
        assert sorted(seen[-1]) == [(token, 30 if token == 50 else token) for token in [*range(5), *range(22, 30), 50]]
        parts = Context().fill(range(3)), Context().fill(range(60, 65))
        run(Context.join(parts).sample())
        first = range(0 if fixed else 3, 4 if fixed else 7)
        assert sorted(seen[-1]) == sorted([*pairs(range(3), range(3)), *pairs(range(60, 64), first), (64, 7)])


def test_windows_go_on_beyond_the_last_position_of_the_model() -> None:
    host, seen = watched(max_context=64)
    ctx = Context().fill(range(40))
    held = []
    for n in range(20):
        run(ctx.window(17, sink=3).fill(range(10 * n, 10 * n + 10)).sample())
        left = [*ctx.tokens[:3], *ctx.tokens[-27:]]
        assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(left, range(30))
        host.settle()
        held.append(host.pages)
    assert len(ctx) == 240
    assert max(held) <= 30 // 4 + 2 + PAGES_AHEAD
    text = ctx.tokens
    run(ctx.generate_until(IgnoreStopTokens(), 30))
    assert len(ctx) == 270
    again = Context.restore(ctx.snapshot())
    assert again.tokens[:240] == text
    run(again.sample())
    run(ctx.sample())
    assert seen[-1] == seen[-2]


def test_a_window_costs_nothing_for_each_page_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    install(page_size=4, max_context=64)
    looks: list[int] = []
    within = PageTable._within

    def looking(table: PageTable, tokens: Any, place: int) -> Any:
        looks.append(place)
        return within(table, tokens, place)

    def asked(page: Page) -> bool:
        looks.append(page.address)
        return page.holders > 1 or page.sealed

    monkeypatch.setattr(PageTable, "_within", looking)
    monkeypatch.setattr(Page, "is_shared", property(asked))
    ctx, counts = Context().fill(range(40)), []
    for _ in range(60):
        looks.clear()
        ctx.window(17, sink=3).fill(range(8))
        counts.append(len(looks))
    assert max(counts[30:]) == max(counts[2:30])


def test_a_window_keeps_the_sinks_and_the_end() -> None:
    _, seen = watched()
    ctx = Context().fill(range(40))
    for length in (50, 20, 9):
        ctx.window(length, sink=2)
    ctx.fill([60])
    run(ctx.sample())
    assert sorted(token for token, _ in seen[-1]) == [0, 1, *range(31, 40), 60]
    with pytest.raises(ValueError, match="length: 0 is not between"):
        ctx.window(0)


@pytest.mark.parametrize(("start", "stop"), [(0, 30), (5, 4), (29, 30), (31, 32)])
def test_what_cannot_be_dropped_is_told(start: int, stop: int) -> None:
    watched()
    with pytest.raises(InvalidArgument, match=f"tokens {start} to {stop} cannot be dropped: of 30 tokens all but"):
        Context().fill(range(30)).drop(start, stop)


def test_a_context_cannot_end_among_dropped_tokens() -> None:
    _, seen = watched()
    ctx = Context().fill(range(30)).drop(3, 20)
    with pytest.raises(InvalidState, match="tokens 3 to 20 were dropped: truncate to at most 3, or 20"):
        ctx.truncate(10)
    run(ctx.truncate(20).fill([70]).sample())
    assert sorted(token for token, _ in seen[-1]) == [0, 1, 2, 70]
    run(ctx.truncate(3).fill([71, 72]).sample())
    assert sorted(seen[-1]) == [(0, 0), (1, 1), (2, 2), (71, 3), (72, 4)]


@pytest.mark.parametrize("forks", [False, True])
def test_dropped_tokens_give_no_output(forks: bool) -> None:
    """Nor are they visible again where they are the last ones, when an output is asked for."""
    host, seen = watched()
    ctx = Context().fill(range(30)).drop(3, 20)
    cut = ctx.fork() if forks else ctx
    cut.truncate(20)
    child = cut.fork()
    for ask in (Context.sample, Context.next_dist, Context.flush, lambda one: one.score([1]), Context.generate_until):
        with pytest.raises(InvalidState, match=r"dropped, and gives no output: fill .* or truncate to at most 3"):
            run(ask(child))
    with pytest.raises(InvalidState, match="gives no output"):
        run(cut.generate_until(max_tokens=4, draft=lambda _: [1, 2]))
    with pytest.raises(InvalidState, match="gives no output"):
        Context.join([child, cut])
    for one in (cut, child):
        run(one.fill([70]).sample())
        assert sorted(seen[-1]) == pairs([0, 1, 2, 70], range(4))
        one.close()
    ctx.close()
    assert nothing_held(host)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_forks_drops_cuts_and_steps_shows_the_right_tokens(data: st.DataObject) -> None:
    host, seen = watched(max_context=2000)
    close_gap = data.draw(st.booleans())
    contexts: list[tuple[Context, set[int]]] = [(Context().fill(range(data.draw(st.integers(2, 30)))), set())]
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(contexts) - 1))
        ctx, dropped = contexts[place]
        match data.draw(st.sampled_from(["fork", "drop", "drop", "cut", "step", "run", "close"])):
            case "fork":
                contexts.append((ctx.fork(), set(dropped)))
            case "drop":
                start = data.draw(st.integers(0, len(ctx) - 1))
                stop = data.draw(st.integers(start, len(ctx) - 1))
                ctx.drop(start, stop, close_gap=close_gap)
                dropped |= set(range(start, stop))
            case "cut":
                length = data.draw(st.integers(1, len(ctx)))
                if not {length - 1, length} <= dropped:
                    ctx.truncate(length)
                    dropped -= set(range(length, 10_000))
            case "step":
                ctx.fill(range(100, 100 + data.draw(st.integers(1, 9))))
            case "run" if len(ctx) - 1 not in dropped:
                run(ctx.generate_until(IgnoreStopTokens(), data.draw(st.integers(1, 9))))
            case "close" if len(contexts) > 1:
                contexts.pop(place)[0].close()
        for one, gone in contexts:
            if len(one) - 1 in gone:
                with pytest.raises(InvalidState, match="gives no output"):
                    run(one.sample())
                continue
            run(one.sample())
            left = [n for n in range(len(one)) if n not in gone]
            positions = range(len(left)) if close_gap else left
            assert sorted(seen[-1], key=lambda pair: pair[1]) == [
                (one.tokens[n], at) for n, at in zip(left, positions, strict=True)
            ]
    for ctx, _ in contexts:
        ctx.close()
    assert nothing_held(host)


@pytest.mark.parametrize("before", [0, 6])
@pytest.mark.parametrize(("start", "stop"), [(3, 60), (20, 75), (8, 76)])
def test_a_chat_that_changes_among_dropped_tokens_is_seen_anew(before: int, start: int, stop: int) -> None:
    """As where other tools stand in the system message, or a template leaves out the reasoning of earlier turns."""
    host, seen = watched(max_context=2000)

    def look(city: str) -> str:
        """Looks."""
        return city

    ctx = Context().fill(range(before)).fill_chat("system", "s" * 30).fill_chat("user", "one two three four")
    ctx.fill("And so on, for a while")
    ctx.drop(start, stop)
    run(ctx.fill_chat("user", "more", tools=[look]).sample())
    whole = (
        Context()
        .fill(range(before))
        .fill_chat(
            [{"role": "system", "content": "s" * 30}, {"role": "user", "content": "one two three four"}], tools=[look]
        )
    )
    whole.fill("And so on, for a while").fill_chat("user", "more")
    assert ctx.tokens == whole.tokens
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(ctx.tokens, range(len(ctx)))
    for one in (ctx, whole):
        one.close()
    assert nothing_held(host)


@pytest.mark.parametrize("lengths", [(8, 4, 9), (5, 3, 6), (4, 1), (1, 1), (3,), (8, 8)])
def test_joined_parts_are_seen_together_behind_each_other(lengths: tuple[int, ...]) -> None:
    host, seen = watched()
    tokens = [list(range(100 * n, 100 * n + length)) for n, length in enumerate(lengths)]
    parts = [Context().fill(part) for part in tokens]
    joined = Context.join(parts)
    run(joined.sample())
    everything = [token for part in tokens for token in part]
    assert joined.tokens == tuple(everything)
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(everything, range(len(everything)))
    run(joined.generate_until(IgnoreStopTokens(), 6))
    run(joined.sample())
    assert sorted(p for _, p in seen[-1]) == [*range(len(everything) + 6)]
    for part in parts:
        run(part.sample())
        assert [token for token, _ in seen[-1]] == list(part.tokens)
        part.close()
    joined.close()
    assert nothing_held(host)


def test_parts_may_share_pages_and_be_there_twice() -> None:
    host, seen = watched()
    one = Context().fill(range(6))
    other = one.fork().fill([30, 31])
    joined = Context.join([one, other, one, other])
    run(joined.sample())
    assert joined.tokens == (*range(6), *range(6), 30, 31) * 2
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(joined.tokens, range(28))
    for ctx in (one, other, joined):
        ctx.close()
    assert nothing_held(host)


def test_a_part_that_cannot_be_moved_may_be_there_twice() -> None:
    host = install(fixed_positions="learned")
    one = Context().fill(range(8))
    joined = Context.join([one, one])
    assert run(joined.sample()) < 300
    for ctx in (one, joined):
        ctx.close()
    assert nothing_held(host)


def test_parts_may_have_positions_of_their_own() -> None:
    _, seen = watched()
    first, second = Context().fill(range(6)), Context(position=6).fill(range(50, 55))
    run(Context.join([first, second]).fill([90]).sample())
    assert sorted(seen[-1]) == sorted([*pairs(range(6), range(6)), *pairs(range(50, 55), range(6, 11)), (90, 11)])
    late = Context(position=20).fill(range(3))
    run(Context.join([late, first]).sample())
    assert sorted(seen[-1]) == sorted([*pairs(range(3), range(20, 23)), *pairs(range(6), range(23, 29))]), (
        "moved behind"
    )


@pytest.mark.parametrize("is_opened", [False, True])
def test_what_was_joined_behind_a_gap_can_be_joined_again_and_cut(is_opened: bool) -> None:
    host, seen = watched()
    first, late = Context().fill(range(6)), Context(position=20).fill(range(50, 55))
    whole = Context.join([first, late])
    if is_opened:
        run(whole.export("whole"))
        whole = run(Context.open("whole"))
    joined = Context.join([Context().fill([70, 71]), whole, whole])
    run(joined.sample())
    places = [*range(6), *range(20, 25)]
    positions = [0, 1, *(2 + n for n in places), *(27 + n for n in places)]
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(joined.tokens, positions)
    run(whole.truncate(8).fill([90]).sample())
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs([*range(6), 50, 51, 90], [*range(6), 20, 21, 22])
    run(whole.truncate(6).fill([90]).sample())
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs([*range(6), 90], range(7))
    for one in (first, late, whole, joined):
        one.close()
    assert nothing_held(host)


@pytest.mark.parametrize("close_gap", [True, False])
def test_what_was_dropped_of_a_part_is_left_out(close_gap: bool) -> None:
    """So a part may be computed behind a beginning that all of them have."""
    host, seen = watched()
    first = Context().fill(range(5))
    parts = [Context().fill([*range(5), *range(n, n + 9)]).drop(0, 5, close_gap=close_gap) for n in (20, 40)]
    parts[1].drop(8, 10, close_gap=close_gap)
    joined = Context.join([first, *parts])
    assert joined.tokens == (*range(5), *range(20, 29), *range(40, 43), *range(45, 49))
    run(joined.fill([60]).sample())
    second, third = (range(5, 14), range(14, 21)) if close_gap else (range(5, 14), [14, 15, 16, 19, 20, 21, 22])
    positions = [*range(5), *second, *third, third[-1] + 1]
    assert sorted(seen[-1], key=lambda pair: pair[1]) == pairs(joined.tokens, positions)
    for one in (first, *parts, joined):
        one.close()
    assert nothing_held(host)


def test_what_cannot_be_joined_is_told() -> None:
    watched()
    one = Context().fill(range(9))
    with pytest.raises(InvalidState, match="give contexts that are not empty"):
        Context.join([one, Context()])
    with pytest.raises(InvalidState, match="give contexts that are not empty"):
        Context.join([])


def test_contexts_and_generations_print_well() -> None:
    watched()
    ctx = Context().fill("Hello")
    assert repr(ctx) == "<Context of toy: 0 tokens, idle: 'Hello'>"
    generation = ctx.generate(3, stop=IgnoreStopTokens())
    assert repr(generation) == "<Generation: 0 tokens, not begun: ''>"
    text = run(generation.whole())
    assert repr(generation) == f"<Generation: 3 tokens, length: {text!r}>"
    assert repr(ctx) == f"<Context of toy: {len(ctx)} tokens, idle: {'Hello' + text!r}>"
    ctx.fill("x" * 100)
    assert repr(ctx).endswith("idle: ..." + repr("x" * 40) + ">")
    ctx.close()
    assert repr(ctx) == "<Context of toy: closed>"
