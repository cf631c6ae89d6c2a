"""Best of several and beam search outside of the sandbox: what counts, what is given back, and what others do
meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inferlet_sdk import Context, IgnoreStopTokens, QuotaExceeded, Sampler, StopTokens, embed, traits
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import NativeHost, install, nothing_held, refuse
from tests.helpers.scripted_model import STOP

WARM = Sampler(seed=3, temperature=2.0)


@pytest.mark.parametrize(
    "stop", [[StopTokens(*range(0, 256, 2)), IgnoreStopTokens()], [chr(n) for n in range(0, 256, 2)]]
)
def test_a_continuation_without_tokens_is_as_likely_as_what_ended_it(stop: Any) -> None:
    host = install()
    ctx = Context().fill("abc")
    single = [run(ctx.score([token]))[0] for token in range(256)]
    found = run(ctx.best_of(8, 6, sampler=WARM, stop=stop))
    empty = [one.score for one in found if not one.tokens]
    assert 0 < len(empty) < len(found)
    assert all(any(abs(score - one) < 1e-4 for one in single) for score in empty)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    ctx.close()
    assert nothing_held(host)


def test_a_score_that_is_no_number_is_the_worst() -> None:
    install()
    scores = iter([1.0, float("nan"), 3.0, float("nan"), 0.0])
    found = run(Context().fill("abc").best_of(5, 3, sampler=WARM, score=lambda _: next(scores)))
    assert [one.score for one in found] == [3.0, 1.0, 0.0, float("-inf"), float("-inf")]


@pytest.mark.parametrize("alternatives", [None, 2])
def test_scores_that_nobody_waits_for_any_more_are_given_up(alternatives: Any) -> None:
    host = install()

    async def main() -> None:
        async with Context().fill("abc") as ctx:
            task = asyncio.ensure_future(ctx.score("defgh", alternatives=alternatives))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())
    assert nothing_held(host)


@pytest.mark.parametrize("name", ["best_of", "beam"])
def test_more_continuations_than_there_are_pages_are_refused_at_once(name: str) -> None:
    host = install(max_pages=200)
    with Context().fill("abcd") as ctx:
        run(ctx.flush())
        del host.calls[:]
        with pytest.raises(QuotaExceeded, match="each of 201 continuations takes a page, and an inferlet may have 200"):
            run(getattr(ctx, name)(201, 2))
        assert host.calls == ["usage"]
        with pytest.raises(ValueError, match="count: 1000000000 is not between 1 and 2000"):
            run(ctx.best_of(10**9, 1))
        assert len(run(ctx.best_of(201, 1))) == 201


def test_a_pool_that_is_smaller_than_the_quota_is_what_an_inferlet_may_have() -> None:
    install(num_pages=140, num_embeds=300)
    assert (traits.usage().max_pages, traits.usage().max_embeds) == (12, 300)
    for pooling in ("last", "mean"):
        assert len(run(embed(["the model is here"] * 60, pooling=pooling))) == 60  # as many at a time as fit
    with Context().fill("abcd") as ctx, pytest.raises(QuotaExceeded, match="an inferlet may have 12: ask for fewer"):
        run(ctx.best_of(200, 5))


def test_scores_that_are_refused_leave_nothing(host: NativeHost) -> None:
    asked, calls = host.output_text.get_logprobs, iter([True, False])

    def refused(*given: Any) -> Any:
        if next(calls):
            return asked(*given)
        raise refuse("quota-exceeded", "too many futures")

    host.output_text.get_logprobs = refused
    with Context().fill("abc") as ctx, pytest.raises(QuotaExceeded, match="too many futures"):
        run(ctx.score("defgh"))
    assert nothing_held(host)


def test_a_sample_that_is_refused_raises_its_error(host: NativeHost) -> None:
    def refused(*_: Any) -> Any:
        raise refuse("quota-exceeded", "too many futures")

    host.fused.sample = refused
    with Context().fill("abc") as ctx, pytest.raises(QuotaExceeded, match="too many futures"):
        run(ctx.sample())
    assert nothing_held(host)


def test_where_one_fails_the_others_end() -> None:
    host = install(max_context=4000)
    ctx = Context().fill("abcdefgh")

    def judge(text: str) -> float:
        raise ZeroDivisionError(text)

    async def main() -> tuple[int, int]:
        with pytest.raises(ZeroDivisionError):
            await ctx.best_of(4, 3000, sampler=WARM, stop=["et", "ab"], score=judge)
        return host.runs, len(asyncio.all_tasks())

    assert run(main()) == (0, 1)
    ctx.close()
    assert nothing_held(host)


def test_what_another_task_fills_meanwhile_stays() -> None:
    host = install(next_token=lambda state: STOP if len(state) > 40 else 97 + len(state) % 26)

    async def main(search: Any) -> str:
        async with Context().fill("hello") as ctx:
            task = asyncio.create_task(search(ctx))
            while not host.futures:
                await asyncio.sleep(0)
            assert ctx.fill("XYZ").text == "helloXYZ"
            found = await task
            assert ctx.text == "helloXYZ" + found[0].text
            return str(found[0].text)

    assert run(main(lambda ctx: ctx.beam(2, 6, stop=[])))
    assert run(main(lambda ctx: ctx.best_of(2, 6)))
    assert nothing_held(host)
