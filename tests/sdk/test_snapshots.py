"""Snapshots: a context that goes on elsewhere as the first one does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferlet_sdk import Context, IgnoreStopTokens, InvalidArgument, NotFound
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import install, nothing_held


def following(ctx: Context) -> tuple[Any, ...]:
    """What a context gives from now on, in all that shows a difference."""
    texts = []
    for question in ("and then?", "why?"):
        ctx.fill_chat("user", question)
        texts.append(run(ctx.generate_until(IgnoreStopTokens(), 6)))
    return (ctx.tokens, *texts, run(ctx.next_dist(3)).tokens)


def make(kind: str) -> Context:
    ctx = Context(position=3 if kind == "position" else 0)
    if kind == "filled":
        return ctx.fill("not run yet").fill(" <|end|>", special_tokens=False)
    ctx.fill_chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "say something"}])
    run(ctx.generate_until(IgnoreStopTokens(), 20))
    if kind in ("dropped", "cut"):
        ctx.drop(3, 12)
        run(ctx.generate_until(IgnoreStopTokens(), 5))
        ctx.window(12, sink=2)
        run(ctx.generate_until(IgnoreStopTokens(), 3))
    if kind == "cut":
        ctx.truncate(len(ctx) - 6).fill("xy")
    return ctx


@pytest.mark.parametrize("kind", ["filled", "chat", "position", "dropped", "cut"])
def test_a_restored_context_goes_on_as_the_first_one(kind: str) -> None:
    host = install()
    ctx = make(kind)
    kept = ctx.snapshot()
    expected = following(ctx)
    again = Context.restore(kept)
    assert again.snapshot() == kept
    assert following(again) == expected
    fork = Context.restore(kept).fork()
    assert following(Context.restore(fork.snapshot())) == expected
    del fork
    for one in (ctx, again):
        one.close()
    other = install()
    assert following(Context.restore(kept)) == expected
    assert other is not host


CHANGED: list[tuple[str, Any]] = [
    ("model", 5), ("adapter", None), ("position", 1.5), ("share", "yes"), ("tokens", "abc"), ("tokens", [-1]),
    ("drops", [[3, 12]]), ("drops", [[3, 2**40, 5, 0]]), ("drops", 5), ("images", 5), ("images", [["photo", 1]]),
    ("conversation", None), ("conversation", {}), ("conversation", {"messages": [5]}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), CHANGED)
def test_a_snapshot_that_a_client_has_changed_is_told(key: str, value: Any) -> None:
    host = install()
    with make("dropped") as ctx:
        kept = json.loads(ctx.snapshot())
    if isinstance(value, dict):
        value = kept["conversation"] | value if value else value
    with pytest.raises(InvalidArgument, match="the snapshot was changed: give it as"):
        Context.restore(json.dumps(kept | {key: value}))
    assert nothing_held(host)


def test_a_generation_goes_on_while_it_is_kept() -> None:
    install()
    ctx = Context().fill("abc")
    generation, kept = ctx.generate(8, stop=IgnoreStopTokens(), run_ahead=False), []
    for _ in generation:
        kept.append(ctx.snapshot())
    assert len(generation.tokens) == 8
    resumed = Context.restore(kept[2])
    run(resumed.generate_until(IgnoreStopTokens(), 8 - (len(resumed) - 3)))
    assert resumed.tokens == ctx.tokens


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        ("", "this is no snapshot of a context"),
        ("[1]", "this is no snapshot of a context: give what `Context.snapshot` has made"),
        ('{"version": 99}', "the snapshot has version 99, and this SDK reads version 2"),
        ('{"version": 2, "model": "toy"}', "the snapshot lacks adapter, conversation, drops, .*tokens: give it as"),
    ],
)
def test_what_is_no_snapshot_is_told(snapshot: str, message: str) -> None:
    install()
    with pytest.raises(InvalidArgument, match=message):
        Context.restore(snapshot)
    with pytest.raises(TypeError, match="snapshot"):
        Context.restore(5)  # type: ignore[arg-type]


def test_what_is_not_there_any_more_is_told_and_nothing_is_held() -> None:
    host = install()
    kept = json.loads(make("chat").snapshot())
    with pytest.raises(NotFound):
        Context.restore(json.dumps(kept | {"model": "another"}))
    with pytest.raises(NotFound):
        Context.restore(json.dumps(kept | {"images": [["gone.png", 0, 2]]}))
    assert nothing_held(host)
