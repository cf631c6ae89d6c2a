"""Speculative generation: the same text, whatever the drafts, and fewer forwards when they are right."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk import (
    Context,
    DistSampler,
    IgnoreStopTokens,
    InvalidState,
    MaxTokens,
    PromptLookup,
    Sampler,
    StopTokens,
)
from inferlet_sdk.dropped import give_back
from inferlet_sdk.event_loop import run
from inferlet_sdk.sequences.page_table import PageTable
from tests.helpers.native_host import install, nothing_held

PROMPT = list(b"the model")


@functools.cache
def plain(stop: str, count: int) -> list[int]:
    install()
    generation = Context().fill(PROMPT).generate(count, stop=STOPS[stop], run_ahead=False)
    run(generation.whole())
    return generation.tokens


def knowing(tokens: list[int], wrong_at: int = 10**6) -> Callable[[Sequence[int]], list[int]]:
    """A draft of the next five tokens that are known to come, one of which is wrong."""

    def draft(so_far: Sequence[int]) -> list[int]:
        done = len(so_far) - len(PROMPT)
        guess = tokens[done : done + 5]
        return [token + (done + n == wrong_at) for n, token in enumerate(guess)]

    return draft


def later(draft: Callable[[Sequence[int]], list[int]]) -> Callable[[Sequence[int]], Awaitable[list[int]]]:
    async def asked(so_far: Sequence[int]) -> list[int]:
        return draft(so_far)

    return asked


STOPS: dict[str, Any] = {
    "none": IgnoreStopTokens(),
    "token": [IgnoreStopTokens(), StopTokens(262, 100)],
    "string": "l",
    "model": None,
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", ["right", "wrong", "garbage", "nothing", "lookup", "async", "clearing"])
def test_drafts_change_nothing_but_the_number_of_forwards(stop: str, kind: str) -> None:
    expected = plain(stop, 40)
    known = plain("none", 60)
    draft: Any = {
        "right": knowing(known), "wrong": knowing(known, 7), "garbage": lambda tokens: [0, 1, 2],
        "nothing": lambda tokens: (), "lookup": PromptLookup(), "async": later(knowing(known, 7)),
        "clearing": lambda tokens: tokens.clear(),
    }[kind]  # fmt: skip
    host = install()
    ctx = Context().fill(PROMPT)
    generation = ctx.generate(40, stop=STOPS[stop], draft=draft)
    text = "".join(generation)
    assert generation.tokens == expected
    assert ctx.tokens == (*PROMPT, *expected)
    assert text.startswith(generation.text[: len(text)])
    if kind == "right" and stop == "none":
        assert host.calls.count("verify") == 7
    after = run(ctx.generate_until(IgnoreStopTokens(), 3, run_ahead=False))
    install()
    other = Context().fill([*PROMPT, *expected])
    assert after == run(other.generate_until(IgnoreStopTokens(), 3))


@pytest.mark.parametrize("alternatives", [0, 2])
@pytest.mark.parametrize("stop", ["none", "token", "string"])
def test_drafted_tokens_have_the_same_log_probabilities(stop: str, alternatives: int) -> None:
    known = plain("none", 60)
    found = []
    for draft in (None, knowing(known, 7)):
        install()
        generation = Context().fill(PROMPT).generate(30, stop=STOPS[stop], logprobs=alternatives, draft=draft)
        run(generation.whole())
        scores = [(one.logprob, [token for token, _ in one.alternatives][:1]) for one in generation.logprobs]
        found.append((generation.tokens, scores))
    assert found[0] == found[1]
    assert [len(one.alternatives) for one in generation.logprobs] == [alternatives] * len(generation.tokens) != []


@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"regex": "[a-z]{20}"}])
@pytest.mark.parametrize("turns", [1, 400])
def test_a_seeded_text_goes_on_where_a_wait_for_it_was_cancelled(turns: int, options: dict[str, Any]) -> None:
    def tokens(cancels: int) -> list[int]:
        host = install()

        async def main() -> list[int]:
            ctx = Context().fill(PROMPT)
            draft = knowing(plain("none", 60), 7)
            generation = ctx.generate(20, stop=IgnoreStopTokens(), sampler=Sampler(seed=5), draft=draft, **options)
            await anext(generation)
            for _ in range(cancels):
                task = asyncio.ensure_future(anext(generation, ""))
                await asyncio.sleep(0)
                host.settle(turns)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await generation.whole()
            ctx.close()
            return generation.tokens

        found = run(main())
        assert nothing_held(host)
        return found

    plain("none", 60)
    assert tokens(cancels=3) == tokens(cancels=0)


def test_all_is_given_back_however_it_ends() -> None:
    host = install()
    ctx = Context().fill(PROMPT)
    for _ in ctx.generate(30, stop=IgnoreStopTokens(), draft=lambda tokens: [1] * 8):
        break
    ctx.fill("more")
    assert run(ctx.generate_until(MaxTokens(3), draft=PromptLookup())) is not None
    ctx.close()
    assert nothing_held(host)


def test_a_draft_ends_with_the_context_of_the_model() -> None:
    install(max_context=len(PROMPT) + 6)
    ctx = Context().fill(PROMPT)
    generation = ctx.generate(stop=IgnoreStopTokens(), draft=lambda tokens: [5] * 63)
    run(generation.whole())
    assert (len(ctx), generation.stop_reason) == (len(PROMPT) + 6, "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": Sampler(frequency_penalty=0.5)}, "a sampler with penalties cannot check a draft"),
        ({"sampler": DistSampler(lambda dist: dist.tokens[0])}, "drafts need a sampler of the host"),
        ({"sampler": Sampler(window=-1)}, "window: -1"),
    ],
)
def test_what_cannot_be_drafted_is_told(options: dict[str, Any], message: str) -> None:
    host = install()
    with Context().fill(PROMPT) as ctx, pytest.raises(ValueError, match=message):
        run(ctx.generate(draft=PromptLookup(), **options).whole())
    assert nothing_held(host)


def test_embeds_go_back_whatever_the_program_drops_first() -> None:
    host = install()
    ctx = Context().fill(PROMPT)
    generation = ctx.generate(9, draft=PromptLookup())
    run(anext(generation))
    ctx._sequence.close()  # as garbage of a cycle may be
    generation.end()
    assert nothing_held(host)


def test_a_draft_may_be_no_guess_and_has_to_be_tokens() -> None:
    host = install()
    with Context().fill(PROMPT) as ctx:
        plain = run(ctx.fork().generate_until(IgnoreStopTokens(), 9))
        assert run(ctx.fork().generate_until(IgnoreStopTokens(), 9, draft=lambda tokens: None)) == plain
        with pytest.raises(TypeError, match="draft: give a list, each item a token id"):
            run(ctx.generate_until(draft=lambda tokens: 5))  # type: ignore[arg-type, return-value]
    give_back()  # the forks
    assert nothing_held(host)


def test_an_empty_context_cannot_be_drafted() -> None:
    install()
    with pytest.raises(InvalidState, match="the context is empty"):
        run(Context().generate_until(draft=PromptLookup()))


def test_a_wrong_draft_costs_nothing_for_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    host = install(max_context=2000)
    ctx = Context().fill("the model " * 50)
    run(ctx.generate_until(IgnoreStopTokens(), 2, draft=lambda tokens: [255, 255]))
    lists: list[int] = []
    update = PageTable._update

    def noted(table: PageTable) -> None:
        lists.append(len(table.pages))
        update(table)

    monkeypatch.setattr(PageTable, "_update", noted)
    run(ctx.generate_until(IgnoreStopTokens(), 20, draft=lambda tokens: [255, 255]))
    assert lists == []
    assert host.calls.count("trim_kvpage") >= 20
    ctx.close()
    assert nothing_held(host)


def test_prompt_lookup_finds_the_latest_longest_match() -> None:
    lookup = PromptLookup(match=2, length=3)
    assert lookup([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5]
    assert lookup([1, 2, 9, 7, 1, 2, 8, 1, 2]) == [8, 1, 2]
    assert lookup([5, 2, 9, 7, 1, 2]) == [9, 7, 1]
    assert lookup([1, 2, 3]) == ()
    assert lookup([1]) == ()


@given(st.lists(st.sampled_from([0, 1, 255, 256, 65536, 1 << 24]), max_size=40), st.integers(1, 4))
def test_prompt_lookup_finds_what_a_plain_search_finds(tokens: list[int], match: int) -> None:
    """Also where the bytes of tokens look alike between two of them."""

    def plain() -> Sequence[int]:
        for size in range(min(match, len(tokens) - 1), 0, -1):
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == tokens[-size:]:
                    return tokens[start + size : start + size + 3]
        return ()

    assert PromptLookup(match, 3)(tokens) == plain()
