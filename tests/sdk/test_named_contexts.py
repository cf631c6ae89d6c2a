"""Contexts by name: what an export was made with, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inferlet_sdk import Context, IgnoreStopTokens, InvalidArgument, InvalidState, NotFound, traits
from inferlet_sdk.event_loop import run
from pie_inference.protocol import EmbedTxt, RunWave, WaveDone
from tests.helpers.native_host import install, nothing_held


def exported(adapter: str | None, name: str = "fox", text: str = "the quick brown fox") -> list[str]:
    """Exports a context; what it goes on with, and then one that was opened."""
    ctx = Context(adapter=adapter).fill(text)
    run(ctx.export(name))
    texts = [run(ctx.generate_until(IgnoreStopTokens(), 6))]
    ctx.close()
    return texts


def opened(adapter: str | None, name: str = "fox") -> list[str]:
    async def again() -> str:
        async with await Context.open(name, adapter=adapter) as ctx:
            return await ctx.generate_until(IgnoreStopTokens(), 6)

    return [run(again())]


def install_with_adapters() -> Any:
    return install(adapters=["law", "poems"])


@pytest.mark.parametrize("adapter", [None, "law"])
def test_a_context_is_opened_with_the_adapter_that_it_was_made_with(adapter: str | None) -> None:
    host = install_with_adapters()
    assert exported(adapter) == opened(adapter)
    assert nothing_held(host)


def test_an_opened_context_goes_on_behind_gaps_between_its_positions() -> None:
    host = install()

    async def texts() -> list[str]:
        async with Context().fill("the quick brown fox").drop(3, 9, close_gap=False) as gap, Context.join([gap]) as ctx:
            await ctx.export("fox")
            async with await Context.open("fox") as opened:
                return [await one.fill(" is").generate_until(IgnoreStopTokens(), 6) for one in (ctx, opened)]

    joined, opened = run(texts())
    assert joined == opened
    assert nothing_held(host)


def test_what_is_cut_before_a_gap_goes_on_where_it_ends() -> None:
    host = install()

    async def nexts() -> list[list[int]]:
        one, other = Context().fill("the quick"), Context(position=30).fill(" brown fox")
        joined = Context.join([one, other])
        await joined.export("fox")
        cut = [joined, joined.fork(), await Context.open("fox"), Context.restore(joined.snapshot())]
        whole = [one, *(part.truncate(len(one)) for part in cut)]
        found = [(await part.fill(" is").next_dist(5)).tokens for part in whole]
        for part in (*whole, other):
            part.close()
        return found

    one, *cut = run(nexts())
    assert cut == [one] * 4
    assert nothing_held(host)


@pytest.mark.parametrize("length", [7, 8])
def test_what_is_filled_behind_an_export_runs_alone(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host, ran = install(), list[int]()  # pages have 4 tokens
    run_wave = host.model.run

    def note(wave: RunWave) -> WaveDone:
        ran.extend(token for batch in wave.batches if isinstance(batch, EmbedTxt) for token in batch.tokens.tolist())
        return run_wave(wave)

    monkeypatch.setattr(host.model, "run", note)

    async def goes_on() -> str:
        async with await Context.open("fox") as ctx:
            ran.clear()
            await ctx.fill([5, 6, 7]).flush()
            assert ran == [5, 6, 7]
            return await ctx.generate_until(IgnoreStopTokens(), 6)

    with Context().fill(range(10, 10 + length)) as ctx:
        run(ctx.export("fox"))
        expected = run(ctx.fill([5, 6, 7]).generate_until(IgnoreStopTokens(), 6))
    assert [run(goes_on()) for _ in range(2)] == [expected] * 2
    assert nothing_held(host)


@pytest.mark.parametrize(
    ("made", "wanted", "message"),
    [
        ("law", None, "export 'fox' was made with adapter 'law': open it with adapter='law'"),
        ("law", "poems", "export 'fox' was made with adapter 'law': open it with adapter='law'"),
        (None, "law", "export 'fox' was made without an adapter: open it with adapter=None"),
    ],
)
def test_another_adapter_is_refused_by_name(made: str | None, wanted: str | None, message: str) -> None:
    host = install_with_adapters()
    exported(made)
    exported("poems", "foxes")
    with pytest.raises(InvalidState, match=message):
        opened(wanted)
    with pytest.raises(NotFound):
        opened(wanted, "fo")
    assert nothing_held(host)


@pytest.mark.parametrize("adapter", [None, "law"])
def test_what_is_made_while_it_is_looked_for_is_opened(adapter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    host = install_with_adapters()
    expected, looks = exported(adapter), traits.import_kvpage

    def too_early(_queue: int, name: str) -> Any:
        monkeypatch.setattr(traits, "import_kvpage", looks)
        raise NotFound(f"nothing is exported under {name!r}")

    monkeypatch.setattr(traits, "import_kvpage", too_early)
    assert opened(adapter) == expected
    assert nothing_held(host)


def test_an_older_export_makes_room_whatever_its_adapter_was() -> None:
    install_with_adapters()
    for adapter in ("law", None, "poems"):
        exported(adapter)
        exported("law", "fox and hound")
    queue = traits.create_queue("toy")
    names = {one.name for one in traits.list_exports(queue).result()}
    assert names == {"fox (adapter poems)", "fox and hound (adapter law)"}


def test_a_name_that_names_an_adapter_is_refused() -> None:
    install_with_adapters()
    with pytest.raises(InvalidArgument, match=r"'fox \(adapter law\)' names an adapter"):
        exported(None, "fox (adapter law)")


RULES = [{"role": "system", "content": "Be brief."}]


def weather(city: str) -> str:
    """Tells the weather."""
    return city


def keep_chat(messages: list[dict[str, str]], **options: Any) -> Context:
    ctx = Context().fill_chat(messages, **options)
    run(ctx.export("chat"))
    return ctx


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("options", [{}, {"variables": {"mood": "calm"}}, {"tools": [weather]}])
def test_a_chat_goes_on_behind_an_export_as_in_the_context_that_made_it(prompted: bool, options: Any) -> None:
    host = install(max_context=2000)
    first = keep_chat(RULES, add_generation_prompt=prompted, **options)
    second = run(Context.open("chat", messages=RULES, **options))
    for ctx in (first, second):
        run(ctx.fill_chat("user", "hello").generate_until(IgnoreStopTokens(), 5))
        ctx.fill_chat("user", "more")
    assert second.tokens == first.tokens
    first.close()
    second.close()
    assert nothing_held(host)


def test_what_is_behind_the_messages_of_an_export_is_a_reply() -> None:
    install(max_context=2000)
    first = Context().fill_chat("user", "hello")
    run(first.generate_until(IgnoreStopTokens(), 4))
    run(first.export("chat"))
    second = run(Context.open("chat", messages=[{"role": "user", "content": "hello"}]))
    assert second.fill_chat("user", "more").tokens == first.fill_chat("user", "more").tokens


def test_an_export_of_another_chat_is_not_found() -> None:
    host = install()
    keep_chat(RULES).close()
    with pytest.raises(NotFound, match="export 'chat' does not begin with these messages: fill a new context"):
        run(Context.open("chat", messages=[{"role": "system", "content": "Be long."}]))
    with pytest.raises(TypeError, match="messages"):
        run(Context.open("chat", messages=["Be brief."]))  # type: ignore[list-item]
    assert nothing_held(host)


def test_many_contexts_are_opened_at_once() -> None:
    """More than results of the largest size fit."""
    host = install()

    async def main() -> None:
        async with Context().fill("abcdefg") as ctx:
            await ctx.export("x")
            wanted = ctx.tokens
        tasks = [asyncio.ensure_future(Context.open("x")) for _ in range(150)]
        await asyncio.sleep(0)
        for task in tasks[:10]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        opened = [one for one in found if isinstance(one, Context)]
        assert len(opened) == 140
        assert all(one.tokens == wanted for one in opened)
        for one in opened:
            one.close()

    run(main())
    assert nothing_held(host)
