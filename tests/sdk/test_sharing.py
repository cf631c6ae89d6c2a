"""What contexts offer to others that are filled with the same tokens, and what they keep to themselves."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from inferlet_sdk import Context
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import install

TEXT = [97 + n * n % 26 for n in range(300)]


@pytest.fixture(autouse=True)
def _host() -> None:
    install(max_context=1024)


def found(tokens: list[int], share: bool | str = True) -> int:
    """How many first tokens of a text are there before it runs."""
    with Context(share=share).fill(tokens) as ctx:
        run(ctx.sample())
        return ctx.found


def joined() -> Context:
    return Context.join([Context().fill(TEXT[:200]), Context().fill(TEXT[200:])])


def joined_behind_dropped_tokens() -> Context:
    return Context.join([Context().fill(TEXT[:100]).fill(TEXT).drop(0, 100)])


def opened() -> Context:
    whole = joined()
    run(whole.export("joined"))
    return run(Context.open("joined"))


def forked() -> Context:
    return joined().fork()


@pytest.mark.parametrize("make", [joined, joined_behind_dropped_tokens, opened, forked])
def test_keys_that_did_not_see_all_before_them_are_offered_to_nobody(make: Callable[[], Context]) -> None:
    ctx = make().fill([65])
    assert list(ctx.tokens) == [*TEXT, 65]
    run(ctx.sample())
    ctx.keep()
    assert run(ctx.pin(60)) == 0
    run(ctx.flush())
    assert found([*TEXT, 66]) == 0


def restarted(ctx: Context) -> Context:
    return ctx.restarted(300)


def restored(ctx: Context) -> Context:
    return Context.restore(ctx.snapshot())


@pytest.mark.parametrize("copy", [restarted, restored])
@pytest.mark.parametrize("share", [True, False, "one user"])
def test_a_copy_shares_with_whom_the_context_does(copy: Callable[[Context], Context], share: bool | str) -> None:
    ctx = copy(Context(share=share).fill(TEXT))
    run(ctx.sample())
    for other in (True, "one user", "another"):
        assert (found(TEXT, other) > 0) == (other == share)


def test_a_snapshot_of_before_can_be_read() -> None:
    kept = json.loads(Context().fill(TEXT).snapshot())
    del kept["shared_with"]
    run(Context.restore(json.dumps(kept)).sample())
    assert found(TEXT) > 0


def test_what_has_not_run_is_kept_and_pinned() -> None:
    Context().fill(TEXT).keep()
    assert found([*TEXT, 65]) == 296  # the last token has not run
    ctx = Context().fill([*TEXT, *TEXT])
    assert run(ctx.pin(60)) == 600
    assert ctx.found == 300
    assert found([*TEXT, *TEXT, 65]) == 600
    run(ctx.generate_until(max_tokens=3))
    ctx.fill(TEXT)
    ctx.keep()
    assert found([*ctx.tokens, 65]) == (len(ctx) - 1) // 4 * 4


def test_what_is_not_shared_does_not_run_to_be_kept() -> None:
    host = install(max_context=1024)
    for ctx in (Context(share=False).fill(TEXT), Context().fill(TEXT[:200])):
        ctx.keep()
        assert run(ctx.pin(60)) == 0
    assert host.model.rows == 0


def test_a_fork_shares_a_prompt_that_was_run_before() -> None:
    run(Context().fill(TEXT).flush())
    ctx = Context().fill([*TEXT, 65])
    run(ctx.flush())
    assert ctx.fork().found == 296
