"""Generation by decode runs: the same tokens and texts as step by step, however they come, and nothing left behind.

The toy model's tokens depend on every slot, page and position.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet_sdk import (
    Args,
    Context,
    DistSampler,
    Generation,
    Grammar,
    IgnoreStopTokens,
    MaxTokens,
    PromptLookup,
    QuotaExceeded,
    Sampler,
    StopRegex,
    StopString,
    StopTokens,
    StopWhen,
    gather,
)
from inferlet_sdk.chat import TextReader
from inferlet_sdk.event_loop import run
from inferlet_sdk.generation import decode_run
from pie_control.services.grammars import GrammarMatcher, Grammars
from tests.helpers import native_host
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.native_host import expected, install, nothing_held, refuse, saying
from tests.helpers.scripted_model import STOP
from tests.helpers.tiers import pairs

PROMPT = "Hello, the world"
ALL = IgnoreStopTokens()
Way = Callable[[Context, Any], Coroutine[Any, Any, str]]


async def iterated(ctx: Context, options: Any) -> str:
    return "".join([piece async for piece in ctx.generate(**options)])


async def whole(ctx: Context, options: Any) -> str:
    return await ctx.generate_until(**options)


async def streamed(ctx: Context, options: Any) -> str:
    text: str = await Args().stream(ctx.generate(**options))
    return text


async def begun_then_streamed(ctx: Context, options: Any) -> str:
    generation = ctx.generate(**options)
    first = await anext(generation, "")
    rest: str = await Args().stream(generation)
    return first + rest


async def beside_another_task(ctx: Context, options: Any) -> str:
    other = asyncio.create_task(asyncio.sleep(0.001))
    text = await ctx.generate_until(**options)
    await other
    return text


WAYS = [iterated, whole, streamed, begun_then_streamed, beside_another_task]
CONDITIONS: dict[str, Any] = {
    "none": (),
    "string": "a",
    "strings": ["zq", "th", "xyzzy", ".."],
    "long string": StopString("h" * 30, "e"),
    "too many strings": StopString(*(chr(97 + n) * 3 for n in range(26)), "is"),
    "regex": StopRegex(r"[aeiou]\w[aeiou]", hold=2),
    "tokens": StopTokens(*range(97, 105)),
    "very many tokens": StopTokens(*range(97, 99), *range(130, 256)),
    "maximum": MaxTokens(7),
    "predicate": StopWhen(lambda generation: len(generation.tokens) == 9),
    "string and predicate": ["q", lambda generation: len(generation.text) > 12],
    "string and regex": ["the", StopRegex("b")],
}
SAMPLERS: dict[str, Any] = {
    "greedy": Sampler(temperature=0.0),
    "seed": Sampler(seed=5),
    "penalties": Sampler(repetition_penalty=1.2, window=5, seed=5),
    "penalties on all": Sampler(frequency_penalty=0.5, window=0, seed=5),
    "own": DistSampler(lambda dist: dist.tokens[1], k=3),
}


def outcome(way: Way, tokens_at_once: int = 1, page_size: int = 4, max_pages: int = 1000, **options: Any) -> Any:
    """Text, what the context holds, and how it goes on; and the host."""
    host = install(page_size=page_size, max_pages=max_pages)
    host.tokens_at_once = tokens_at_once
    ctx = Context().fill(PROMPT)
    text = run(way(ctx, options))
    after, said = ctx.tokens, ctx.text
    more = run(ctx.generate_until(ALL, max_tokens=3, run_ahead=False))
    ctx.close()
    assert nothing_held(host)
    assert not host.runs
    return (text, after, said, more), host


_wanted: dict[tuple[str, ...], Any] = {}


def step_by_step(*name: str, **options: Any) -> Any:
    """What `options`, which have a name, give."""
    if name not in _wanted:
        _wanted[name], _ = outcome(iterated, run_ahead=False, **options)
    return _wanted[name]


@pytest.mark.parametrize(("way", "condition", "tokens_at_once"), pairs(WAYS, CONDITIONS, (1, 3, 1000)))
def test_every_way_gives_what_step_by_step_gives(way: Way, condition: str, tokens_at_once: int) -> None:
    options: dict[str, Any] = {"stop": [ALL, *as_list(CONDITIONS[condition])], "max_tokens": 25}
    wanted = step_by_step("stop", condition, **options)
    found, host = outcome(way, tokens_at_once, **options)
    assert found == wanted
    sent = "".join(host.sent)
    assert sent == wanted[0] if way is streamed else wanted[0].endswith(sent)


INCLUDED: dict[str, tuple[Any, str]] = {
    "string": ("kr", "eyttzvkr"),
    "strings": (["th", ".."], "eyttzvkrkis.."),
    "regex": (StopRegex(r"k\w", hold=1), "eyttzvkr"),
    "token": (StopTokens(ord("v")), "eyttzv"),
    "many tokens": (StopTokens(ord("v"), *range(130, 256)), "eyttzv"),
    "string and predicate": (["kr", lambda _generation: False], "eyttzvkr"),
}


@pytest.mark.parametrize(("way", "condition", "tokens_at_once"), pairs(WAYS, INCLUDED, (1, 3, 1000)))
def test_what_ends_a_text_may_belong_to_it(way: Way, condition: str, tokens_at_once: int) -> None:
    stop, text = INCLUDED[condition]
    options: dict[str, Any] = {"stop": [ALL, *as_list(stop)], "max_tokens": 25, "include_stop": True}
    wanted = step_by_step("included", condition, **options)
    assert wanted[0] == text
    assert wanted[2] == PROMPT + text
    assert outcome(way, tokens_at_once, **options)[0] == wanted


def as_list(condition: Any) -> list[Any]:
    return list(condition) if isinstance(condition, list | tuple) else [condition]


@pytest.mark.parametrize(("way", "sampler", "tokens_at_once"), pairs(WAYS, SAMPLERS, (1, 7)))
def test_every_sampler_gives_what_it_gives_step_by_step(way: Way, sampler: str, tokens_at_once: int) -> None:
    options: dict[str, Any] = {"sampler": SAMPLERS[sampler], "stop": [ALL, "xq"], "max_tokens": 20}
    wanted = step_by_step("sampler", sampler, **options)
    assert outcome(way, tokens_at_once, **options)[0] == wanted


@pytest.mark.parametrize(("way", "steps", "tokens_at_once"), pairs(WAYS, (1, 2, 5), (1, 3)))
def test_a_long_text_takes_several_runs(
    way: Way, steps: int, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"stop": [ALL, "the", "isis"], "max_tokens": 40}
    wanted = step_by_step("several runs", **options)
    monkeypatch.setattr(decode_run, "STEPS", steps)
    found, host = outcome(way, tokens_at_once, **options)
    assert found == wanted
    assert host.calls.count("decode") >= len(wanted[1]) // steps - len(PROMPT)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WAYS),
    st.lists(st.text("aehist. ", min_size=1, max_size=4), max_size=3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_stop_strings_cut_at_the_same_place(way: Way, strings: list[str], steps: int, at_once: int, most: int) -> None:
    """Also where one spans two runs."""
    options: dict[str, Any] = {"stop": [ALL, *strings], "max_tokens": most}
    wanted, _ = outcome(iterated, run_ahead=False, **options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(decode_run, "STEPS", steps)
        found, host = outcome(way, at_once, **options)
    assert found == wanted
    if way is streamed:
        assert "".join(host.sent) == wanted[0]


# ---- who wakes when ----

FEW = ["take_run", "send", "wait", "take_text", "watch_run"]


def crossings(way: Way, tokens_at_once: int = 1, **options: Any) -> dict[str, int]:
    _, host = outcome(way, tokens_at_once, page_size=100, **options)
    before = host.calls[: host.calls.index("drop")]
    return {name: before.count(name) for name in FEW if name in before}


def test_an_iteration_crosses_once_for_what_has_come() -> None:
    options: dict[str, Any] = {"stop": ALL, "max_tokens": 30}
    assert crossings(iterated, **options) == {"take_run": 30}
    assert crossings(iterated, 10, **options) == {"take_run": 3}


@pytest.mark.parametrize("stop", [ALL, [ALL, "zzzz", StopString("qqqq")]])
@pytest.mark.parametrize("way", [whole, streamed])
def test_a_whole_text_wakes_the_program_once(way: Way, stop: Any) -> None:
    assert crossings(way, stop=stop, max_tokens=30) == {"take_run": 1, "watch_run": 1}


@pytest.mark.parametrize("stop", [StopRegex("zzzz"), StopWhen(lambda generation: False)])
def test_what_looks_at_each_token_is_sent_by_the_program(stop: Any) -> None:
    found = crossings(streamed, stop=[ALL, stop], max_tokens=10)
    assert found["take_run"] == 10
    assert 1 <= found["send"] <= 10
    assert "watch_run" not in found


def test_a_program_that_lags_gets_several_tokens_as_one_piece() -> None:
    host = install(next_token=saying("abcdefg", after=2))
    host.tokens_at_once = 3
    assert list(Context().fill("xy").generate()) == ["abc", "def", "g"]


def test_conditions_see_every_token_of_a_piece_in_order() -> None:
    host = install(next_token=saying("abcdefg", after=2))
    host.tokens_at_once = 4
    seen: list[str] = []

    def look(generation: Any) -> bool:
        seen.append(generation.text)
        return bool(generation.text == "abcdef")

    ctx = Context().fill("xy")
    assert list(ctx.generate(stop=look)) == ["abcd", "ef"]
    assert seen == ["a", "ab", "abc", "abcd", "abcde", "abcdef"]
    assert ctx.text == "xyabcdef"


def test_a_condition_that_fails_loses_no_token() -> None:
    host = install()
    host.tokens_at_once = 5
    ctx = Context().fill("abc")
    fails = iter([False, True, *[False] * 40])

    def condition(generation: object) -> bool:
        if next(fails):
            raise ValueError("no")
        return False

    generation = ctx.generate(max_tokens=10, stop=[ALL, StopWhen(condition)])
    with pytest.raises(ValueError, match="no"):
        list(generation)
    assert "abc" + "".join(generation) == ctx.text, "nor its text"
    assert list(ctx.tokens)[3:] == expected([97, 98, 99], 10)


@pytest.mark.parametrize("draft", [None, lambda tokens: [97, 98, 99]])
@pytest.mark.parametrize("tokens_at_once", [1, 5])
def test_a_condition_that_fails_loses_no_draw_of_a_seed(tokens_at_once: int, draft: Any) -> None:
    def tokens(failures: list[int]) -> list[int]:
        host = install()
        host.tokens_at_once = tokens_at_once

        def condition(generation: Any) -> bool:
            if len(generation.tokens) in failures:
                raise ValueError(failures.pop())
            return False

        ctx = Context().fill("abc")
        generation = ctx.generate(12, stop=[ALL, StopWhen(condition)], sampler=Sampler(seed=5), draft=draft)
        while generation.stop_reason is None:
            with suppress(ValueError):
                list(generation)
        return list(ctx.tokens)

    assert tokens(failures=[12, 6, 2]) == tokens(failures=[])


# ---- what happens in the middle of a run ----


def test_log_probabilities_stay_with_their_tokens_where_a_condition_has_failed() -> None:
    host = install(page_size=16)
    host.tokens_at_once = 5
    failures = [ValueError("once")]

    def fails(generation: Any) -> bool:
        if len(generation.tokens) == 3 and failures:
            raise failures.pop()
        return False

    async def main(stop: Any) -> Any:
        async with Context().fill(PROMPT) as ctx:
            generation = ctx.generate(12, stop=[ALL, stop], logprobs=1)
            while generation.stop_reason is None:
                with suppress(ValueError):
                    await generation.whole()
            return generation.tokens, generation.logprobs

    tokens, logprobs = run(main(StopWhen(fails)))
    wanted = run(main(MaxTokens(12)))
    assert (tokens, logprobs) == wanted
    assert not failures


@pytest.mark.parametrize("tokens_at_once", [1, 4, 100])
@pytest.mark.parametrize("taken", [1, 2, 5])
def test_a_loop_that_is_left_keeps_what_it_was_given(tokens_at_once: int, taken: int) -> None:
    host = install()
    host.tokens_at_once = tokens_at_once

    async def main() -> None:
        ctx = Context().fill("abc")
        pieces = []
        async for piece in ctx.generate(max_tokens=50, stop=ALL):
            pieces.append(piece)
            if len(pieces) == taken:
                break
        assert ctx.text == "abc" + "".join(pieces)
        await ctx.generate_until(ALL, max_tokens=10)
        assert list(ctx.tokens)[3:] == expected([97, 98, 99], len(ctx) - 3)
        ctx.close()

    run(main())
    assert nothing_held(host)
    assert not host.runs


@pytest.mark.parametrize("tokens_at_once", [1, 6])
def test_forks_in_the_middle_of_a_run_go_their_own_ways(tokens_at_once: int) -> None:
    host = install()
    host.tokens_at_once = tokens_at_once

    async def main() -> None:
        ctx = Context().fill("abcdefg")
        children = []
        for _ in range(3):
            async for _ in ctx.generate(max_tokens=50, stop=ALL):
                break
            children.append(ctx.fork().fill("x"))
        tokens = [list(child.tokens) for child in children]
        await gather(*(child.generate_until(ALL, max_tokens=12) for child in children), ctx.generate_until(ALL, 12))
        for child, start in zip(children, tokens, strict=True):
            assert list(child.tokens) == start + expected(start, 12)
        assert list(ctx.tokens)[7:] == expected([*b"abcdefg"], len(ctx) - 7)
        children[1].close()
        ctx.close()
        children[0].close()
        children[2].close()

    run(main())
    assert nothing_held(host)


@pytest.mark.parametrize("operation", ["fill", "truncate", "fork", "sample", "next_dist", "score", "flush"])
def test_other_uses_end_a_run_first(operation: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"fill": ("x",), "truncate": (4,), "score": ("x",)}
    host = install()
    host.tokens_at_once = 3

    async def main() -> None:
        ctx = Context().fill("abc")
        async for _ in ctx.generate(max_tokens=50, stop=ALL):
            break
        found = getattr(ctx, operation)(*arguments.get(operation, ()))
        if asyncio.iscoroutine(found):
            found = await found
        assert not host.runs
        if isinstance(found, Context) and found is not ctx:
            found.close()
        start = list(ctx.tokens)
        await ctx.generate_until(ALL, max_tokens=8)
        assert list(ctx.tokens) == start + expected(start, 8)
        ctx.close()

    run(main())
    assert nothing_held(host)


@pytest.mark.parametrize("way", [iterated, whole, streamed])
def test_a_cancelled_generation_leaves_nothing_and_can_be_gone_on_with(way: Way) -> None:
    host = install()

    async def main() -> None:
        ctx = Context().fill("abc")
        task = asyncio.ensure_future(way(ctx, {"max_tokens": 500, "stop": ALL}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        host.settle()
        while host.runs:  # one whose pieces were awaited ends with its next token
            await asyncio.sleep(0.001)
        assert len(ctx) < 500, "it was not decoded to its end"
        await ctx.generate_until(ALL, max_tokens=5)
        assert list(ctx.tokens)[3:] == expected([97, 98, 99], len(ctx) - 3)
        ctx.close()

    run(main())
    assert nothing_held(host)


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("turns", [1, 4, 400])
def test_a_seeded_generation_that_was_cancelled_goes_on_with_the_same_tokens(turns: int, run_ahead: bool) -> None:
    def tokens(cancels: int) -> list[int]:
        host = install()

        async def main() -> list[int]:
            ctx = Context().fill("abc")
            generation = ctx.generate(40, stop=ALL, sampler=Sampler(seed=5), run_ahead=run_ahead)
            for _ in range(cancels):
                await anext(generation, "")
                task = asyncio.ensure_future(anext(generation, ""))
                await asyncio.sleep(0)
                host.settle(turns)  # tokens have come that are not taken
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await generation.whole()
            return list(ctx.tokens)

        return run(main())

    assert tokens(cancels=3) == tokens(cancels=0)


@pytest.mark.parametrize("wait", [lambda generation: anext(generation, ""), Generation.whole])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"run_ahead": False}, {"logprobs": 1}, {"draft": PromptLookup()}, {"regex": "[a-z]{20}"}),
        *({"sampler": Sampler(seed=5)}, {"sampler": SAMPLERS["own"]}, {"stop": [ALL, StopRegex("zzz")]}),
    ],
)
def test_a_text_comes_however_short_the_waits_for_it_are(
    wait: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_host._Worker._run_inline, "__defaults__", (12,))  # a wave takes longer than a wait

    def tokens(cut: bool) -> list[int]:
        host, until = install(), monotonic() + HANG_SECONDS

        async def main() -> list[int]:
            ctx = Context().fill("abc")
            generation = ctx.generate(12, **{"stop": ALL, **options})
            while cut and generation.stop_reason is None and monotonic() < until:
                task = asyncio.ensure_future(wait(generation))
                for _ in range(33):  # the host has a turn
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert len(generation.tokens) == 12 or not cut
            await generation.whole()
            ctx.close()
            return generation.tokens

        found = run(main())
        assert nothing_held(host)
        return found

    assert tokens(cut=True) == tokens(cut=False)


def compiling(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Grammars are compiled when this is set."""
    compiles, done = Grammars.compile, threading.Event()

    def later(grammars: Grammars, kind: str, text: str, options: str) -> Any:
        assert done.wait(HANG_SECONDS)
        return compiles(grammars, kind, text, options)

    monkeypatch.setattr(Grammars, "compile", later)
    return done


def test_a_grammar_is_compiled_once_however_short_the_waits_for_it_are(monkeypatch: pytest.MonkeyPatch) -> None:
    host, done = install(), compiling(monkeypatch)

    async def main() -> str:
        generation = Context().fill("abc").generate(20, regex="[a-z]{5}")
        for _ in range(70):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(generation), 0.0001)
        done.set()
        return await generation.whole()

    assert len(run(main())) == 5
    assert host.calls.count("open_matcher") == 1


@pytest.mark.parametrize("draft", [None, PromptLookup()])
def test_a_context_may_be_closed_while_its_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch, draft: Any) -> None:
    host, done = install(), compiling(monkeypatch)

    async def main() -> None:
        ctx = Context().fill("abc")
        generation = ctx.generate(20, regex="[a-z]{5}", draft=draft)
        waiting = asyncio.ensure_future(anext(generation, "nothing"))
        await asyncio.sleep(0.001)
        ctx.close()
        done.set()
        assert await waiting == "nothing"
        assert generation.stop_reason == "ended"

    run(main())
    assert nothing_held(host)


def test_a_matcher_takes_no_queue_from_contexts() -> None:
    install(max_queues=1)
    ctx = Context().fill("abc")
    run(ctx.flush())
    run(Grammar.of_regex("a").matcher()).close()


def test_a_dropped_generation_is_ended() -> None:
    host = install()
    ctx = Context().fill("abc")
    next(iter(ctx.generate(max_tokens=50, stop=ALL)))
    assert host.runs == 1
    ctx._generation = None
    ctx.close()
    run(Context().fill("a").flush())  # gives back what was dropped
    assert not host.runs


def test_generations_of_several_contexts_go_on_side_by_side() -> None:
    host = install()

    async def main() -> None:
        contexts = [Context().fill([97 + n]) for n in range(5)]
        generations = [context.generate(max_tokens=20, stop=ALL) for context in contexts]
        for _ in range(20):
            for generation in generations:
                await anext(generation, None)
        for n, context in enumerate(contexts):
            assert list(context.tokens) == [97 + n, *expected([97 + n], 20)]
            context.close()

    run(main())
    assert nothing_held(host)


# ---- long texts ----


PATTERNS = (r"[ab] ", r"a\B", r"(?<=b)a", r"(?m)^ab", r"ab\Z", r"(a)\1", r"a(?=b )", r"a(?!b)b", r"a+b", r"(?s)a.b")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regular_expression_is_found_as_in_all_of_the_text(pattern: str) -> None:
    choice = random.Random(pattern)
    for _ in range(40):
        text, found, stop = "", None, StopRegex(pattern)
        while found is None and len(text) < 30:
            start = len(text)
            text += "".join(choice.choices("ab \n", k=choice.randint(1, 3)))
            found = stop.find(text, start)
            wanted = re.search(pattern, text)
            assert found == (wanted and wanted.span())


class Watched(list[Any]):
    """A list that knows the most that was read of it at once."""

    most = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.most = max(self.most, len(found) if isinstance(place, slice) else 1)
        return found


def test_what_was_read_of_a_long_text_is_not_read_again() -> None:
    install()
    ctx, looked = Context().fill("abc"), list[int]()
    generation = ctx.generate(60, stop=[ALL, stop := StopRegex("[.!?] ")], logprobs=0)
    pieces = iter(generation)
    next(pieces)
    reader = TextReader(generation, ctx._sequence.queues, {STOP: "<end>"})
    ctx._sequence.tokens = tokens = Watched(ctx._sequence.tokens)
    generation._logprobs = logprobs = Watched(generation._logprobs)
    stop._pattern = Mock(search=lambda text, begin: looked.append(len(text) - begin))
    text = "".join(reader.read(next(pieces)) for _ in range(40))
    assert max(*looked, tokens.most, logprobs.most) < 8
    assert text + "".join(map(reader.read, pieces)) == generation.text
    reader.close()


# ---- memory and other limits ----


def test_a_long_maximum_takes_pages_of_its_own_only_while_it_may_need_them() -> None:
    host = install(page_size=4, max_context=2000)

    async def main() -> None:
        ctx = Context().fill("abc")
        async for _ in ctx.generate(max_tokens=1500, stop=ALL):
            break
        assert host.pages * 4 <= decode_run.STEPS + 16
        await ctx.flush()
        host.settle()
        assert host.pages <= 4

    run(main())


@pytest.mark.parametrize("way", [iterated, whole, streamed])
@pytest.mark.parametrize("max_pages", [12, 13, 15, 20])
def test_little_memory_makes_short_runs(way: Way, max_pages: int) -> None:
    """The prompt of 15 tokens and 28 more fill 11 pages."""
    options: dict[str, Any] = {"stop": [ALL, "isis"], "max_tokens": 28}
    wanted = step_by_step("little memory", **options)
    assert outcome(way, 3, max_pages=max_pages, **options)[0] == wanted


def test_too_little_memory_is_told_and_loses_nothing() -> None:
    host = install(page_size=4, max_pages=5)
    ctx = Context().fill("abc")
    with pytest.raises(QuotaExceeded, match="the limit is 5"):
        run(ctx.generate_until(ALL, max_tokens=40))
    assert list(ctx.tokens)[3:] == expected([97, 98, 99], len(ctx) - 3)
    assert len(ctx) >= 17
    ctx.close()
    assert nothing_held(host)


@pytest.mark.parametrize("way", WAYS)
def test_the_context_limit_ends_it(way: Way) -> None:
    install(max_context=20)
    ctx = Context().fill("abcdef")
    run(way(ctx, {"stop": ALL}))
    assert len(ctx) == 20


def test_contexts_that_share_a_queue_take_turns() -> None:
    host = install(max_queues=1)

    async def main() -> None:
        contexts = [Context().fill([97 + n]) for n in range(4)]
        await gather(*(context.generate_until(ALL, max_tokens=60) for context in contexts))
        for n, context in enumerate(contexts):
            assert list(context.tokens) == [97 + n, *expected([97 + n], 60)]

    run(main())
    assert host.calls.count("decode") > 4 + 60 // decode_run.STEPS_OF_SHARED


def test_a_run_that_fails_raises_and_the_context_goes_on() -> None:
    host = install()
    host.tokens_at_once = 4
    take_run = host.fused.take_run
    calls = iter([take_run, None, *[take_run] * 100])

    def failing(number: int, detokenizer: int) -> Any:
        call = next(calls)
        if call is None:
            host.core.cancel(number)
            raise refuse("worker-failed", "the worker failed")
        return call(number, detokenizer)

    host.fused.take_run = failing
    ctx = Context().fill("abc")
    generation = ctx.generate(max_tokens=12, stop=ALL)
    with pytest.raises(Exception, match="the worker failed"):
        list(generation)
    assert len(ctx) == 7
    list(generation)
    assert list(ctx.tokens)[3:] == expected([97, 98, 99], 12)
    ctx.close()
    assert nothing_held(host)


def test_a_run_that_is_refused_leaves_no_pages() -> None:
    host = install()

    def refused(*_: Any) -> int:
        raise refuse("quota-exceeded", "too many futures")

    host.fused.decode = refused
    ctx = Context().fill("abc")
    with pytest.raises(QuotaExceeded, match="too many futures"):
        run(ctx.generate_until(max_tokens=100))
    host.settle()
    assert host.pages <= 4
    ctx.close()
    assert nothing_held(host)


# ---- args.stream ----


def test_a_program_without_asyncio_streams_in_place() -> None:
    host = install(next_token=saying("hi there", after=2))
    assert Args().stream(Context().fill("xy").generate()) == "hi there"
    assert "".join(host.sent) == "hi there"


def test_only_a_generation_can_be_streamed() -> None:
    install()
    with pytest.raises(TypeError, match="generation: give what `generate` returned, not str"):
        Args().stream("text")  # type: ignore[arg-type]


def test_a_generation_that_is_over_streams_nothing() -> None:
    host = install(next_token=saying("hi", after=2))
    generation = Context().fill("xy").generate()
    list(generation)
    assert Args().stream(generation) == ""
    assert host.sent == []


def test_the_options_of_a_run_say_what_the_sampler_needs() -> None:
    host = install()
    seen: list[tuple[int, list[int], str]] = []
    decode: Any = host.fused.decode

    def recording(*arguments: Any) -> int:
        seen.append(arguments[-5:-2])
        number: int = decode(*arguments)
        return number

    host.fused.decode = recording
    run(Context().fill("abcdef").generate_until(max_tokens=5, sampler=Sampler(presence_penalty=1.0, window=4)))
    run(Context().fill("abcdef").generate_until(StopTokens(7, 3), max_tokens=5))
    (steps, stop, options), plain = seen
    assert (steps, stop, json.loads(options)) == (5, [STOP], {"recent": [*b"cdef"], "window": 4})
    assert plain == (5, [3, 7, STOP], "")


@pytest.mark.parametrize("wrong", [{"window": 10**26}, {"window": -1}, {"since": -1}])
def test_a_sampler_that_looks_back_over_no_number_of_tokens_is_refused(wrong: dict[str, Any]) -> None:
    install()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .* is not between 0 and 4294967295"):
        run(Context().fill("abcdef").generate_until(max_tokens=5, sampler=Sampler(presence_penalty=1.0, **wrong)))


def test_a_run_that_the_worker_is_not_ready_for_is_issued_again_by_the_short_way_too() -> None:
    host = install(page_size=16)
    take = host.fused.take_run
    refused: list[int] = []

    def busy(run: int, detokenizer: int) -> Any:
        if len(refused) < 2:
            refused.append(run)
            raise refuse("busy", "the worker is not ready")
        return take(run, detokenizer)

    async def main() -> list[int]:
        context = Context().fill("abc")
        pieces = []
        async for piece in context.generate(max_tokens=12):
            pieces.append(piece)
            if len(pieces) == 1:
                host.fused.take_run = busy
        assert "".join(pieces) == context.text[3:]
        return list(context.tokens)

    assert run(main()) == [97, 98, 99, *expected([97, 98, 99], 12)]
    assert len(refused) == 2


def grammar_crossings(**options: Any) -> list[str]:
    """For what a whole text of 20 tokens at most, which is kept to a grammar, crosses beside what a free one does."""
    host = install(page_size=100)
    for _ in range(2):  # at the first time the worker has yet to compile the grammar
        del host.calls[:]
        run(Context(share=False).fill(PROMPT).generate_until(ALL, max_tokens=20, **options))
    matchers = [one for one in host.handles if isinstance(one, GrammarMatcher)]
    assert not matchers, "all that was opened was dropped"
    return [name for name in host.calls if "matcher" in name or "grammar" in name or name == "decode"]


@pytest.mark.parametrize("kept", [{"regex": "[a-z]{50}"}, {"schema": {"type": "string", "minLength": 40}}])
def test_a_kept_text_crosses_three_times_more_than_a_free_one(kept: dict[str, Any]) -> None:
    crossed = ["open_matcher", "await_matcher", "decode"]
    assert grammar_crossings(**kept) == crossed


def test_forced_tokens_cross_once_for_all_of_them() -> None:
    assert grammar_crossings(regex="abcdefghijklmno[0-9]{2}") == [
        *("open_matcher", "await_matcher", "advance_matcher"),
        *("decode", "advance_matcher"),
    ]
