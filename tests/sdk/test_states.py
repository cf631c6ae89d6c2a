"""Contexts of a model that keeps a state of each text. The model compares what states have read with what is seen."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from inferlet_sdk import Context, IgnoreStopTokens, InvalidState, Sampler, Unsupported, traits
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import NativeHost, install
from tests.helpers.scripted_model import ScriptedModel

TEXT = list(range(97, 121))  # six pages


@pytest.fixture
def host() -> NativeHost:
    return install(states=64)


def rows(host: NativeHost) -> int:
    """How many have run since the last time."""
    count, host.model.rows = host.model.rows, 0
    return count


def first(model: ScriptedModel, tokens: list[int]) -> int:
    return model.expected(tokens, 1)[0]


def test_the_model_says_what_a_state_costs(host: NativeHost) -> None:
    assert Context().model.state_pages == 2
    assert "State" in [trait.name for trait in traits.available_traits("toy")]
    install()
    assert Context().model.state_pages == 0


@pytest.mark.parametrize("length", [24, 22])
def test_a_fork_runs_no_token_again(host: NativeHost, length: int) -> None:
    ctx = Context().fill(TEXT[:length])
    run(ctx.flush())
    assert rows(host) == length
    child = ctx.fork()
    grandchild = child.fork()
    for one, token in ((ctx, 65), (child, 66), (ctx, 67), (grandchild, 68)):
        one.fill([token])
        assert run(one.sample()) == first(host.model, list(one.tokens))
    assert rows(host) == 4
    for one in (child, ctx, grandchild):
        one.close()
    assert traits.usage().pages == 0


def test_truncate_goes_to_the_last_kept_state_and_runs_the_rest_again(host: NativeHost) -> None:
    ctx = Context().fill(TEXT[:10])
    ctx.keep()
    ctx.fill(TEXT[10:20])
    run(ctx.sample())
    assert rows(host) == 20
    for length, again in ((13, 3), (10, 0), (9, 9)):
        ctx.truncate(length).fill([65, 66])
        assert run(ctx.sample()) == first(host.model, [*TEXT[:length], 65, 66])
        assert rows(host) == again + 2
        if length > 9:
            ctx.truncate(10).fill(TEXT[10:20])
            run(ctx.sample())
            rows(host)


@pytest.mark.parametrize("length", [22, 24])
@pytest.mark.parametrize("keep_before_fork", [False, True])
def test_what_is_kept_in_a_page_of_two_contexts_stays_in_both(
    host: NativeHost, length: int, keep_before_fork: bool
) -> None:
    ctx = Context().fill(TEXT[:length])
    if keep_before_fork:
        ctx.keep()
        ctx.fill([65])
    child = ctx.fork()
    run(ctx.flush())
    rows(host)
    for one in (ctx, child):
        if not keep_before_fork:
            one.keep()
        for token in (66, 67, 68):
            one.truncate(length).fill([token, 65])
            assert run(one.sample()) == first(host.model, [*TEXT[:length], token, 65])
            one.truncate(length)
            run(one.generate_until(max_tokens=3, run_ahead=False))
    assert rows(host) == 2 * 3 * (2 + 2)


def test_a_generation_can_be_dropped_and_its_prompt_does_not_run_again(host: NativeHost) -> None:
    ctx = Context().fill(TEXT)
    expected = host.model.expected(TEXT, 6)
    for seed in range(3):
        run(ctx.generate_until(max_tokens=6, run_ahead=False, sampler=Sampler(temperature=0, seed=seed)))
        assert list(ctx.tokens[24:]) == expected
        ctx.truncate(24)
    assert rows(host) <= 24 + 3 * 7
    held = traits.usage().pages
    for _ in range(20):
        run(ctx.generate_until(max_tokens=1, run_ahead=False))
    assert traits.usage().pages <= held + 6 + 2


def test_a_generation_runs_each_token_once(host: NativeHost) -> None:
    ctx = Context().fill(TEXT)
    run(ctx.generate_until(max_tokens=40))
    assert list(ctx.tokens[24:]) == host.model.expected(TEXT, 40)
    assert rows(host) <= 24 + 40


def drafter(ctx: Context, expected: list[int]) -> Callable[[object], list[int]]:
    """Two of four tokens are right."""
    wrong, begin = iter(range(1000)), len(ctx.tokens)

    def draft(tokens: object) -> list[int]:
        done = len(ctx.tokens) - begin
        return [*expected[done : done + 2], 65 if next(wrong) % 2 else 66, 65]

    return draft


@pytest.mark.parametrize(("states", "again"), [(64, 0), (2, 5)])
def test_what_is_right_of_a_draft_does_not_run_again(states: int, again: int) -> None:
    host = install(states=states)
    ctx = Context().fill(TEXT)
    expected = host.model.expected(TEXT, 9)
    held = 0
    for _ in range(2):
        run(ctx.generate_until(max_tokens=9, draft=drafter(ctx, expected)))
        assert list(ctx.tokens[24:]) == expected
        assert rows(host) == (0 if held and not again else 24) + 4 + 5 + 3 + again
        assert traits.usage().pages == (held or traits.usage().pages)
        held = traits.usage().pages
        ctx.truncate(24)


@pytest.mark.parametrize(("length", "again"), [(32, 0), (31, 2), (29, 0), (28, 4), (24, 0)])
def test_truncate_goes_back_to_where_the_last_draft_began(host: NativeHost, length: int, again: int) -> None:
    ctx = Context().fill(TEXT)
    expected = host.model.expected(TEXT, 9)
    run(ctx.generate_until(max_tokens=9, draft=drafter(ctx, expected)))
    rows(host)
    held = traits.usage().pages
    ctx.truncate(length).fill([65])
    assert run(ctx.sample()) == first(host.model, [*TEXT, *expected[: length - 24], 65])
    assert rows(host) == again + 1
    assert traits.usage().pages < held, "what the draft has left is given back"


def test_a_stop_within_a_draft_runs_nothing_again(host: NativeHost) -> None:
    ctx = Context().fill(TEXT)
    expected = host.model.expected(TEXT, 9)
    stop = chr(expected[4])
    assert stop not in map(chr, expected[:4])
    run(ctx.generate_until(max_tokens=9, draft=drafter(ctx, expected), stop=[stop]))
    assert list(ctx.tokens[24:]) == expected[:4]
    rows(host)
    assert run(ctx.sample()) == expected[4]
    assert rows(host) <= 1


def test_what_a_state_cannot_do_is_refused_by_name(host: NativeHost) -> None:
    ctx = Context().fill(TEXT)
    with pytest.raises(Unsupported, match=r"drop: toy keeps a state of each text.*fill a new context"):
        ctx.drop(2, 5)
    with pytest.raises(Unsupported, match="join: toy keeps a state"):
        Context.join([ctx, Context().fill(TEXT)])
    run(ctx.flush())
    with pytest.raises(InvalidState, match="there is no state at the end"):
        traits.keep_state(ctx, ctx.pages[:3])
    traits.keep_state(ctx, ctx.pages)
    traits.drop_state(ctx, ctx.pages, 24)
    with pytest.raises(InvalidState, match="there is no state at the end"):
        traits.drop_state(ctx, ctx.pages, 24)


LONG = [97 + number % 20 for number in range(300)]


def test_a_prompt_with_the_same_beginning_runs_its_own_tokens_alone() -> None:
    host = install(states=64, max_context=1024)
    for tail, ran in (([65, 66, 67], 303), ([70, 71], 2), ([72] * 9, 9)):
        ctx = Context().fill(LONG).fill(tail)
        assert run(ctx.sample()) == first(host.model, [*LONG, *tail])
        assert (rows(host), ctx.found) == (ran, 0 if ran == 303 else 300)
        expected = host.model.expected(list(ctx.tokens), 5)
        run(ctx.generate_until(max_tokens=5))
        assert list(ctx.tokens)[-5:] == expected
        ctx.close()
        rows(host)
        assert traits.usage().pages == 0


def test_a_prompt_of_several_parts_is_shared_behind_the_first_and_before_the_last() -> None:
    host = install(states=64, max_context=1024)
    first_part, second_part = ("the river and the sea " * 20, "a hill or a mill " * 10)
    found = []
    for parts in ((first_part, second_part, "ZZ"), (first_part, "QQ"), (first_part, second_part, "YY")):
        ctx = Context()
        for part in parts:
            ctx.fill(part)
        assert run(ctx.sample()) == first(host.model, list(ctx.tokens))
        found.append((ctx.found, len(Context().fill("".join(parts[:-1])).tokens)))
    assert found[0][0] == 0
    for count, length in found[1:]:
        assert length - 8 <= count <= length


def test_a_state_is_left_where_a_second_prompt_parts_from_the_first() -> None:
    host = install(states=64, max_context=1024)
    for tail, count in (([65] * 40, 0), ([66] * 50, 0), ([67] * 60, 300), ([66] * 50 + [68] * 9, 348)):
        rows(host)
        ctx = Context().fill([*LONG, *tail])
        assert run(ctx.sample()) == first(host.model, [*LONG, *tail])
        assert (ctx.found, rows(host)) == (count, 300 + len(tail) - count)
        ctx.close()
    assert traits.usage().pages == 0


def test_conversations_share_their_system_message() -> None:
    host = install(states=64, max_context=1024)
    system = {"role": "system", "content": "the river and the sea " * 20}
    lengths = []
    for question in ("who?", "where is it?"):
        ctx = Context().fill_chat([system, {"role": "user", "content": question}])
        lengths.append((len(ctx), ctx.found if run(ctx.flush()) is None else 0, rows(host)))
    (length, found, ran), (other_length, other_found, other_ran) = lengths
    assert (found, ran) == (0, length)
    assert other_found > 300
    assert other_ran == other_length - other_found


ALONE = tuple(map(ord, "qxz"))  # letters of no other token, so that a reply has its tokens again in the next turn


def likeliest(scores: Any) -> int:
    """The token of these letters that a model gives."""
    return max(ALONE, key=lambda token: scores[token])


def turns(host: NativeHost, messages: list[dict[str, str]], reply_tokens: int) -> tuple[Context, int]:
    """The context of a conversation with the next reply, and how many tokens ran for it. The reply is kept."""
    rows(host)
    ctx = Context().fill_chat(messages)
    sampler = Sampler(temperature=0, logit_bias=dict.fromkeys(ALONE, 1000.0))
    reply = run(ctx.generate_until(IgnoreStopTokens(), max_tokens=reply_tokens, sampler=sampler))
    ran = rows(host)
    messages.append({"role": "assistant", "content": reply})
    ctx.keep()
    run(ctx.flush())
    return ctx, ran


@pytest.mark.parametrize("reply_tokens", [1, 2, 3, 4, 21, 80])
def test_the_next_turn_of_a_conversation_runs_only_what_is_new(reply_tokens: int) -> None:
    host = install(states=64, max_context=2048)
    messages = [{"role": "user", "content": "the river and the sea " * 20}]
    before = 0
    for question in ("who?", "where is it?", "why?"):
        ctx, ran = turns(host, messages, reply_tokens)
        found, length = ctx.found, len(ctx)
        assert list(ctx.tokens[-reply_tokens:]) == host.model.expected(
            ctx.tokens[:-reply_tokens], reply_tokens, likeliest
        )
        ctx.close()
        rows(host)
        assert found == before
        assert ran == length - 1 - found, "all but the last token, which the reply does not need"
        before = length - 1
        messages.append({"role": "user", "content": question})
    assert traits.usage().pages == 0


def test_the_next_turn_behind_a_stop_string_runs_only_what_is_new() -> None:
    install(states=64, max_context=2048)
    messages, found, lengths = [{"role": "user", "content": "the river and the sea " * 20}], 0, list[int]()
    sampler = Sampler(temperature=0, logit_bias=dict.fromkeys(ALONE, 1000.0))
    for _ in range(3):
        ctx = Context().fill_chat(messages)
        reply = run(ctx.generate_until([IgnoreStopTokens(), "qqqx"], max_tokens=80, sampler=sampler))
        lengths.append(len(reply))
        assert ctx.found == found
        ctx.keep()
        found = len(ctx) - 1
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "why?"}]
        ctx.close()
    assert lengths[-1] < 80


def test_a_kept_text_goes_on_in_its_own_pages() -> None:
    host = install(states=64, max_context=1024)
    ctx = Context().fill(LONG[:278])
    run(ctx.flush())
    ctx.keep()
    child = ctx.fork()
    rows(host)
    for one, tail in ((ctx, [65, 66]), (child, [67]), (Context().fill([*LONG[:278], 70, 71]), [72])):
        one.fill(tail)
        assert run(one.sample()) == first(host.model, list(one.tokens))
        one.truncate(278).fill([69])
        assert run(one.sample()) == first(host.model, [*LONG[:278], 69])
        one.close()
    assert rows(host) == 3 + 2 + 4
    assert traits.usage().pages == 0


@pytest.mark.parametrize("others", [0, 1, 2])
def test_the_states_of_other_contexts_are_none_of_a_beginning_that_ends_within_a_page(others: int) -> None:
    """Of 278 tokens the last page has two; `others` behind them have a state, in another context."""
    host = install(states=64, max_context=1024)
    ctx = Context().fill(LONG[:278])
    run(ctx.flush())
    ctx.keep()
    if others:
        ctx.fill([70] * others).keep()
    other = Context().fill([*LONG[:278], 80, 81, 82])
    assert run(other.sample()) == first(host.model, [*LONG[:278], 80, 81, 82])
    assert other.found == 278


def test_beginnings_with_their_states_are_pinned() -> None:
    install(states=64, max_context=1024)
    ctx = Context().fill(LONG).fill([65, 66, 67])
    run(ctx.sample())
    assert run(ctx.pin(60)) == 300
    short = Context().fill(TEXT)
    run(short.sample())
    assert run(short.pin(60)) == 0


def test_an_export_has_its_state() -> None:
    host = install(states=64, max_context=1024)
    ctx = Context().fill(TEXT[:22])
    run(ctx.export("text"))
    ctx.fill([65])
    assert run(ctx.sample()) == first(host.model, [*TEXT[:22], 65])
    ctx.close()
    rows(host)
    for tail in ([66, 67], [68]):
        opened = run(Context.open("text")).fill(tail)
        assert run(opened.sample()) == first(host.model, [*TEXT[:22], *tail])
        opened.truncate(22).fill(tail[::-1])
        assert run(opened.sample()) == first(host.model, [*TEXT[:22], *tail[::-1]])
        opened.close()
    assert rows(host) == 2 * (2 + 1)
    assert traits.usage().pages == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    host, pick = install(states=400, num_pages=400), random.Random(seed)
    contexts = [Context().fill(TEXT[:5])]
    for _ in range(60):
        ctx = pick.choice(contexts)
        act = pick.randrange(8)
        if act == 0 and len(contexts) < 8:
            contexts.append(ctx.fork())
        elif act == 1:
            ctx.truncate(pick.randint(1, len(ctx)))
        elif act == 2:
            ctx.keep()
        elif act == 3 and len(contexts) > 1:
            contexts.remove(ctx)
            ctx.close()
            continue
        elif act == 4:
            run(ctx.score(pick.choices(TEXT, k=pick.randint(1, 6))))
        elif act == 5 and len(ctx) < 100:
            expected = host.model.expected(ctx.tokens, 3)
            run(ctx.generate_until(max_tokens=3, run_ahead=False, stop=[chr(expected[-1] % 128)]))
        elif len(ctx) < 100:
            ctx.fill(pick.choices(TEXT, k=pick.randint(1, 9)))
        if pick.random() < 0.7:
            assert run(ctx.sample()) == first(host.model, list(ctx.tokens))
    for ctx in contexts:
        ctx.close()
    traits.sleep(0.01).result()
    assert traits.usage().pages == 0
