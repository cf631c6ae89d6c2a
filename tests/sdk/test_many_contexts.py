"""A thousand contexts, and contexts that the program drops: what the inferlet holds, by `usage`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet_sdk import (
    Context,
    Exhausted,
    IgnoreStopTokens,
    InvalidArgument,
    InvalidState,
    QuotaExceeded,
    embed,
    gather,
    traits,
)
from inferlet_sdk.dropped import _dropped, give_back
from inferlet_sdk.event_loop import run
from inferlet_sdk.sequences.queues import KEPT_QUEUES
from tests.helpers.native_host import NativeHost, expected, install, nothing_held, refuse


def held() -> tuple[int, int, int]:
    usage = traits.usage()
    return usage.pages, usage.embeds, usage.queues


def counting_queues(host: NativeHost) -> list[int]:
    """How many there are each time that one is created."""
    counts: list[int] = []
    create_queue = host.core.create_queue

    def counting(model: str) -> int:
        queue: int = create_queue(model)
        counts.append(len(host.queues))
        return queue

    host.core.create_queue = counting
    return counts


def test_idle_contexts_hold_no_queues_and_no_embeds() -> None:
    install()
    contexts = [Context().fill("abc") for _ in range(1000)]
    assert held() == (0, 0, 0)
    assert len(contexts[0]) == 3  # tokenizing needs a queue, any
    assert traits.usage().queues == 1


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_tokens_that_cannot_run_leave_no_embeds(pooling: str) -> None:
    host = install()
    tokens = [97] * 40 + [10**6]
    with pytest.raises(InvalidArgument, match="1000000"), Context().fill(tokens) as ctx:
        run(ctx.sample())
    with pytest.raises(InvalidArgument, match="1000000"), Context().fill("a") as ctx:
        run(ctx.score(tokens * 2))
    with pytest.raises(InvalidArgument, match="1000000"):
        run(embed([tokens], pooling=pooling))
    assert nothing_held(host)


def test_a_thousand_forks_generate_at_once() -> None:
    host = install(page_size=16, max_pages=4096, num_pages=8192, num_embeds=16384, num_token_slots=16384)
    counts = counting_queues(host)
    root = Context().fill([97 + n % 26 for n in range(40)])

    async def main() -> list[bool]:
        forks = [root.fork() for _ in range(1000)]
        assert traits.usage().queues == 1
        prompt = list(root.tokens)

        async def branch(fork: Context, token: int) -> bool:
            fork.fill([token])
            await fork.generate_until(IgnoreStopTokens(), max_tokens=3)
            return list(fork.tokens) == [*prompt, token, *expected([*prompt, token], 3)]

        right = await gather(*(branch(fork, 97 + n % 100) for n, fork in enumerate(forks)))
        for fork in forks:
            fork.close()
        return right

    assert all(run(main()))
    assert max(counts) == 192  # three quarters: the program may want some
    root.close()
    assert nothing_held(host)


def recording_queues(host: NativeHost) -> dict[int, set[int]]:
    """The queues on which each single token is run from now on, by token."""
    used: dict[int, set[int]] = {}
    forward = host.forward.forward

    def recording(queue: int, *rest: Any) -> int:
        if tokens := rest[4]:
            used.setdefault(tokens[0], set()).add(queue)
        future: int = forward(queue, *rest)
        return future

    host.forward.forward = recording
    return used


def test_branches_that_run_at_once_have_queues_of_their_own_and_come_back_to_them() -> None:
    host = install()
    used = recording_queues(host)

    async def main() -> None:
        contexts = [Context() for _ in range(10)]
        for _ in range(3):
            await gather(*(context.fill([97 + n]).next_dist() for n, context in enumerate(contexts)))

    run(main())
    assert [len(queues) for queues in used.values()] == [1] * 10
    assert len(set.union(*used.values())) == 10


@pytest.mark.parametrize("limit", [1, 2, 5, 40])
def test_few_queues_are_shared(limit: int) -> None:
    counts = counting_queues(install(max_queues=limit))

    async def main() -> list[bool]:
        contexts = [Context().fill([97 + n]) for n in range(12)]
        await gather(*(context.generate_until(IgnoreStopTokens(), max_tokens=4) for context in contexts))
        return [list(c.tokens) == [97 + n, *expected([97 + n], 4)] for n, c in enumerate(contexts)]

    assert all(run(main()))
    assert max(counts) <= limit


def test_the_queue_of_a_context_is_its_own() -> None:
    host = install()
    ctx, others = Context(), [Context() for _ in range(3)]
    queue = ctx.queue
    traits.set_queue_priority(ctx, 3)
    used = recording_queues(host)

    async def main() -> None:
        await gather(*(context.fill([97 + n]).next_dist() for n, context in enumerate([ctx, *others])))

    run(main())
    assert used.pop(97) == {ctx.queue} == {queue}
    assert queue not in set.union(*used.values())
    ctx.close()
    assert queue not in host.queues  # its priority must not pass to another
    with pytest.raises(InvalidState, match="closed"):
        _ = ctx.queue


def test_the_queue_of_a_context_that_has_worked_is_its_own() -> None:
    host = install()
    ctx = Context().fill("abc")
    run(ctx.sample())
    queue = ctx.queue
    used = recording_queues(host)
    run(ctx.fill([97]).next_dist())
    assert used == {97: {queue}}
    ctx.close()
    assert nothing_held(host)


def test_the_queue_of_a_context_that_generates_becomes_its_own() -> None:
    host = install()
    ctx = Context().fill("abc")
    pieces = iter(ctx.generate(stop=IgnoreStopTokens(), max_tokens=5))
    next(pieces)
    (queue,) = host.queues
    assert ctx.queue == queue
    list(pieces)
    assert list(ctx.tokens)[3:] == expected([97, 98, 99], 5)
    ctx.close()
    assert nothing_held(host)


def test_a_context_that_finds_no_queue_can_be_closed_later() -> None:
    host = install(max_queues=2)
    ctx = Context().fill("abc")
    child = ctx.fork()
    next(iter(ctx.generate(stop=IgnoreStopTokens())))
    assert ctx.queue in host.queues  # takes the only queue there is
    other = traits.create_queue("toy")
    with pytest.raises(QuotaExceeded, match="the limit is 2"):
        child.close()
    traits.destroy_queue(other)
    child.close()
    ctx.close()
    assert nothing_held(host)


def test_who_comes_after_a_closed_context_takes_what_its_queue_has() -> None:
    host = install()
    root = Context(share=False).fill("abcdef")

    async def ask(token: int) -> bool:
        async with root.fork().fill([token]) as call:
            await call.generate_until(IgnoreStopTokens(), max_tokens=3)
            return list(call.tokens) == [*b"abcdef", token, *expected([*b"abcdef", token], 3)]

    assert run(ask(65))
    calls = len(host.calls)
    assert all(run(ask(66 + n)) for n in range(5))
    made = host.calls[calls:]
    assert {"create_queue", "create_sampler", "embed_txt"}.isdisjoint(made)
    assert made.count("alloc") == made.count("dealloc") == 5, "pages alone"
    root.close()
    assert nothing_held(host)


def test_of_the_queues_of_closed_contexts_a_few_are_kept() -> None:
    host = install()
    root = Context(share=False).fill("abcdef")

    async def main() -> None:
        forks = [root.fork().fill([65 + n]) for n in range(12)]
        await gather(*(fork.generate_until(IgnoreStopTokens(), max_tokens=3) for fork in forks))
        for fork in forks:
            fork.close()

    run(main())
    assert len(host.queues) == 1 + KEPT_QUEUES
    root.close()
    assert nothing_held(host)


# ---- dropped ----


def test_dropped_forks_give_everything_back() -> None:
    """The case of the review: 50 dropped forks held 51 queues and 54 pages."""
    install()
    ctx = Context().fill("a" * 40)

    async def main() -> tuple[int, int, int]:
        for _ in range(50):
            await ctx.fork().generate_until(max_tokens=2)
        return held()

    pages, embeds, queues = run(main())
    assert pages <= 40 / 4 + 4
    assert embeds <= 4
    assert queues <= 2
    ctx.close()
    assert held() == (0, 0, 0)


def test_a_dropped_context_whose_generation_goes_on_lives() -> None:
    install()
    pieces = []
    for piece in Context().fill("abc").generate(stop=IgnoreStopTokens(), max_tokens=9):
        gc.collect()
        give_back()
        pieces.append(piece)
    assert len(pieces) >= 5
    assert held() == (0, 0, 0)


def test_a_generation_that_is_broken_off_and_dropped_gives_all_back() -> None:
    host = install()

    async def main() -> None:
        async for _ in Context().fill("abc").generate(stop=IgnoreStopTokens(), max_tokens=9):
            break

    run(main())
    give_back()
    assert nothing_held(host)


def test_a_cycle_with_a_generation_gives_all_back() -> None:
    host = install()

    class Node:
        def __init__(self) -> None:
            self.context = Context().fill("abc")
            self.generation = self.context.generate(stop=IgnoreStopTokens())
            self.itself = self

    node = Node()
    next(iter(node.generation))
    assert not nothing_held(host)
    del node
    gc.collect()
    give_back()
    assert nothing_held(host)


def test_a_task_that_is_cancelled_and_forgotten_gives_all_back() -> None:
    host = install()

    async def main() -> None:
        task = asyncio.create_task(Context().fill("abc").generate_until(IgnoreStopTokens(), max_tokens=50))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())
    gc.collect()
    give_back()
    assert nothing_held(host)


def test_a_fork_without_a_page_for_its_text_gives_all_back() -> None:
    host = install(max_pages=2)
    ctx = Context().fill("abcdefg")
    run(ctx.flush())
    ctx.truncate(7)
    forks = [ctx.fork() for _ in range(3)]
    assert host.pages == 2
    sampled = [run(fork.sample()) for fork in forks]
    for fork in forks:
        fork.fill("x")
        with pytest.raises(QuotaExceeded):
            run(fork.sample())  # no page for the copy of the last one
    ctx.close()
    forks.pop().close()
    forks.pop().close()
    assert sampled[:1] * 3 == sampled
    assert len({run(fork.sample()) for fork in forks[:1]}) == 1, "it may write once there is room"
    for fork in forks:
        fork.close()
    give_back()
    assert nothing_held(host)


def test_what_another_host_gave_is_not_given_to_this_one() -> None:
    install()
    ctx = Context().fill("abc")
    run(ctx.flush())
    host = install()
    del ctx
    give_back()
    assert host.calls == []
    assert not _dropped


def test_finalizers_call_nothing() -> None:
    """They may run in the middle of any call to the host, while the books are half written."""
    host = install()
    ctx = Context().fill("abc")
    run(ctx.flush())
    calls = len(host.calls)
    reference = weakref.ref(ctx)
    del ctx
    assert reference() is None
    assert len(host.calls) == calls
    give_back()
    assert nothing_held(host)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_contexts_dropped_at_any_call_leave_the_others_right(data: st.DataObject) -> None:
    """Garbage is collected within calls to the host: whatever is dropped, the rest stays a correct text, and in the end
    nothing is held."""
    host = install()
    alive = [Context().fill("abcde")]
    doomed: list[Context] = []
    names = (
        "alloc",
        "copy_kvpage",
        "forward",
        "embed_txt",
        "dealloc",
        "trim_kvpage",
        "take_text",
        "wait",
    )
    at = data.draw(st.sets(st.integers(0, 80), max_size=20))
    count = 0

    def dropping(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count in at and doomed:
                doomed.pop()
                gc.collect(0)
            return real(*arguments)

        return call

    for function in names:
        for interface in (host.core, host.allocate, host.forward, host.input_text, host.fused):
            if hasattr(interface, function):
                setattr(interface, function, dropping(getattr(interface, function)))
    for _ in range(data.draw(st.integers(1, 10))):
        ctx = alive[data.draw(st.integers(0, len(alive) - 1))]
        match data.draw(st.sampled_from(["generate", "fork", "doom", "cut", "break"])):
            case "generate":
                before = list(ctx.tokens)
                run(ctx.generate_until(IgnoreStopTokens(), max_tokens=3))
                assert list(ctx.tokens) == before + expected(before, 3)
            case "fork":
                alive.append(ctx.fork())
            case "break":
                next(iter(ctx.generate(stop=IgnoreStopTokens())))
            case "cut":
                ctx.truncate(data.draw(st.integers(1, len(ctx))))
            case "doom" if len(alive) > 1:
                alive.remove(ctx)
                doomed.append(ctx)
        del ctx
    doomed.clear()
    for ctx in alive:
        tokens = list(ctx.tokens)
        assert run(ctx.sample()) == expected(tokens, 1)[0]
        ctx.close()
    give_back()
    assert nothing_held(host)


# ---- long prompts ----


@pytest.mark.parametrize("limit", [100, 600, 3000])
def test_a_long_prompt_falls_back_to_what_embeds_there_are(limit: int) -> None:
    host = install(max_embeds=limit, max_context=5000, page_size=16)
    ctx = Context().fill([97] * 3000)
    assert run(ctx.next_dist()).max_index() in range(267)
    assert host.calls.count("forward") <= 3000 / 32
    ctx.close()
    assert nothing_held(host)


def test_a_prompt_waits_for_no_queue_that_is_gone_meanwhile() -> None:
    host = install(max_context=1000, page_size=16)
    contexts = [Context(share=False).fill([97] * 20) for _ in range(20)]
    for one in contexts[:14]:
        run(one.flush())
    ctx, alloc, refused = contexts.pop().fill([97] * 90), host.allocate.alloc, []

    def dropping(queue: int, kind: str, count: int) -> Any:
        if count == 78:
            refused.append(count)
            if len(refused) == 3:
                contexts.clear()  # the next call gives their queues back
            raise refuse("quota-exceeded", "none is left")
        return alloc(queue, kind, count)

    host.allocate.alloc = dropping
    with pytest.raises(QuotaExceeded, match="none is left"):
        run(ctx.score([97] * 40))
    assert len(refused) > 2


def test_idle_contexts_give_inputs_back_where_embeds_are_few() -> None:
    host = install(max_embeds=300, max_context=1000, page_size=16)

    async def main() -> bool:
        async with contextlib.AsyncExitStack() as stack:
            contexts = [await stack.enter_async_context(Context(share=False)) for _ in range(40)]
            for ctx in contexts:
                await ctx.fill([97] * 30).next_dist(2)
            found = [(await ctx.fill([98]).next_dist(2)).max_index() for ctx in contexts]
        return found == expected([97] * 30 + [98], 1) * 40

    assert run(main())
    assert nothing_held(host)


def test_prompts_at_once_wait_for_the_embeds_of_each_other() -> None:
    """Embeds that were given back count until the worker has read them."""
    host = install(max_embeds=400, max_context=1000, page_size=16)

    async def branch(n: int) -> bool:
        async with Context(share=False).fill([97 + (n + m) % 26 for m in range(90)]) as ctx:
            prompt, scored, drafts = list(ctx.tokens), [97 + n % 26] * 30, lambda _: [97] * 20
            if n % 2:
                return len(await ctx.score(scored)) == 30
            await ctx.generate_until(IgnoreStopTokens(), max_tokens=3, draft=drafts if n % 4 else None)
            return list(ctx.tokens) == [*prompt, *expected(prompt, 3)]

    async def main() -> list[bool]:
        return await gather(*map(branch, range(40)))

    assert all(run(main()))
    assert nothing_held(host)


def test_a_pool_without_embeds_says_so() -> None:
    install(max_embeds=20, max_context=5000, page_size=16)
    with pytest.raises((QuotaExceeded, Exhausted), match="the limit is 20"):
        run(Context().fill([97] * 3000).flush())


@pytest.mark.parametrize("length", [5, 8, 100])
def test_a_fork_and_its_first_token_cost_one_sample_and_nothing_else(length: int) -> None:
    host = install()
    ctx = Context(share=False).fill([97] * length)
    first = run(ctx.sample())
    pages, calls = host.pages, len(host.calls)
    forks = [ctx.fork() for _ in range(50)]
    assert len(host.calls) == calls
    assert host.pages == pages
    assert [run(fork.sample()) for fork in forks] == [first] * 50
    assert host.pages == pages
    assert {"forward", "copy_kvpage", "copy_emb", "embed_txt"}.isdisjoint(host.calls[calls:])
    for fork in forks:
        fork.close()
    assert host.pages == pages


def test_who_writes_behind_a_fork_copies_the_last_page_and_the_last_one_does_not() -> None:
    host = install()
    ctx = Context(share=False).fill(list(b"abcdef"))
    run(ctx.flush())
    forks = [ctx.fork() for _ in range(3)]
    calls = len(host.calls)
    texts = [run(one.fill(chr(65 + n)).generate_until(IgnoreStopTokens(), 6)) for n, one in enumerate([*forks, ctx])]
    assert host.calls[calls:].count("copy_kvpage") == 3
    plain = [Context(share=False).fill([*b"abcdef", 65 + n]) for n in range(4)]
    assert texts == [run(one.generate_until(IgnoreStopTokens(), 6)) for one in plain]


def test_the_pages_that_a_program_sees_are_its_own_to_write_to() -> None:
    host = install()
    ctx = Context(share=False).fill(list(b"abcdef"))
    run(ctx.flush())
    fork = ctx.fork()
    assert set(ctx.pages[-1:]).isdisjoint(fork.pages[-1:])
    assert ctx.pages[:1] == fork.pages[:1]
    for one in (ctx, fork):
        one.close()
    assert nothing_held(host)
