"""Distributions token by token: the step that goes on from the last one, and what keeps it from doing so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inferlet_sdk import Context, Dist, DistSampler, IgnoreStopTokens, InvalidArgument, WorkerFailed, traits
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import NativeHost, expected, install, nothing_held, refuse


async def steps(context: Context, count: int, **options: Any) -> None:
    for _ in range(count):
        context.fill([(await context.next_dist(**options)).max_index()])


async def _fork(context: Context) -> None:
    other = context.fork()
    await steps(other, 2)
    other.close()


async def _truncate(context: Context) -> None:
    tokens = list(context.tokens)
    context.truncate(len(tokens) - 3)
    context.fill(tokens[-3:])


async def _task(context: Context) -> None:
    waiting = asyncio.create_task(asyncio.sleep(1000))
    await steps(context, 2)
    waiting.cancel()


async def _other_context(context: Context) -> None:
    with Context() as other:
        await steps(other.fill("zz"), 3)


async def _generate(context: Context) -> None:
    await context.generate_until(max_tokens=3)


async def _nothing(context: Context) -> None:
    pass


async def _other_temperature(context: Context) -> None:
    await steps(context, 1, temperature=0.5)


BETWEEN = [_nothing, _fork, _truncate, _task, _other_context, _generate, _other_temperature]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("page_size", [3, 16])
def test_the_tokens_are_the_same_whatever_comes_between(between: Callable[..., Any], page_size: int) -> None:
    install(page_size=page_size)

    async def main() -> list[int]:
        context = Context().fill("abc")
        await steps(context, 7)
        await between(context)
        await steps(context, 7)
        return list(context.tokens)

    tokens = run(main())
    assert tokens == [97, 98, 99, *expected([97, 98, 99], len(tokens) - 3)]
    assert len(tokens) >= 17


@pytest.mark.parametrize("within", [True, False])
def test_a_forward_of_the_program_on_its_queue_is_no_step_of_the_context(within: bool) -> None:
    install()
    context = Context().fill("abc")

    async def forward() -> None:
        queue = context.queue
        pages, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 2)
        await traits.forward_with_dist(queue, [65], [0], embeds[:1], pages, pages, embeds[1])

    async def choose(dist: Dist) -> int:
        await forward()
        return dist.max_index()

    async def main() -> None:
        if within:
            await context.generate_until(IgnoreStopTokens(), 6, sampler=DistSampler(choose))
            return
        for _ in range(6):
            await forward()
            await steps(context, 1)

    run(main())
    assert list(context.tokens) == [97, 98, 99, *expected([97, 98, 99], 6)]


def test_contexts_in_turn_go_on_each_for_itself() -> None:
    host = install(page_size=100)

    async def main() -> list[list[int]]:
        contexts = [Context().fill(letter) for letter in "abc"]
        for context in contexts:
            await steps(context, 2)
        del host.calls[:]
        for _ in range(5):
            for context in contexts:
                await steps(context, 1)
        return [list(context.tokens) for context in contexts]

    assert run(main()) == [[first, *expected([first], 7)] for first in (97, 98, 99)]
    assert host.calls == ["continue_with_dist"] * 15


@pytest.mark.parametrize("ran", [True, False])
def test_a_step_that_fails_runs_again(ran: bool) -> None:
    host = install(page_size=4)
    go_on = host.fused.continue_with_dist

    def broken(queue: int, token: int) -> Any:
        if ran:
            go_on(queue, token)
        host.fused.continue_with_dist = go_on
        raise refuse("worker-failed", "the worker is broken")

    async def main() -> list[int]:
        context = Context().fill("abc")
        await steps(context, 6)
        host.fused.continue_with_dist = broken
        with pytest.raises(WorkerFailed):
            await context.next_dist()
        await steps(context, 6)
        return list(context.tokens)

    assert run(main()) == [97, 98, 99, *expected([97, 98, 99], 12)]


def test_long_lists_of_pages_go_with_each_step() -> None:
    host = install(page_size=1)

    async def main() -> list[int]:
        contexts = [Context().fill("abc"), Context().fill("abc")]
        for _ in range(90):  # their pages lie between each other's
            for context in contexts:
                await steps(context, 1)
        return list(contexts[0].tokens)

    assert run(main()) == [97, 98, 99, *expected([97, 98, 99], 90)]
    assert "continue_with_dist" in host.calls
    assert host.calls[-1] != "continue_with_dist"


@pytest.mark.parametrize("position", [0, 40])
def test_a_step_with_an_adapter_is_one_call_like_any_other(position: int) -> None:
    """Of distributions, and of tokens that are asked for one by one."""
    host = install(page_size=100, adapters=["poet"])

    async def main() -> list[list[int]]:
        by_dist = Context(adapter="poet", position=position).fill("abc")
        await steps(by_dist, 2)
        del host.calls[:]
        await steps(by_dist, 6)
        assert host.calls == ["continue_with_dist"] * 6
        one_by_one = Context(adapter="poet", position=position).fill("abc")
        generation = one_by_one.generate(8, stop=IgnoreStopTokens(), run_ahead=False)
        await anext(generation)
        del host.calls[:]
        async for _ in generation:
            pass
        assert host.calls.count("forward") == 7
        assert not {"embed_txt", "sample"} & set(host.calls)
        at_once = Context(adapter="poet", position=position).fill("abc")
        await at_once.generate_until(IgnoreStopTokens(), 8)
        return [list(one.tokens) for one in (by_dist, one_by_one, at_once)]

    by_dist, one_by_one, at_once = run(main())
    assert by_dist == one_by_one == at_once
    assert at_once != [97, 98, 99, *expected([97, 98, 99], 8)]


def test_more_tokens_than_the_model_gives_are_refused_as_such(host: NativeHost) -> None:
    with Context().fill("abc") as ctx:
        asks = ctx.next_dist(99_999_999), ctx.score("ab", alternatives=99_999_999)
        for asked in asks:
            with pytest.raises(InvalidArgument, match="k is 99999999; it must lie between 0"):
                run(asked)


def test_a_chosen_token_whose_scores_are_cancelled_is_the_next_one(host: NativeHost) -> None:
    asked = list[int]()

    def choose(dist: Dist) -> int:
        asked.append(dist.tokens[len(asked)])
        return asked[-1]

    async def main() -> None:
        ctx = Context().fill("abc")
        generation = ctx.generate(2, sampler=DistSampler(choose), logprobs=0)
        task = asyncio.ensure_future(anext(generation))
        while not asked:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await generation.whole()
        assert list(ctx.tokens)[3:] == asked
        ctx.close()

    run(main())
    assert nothing_held(host)
