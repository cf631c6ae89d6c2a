"""A wrong argument of any call is a TypeError or ValueError that names the parameter, before the host is asked: the
generated bindings would end the inferlet."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk import Context, Embeds, Pages, Slots, bindings, traits
from inferlet_sdk.event_loop import run
from inferlet_sdk.futures import HostFuture, TokenFuture
from inferlet_sdk.traits import DecodeRun
from tests.helpers.fake_host import FakeHost, HostError
from tests.sdk import test_wrong_types

U32 = 2**32


async def _coroutine() -> int:
    return 1


class _Strange:
    def __repr__(self) -> str:
        return "strange" * 100


NO_NUMBER = [None, "5", 1.0, math.nan, b"1", [], {}, object(), True, _Strange(), int, -1, U32, -(10**30)]
NO_LIST = [None, 5, "abc", 1.5, b"ab", {1: 2}, object()]
NO_U32_LIST = [*NO_LIST, ["a"], [1, None], [1.5], [-1], [U32], [1, [2]], [Embeds((1, 1))]]
NO_TEXT = [None, 5, b"abc", ["a"], "\ud800", "ok\udfff"]
NO_FLOAT = [None, "1", [], True, object(), 10**400]
NO_CHAT = [None, 5, "text", [5], ["x"], [None], [{"content": {1, 2}}], {"role": "user"}]
WRONG: dict[str, list[Any]] = {
    "queue": [*NO_NUMBER, Pages((1, 1))],
    "count": NO_NUMBER,
    "keep": NO_NUMBER,
    "k": NO_NUMBER,
    "top_k": NO_NUMBER,
    "sampler": [*NO_NUMBER, "greedy"],
    "detokenizer": NO_NUMBER,
    "embed": [*NO_NUMBER, Embeds((1, 2)), Embeds(), Pages((1, 1))],
    "output_embed": [*NO_NUMBER, Embeds((1, 2)), Pages((1, 1))],
    "priority": [None, "5", 1.0, True, 2**31, -(2**31) - 1],
    "seed": ["5", 1.5, True, -1, 2**64],
    "pages": [*NO_U32_LIST, Embeds((1, 1)), Slots((1, 1)), Pages(cast(Any, ("a", 1))), Pages((-1, 1))],
    "context": [*NO_U32_LIST, Embeds((1, 1))],
    "output_pages": [*NO_U32_LIST, Embeds((1, 1))],
    "output": [*NO_U32_LIST, Embeds((1, 1))],
    "embeds": [*NO_U32_LIST, Pages((1, 1))],
    "inputs": [*NO_U32_LIST, Pages((1, 1))],
    "input_embeds": [*NO_U32_LIST, Pages((1, 1))],
    "output_embeds": [*NO_U32_LIST, Pages((1, 1))],
    "source": [*NO_U32_LIST, Pages((1, 1))],
    "target": [*NO_U32_LIST, Pages((1, 1))],
    "hidden": [*NO_U32_LIST, Slots((1, 1)), range(-1, 3), range(U32, U32 + 2)],
    "mask": [None, 5, "abc", [5], ["ab"], [[0], None], [[-1]], [[U32]], [range(-1, 2)], [Slots((1, 1))]],
    "name": NO_TEXT,
    "prefix": NO_TEXT,
    "tokens": NO_U32_LIST,
    "draft": NO_U32_LIST,
    "recent": NO_U32_LIST,
    "positions": NO_U32_LIST,
    "alternatives": NO_NUMBER,
    "logprobs": [one for one in NO_NUMBER if one is not None],
    "logit_bias": [5, "text", [1], {"a": 1.0}, {-1: 1.0}, {1: "x"}, {1: None}, {True: 1.0}],
    "futures": [5, [5], [None], "abc"],
    "future": [5, None, "x"],
    "allowed": ["text", 5, None, [1]],
    "temperature": NO_FLOAT,
    "top_p": NO_FLOAT,
    "min_p": NO_FLOAT,
    "typical_p": NO_FLOAT,
    "repetition_penalty": NO_FLOAT,
    "frequency_penalty": NO_FLOAT,
    "presence_penalty": NO_FLOAT,
    "seconds": [*NO_FLOAT, math.nan, math.inf, 1e30],
    "text": NO_TEXT,
    "model": NO_TEXT,
    "adapter": NO_TEXT,
    "message": NO_TEXT,
    "level": [None, 5, "loud", []],
    "input": [*NO_NUMBER, Embeds((1, 2)), Pages((1, 1))],
    "position": NO_NUMBER,
    "steps": NO_NUMBER,
    "window": NO_NUMBER,
    "stop": NO_U32_LIST,
    "strings": [None, 5, "abc", [5], [b"a"], ["\ud800"]],
    "run": [None, 5, "1"],
    "held": NO_TEXT,
    "send": [None, 0, "yes"],
    "more": [None, 0, "yes"],
    "special_tokens": [None, 0, 1, "yes"],
    "add_generation_prompt": [None, 0, "yes"],
    "messages": NO_CHAT,
    "tools": NO_CHAT,
}
RIGHT: dict[str, Any] = test_wrong_types.RIGHT | {
    "queue": 1, "count": 1, "keep": 0, "k": 3, "sampler": 1, "detokenizer": 1, "embed": 1, "output_embed": 1,
    "tokens": [1], "priority": 0, "pages": [1], "context": [], "embeds": [1], "inputs": [1], "input_embeds": [1],
    "source": [1],
    "target": [1], "draft": [1], "positions": [0], "output": [], "temperature": 1.0, "seconds": 1.0, "text": "a",
    "model": "toy", "message": "a", "messages": [], "futures": [], "future": None, "recent": [],
    "adapter": "a", "level": "info", "value": 1, "mask": [], "name": "a", "input": 1, "position": 0, "steps": 1,
    "run": DecodeRun(1),
}  # fmt: skip
ANY_VALUE = {("log", "message"), ("set_result", "value")}
"""Parameters that take any value: it is written as text or JSON."""
NONE_ALLOWED = {("http_post", "text"), ("http_request", "text")}
"""Parameters of which None is no wrong value here."""
NO_CALLS = {"Dist", "Verified", "await_dist", "await_verified", "await_scored_token", "await_import", "await_listing"}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in traits.__dict__:
        function = getattr(traits, name)
        if inspect.isfunction(function) and name not in NO_CALLS:
            yield name, function


CASES = [
    (name, function, parameter)
    for name, function in functions()
    for parameter in inspect.signature(function).parameters
    if (name, parameter) not in ANY_VALUE and parameter in WRONG  # test_wrong_types tries all
]


@pytest.fixture
def host() -> FakeHost:
    fake = FakeHost()
    bindings.install(fake, HostError)
    return fake


def test_every_call_of_the_world_is_among_the_cases() -> None:
    assert {"get_next_dist", "forward", "verify", "tokenize_chat", "wait", "log"} <= {name for name, _, _ in CASES}
    assert len(CASES) > 80


def done(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    result = function(**arguments)
    if inspect.iscoroutine(result):
        run(result)


@pytest.mark.parametrize(
    ("name", "function", "parameter"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_wrong_value_is_told_by_name(name: str, function: Callable[..., Any], parameter: str, host: FakeHost) -> None:
    for wrong in WRONG[parameter]:
        arguments = {
            one: RIGHT[one]
            for one, about in inspect.signature(function).parameters.items()
            if about.default is inspect.Parameter.empty
        }
        if wrong is None and (name, parameter) in NONE_ALLOWED:
            continue
        arguments[parameter] = wrong
        with pytest.raises((TypeError, ValueError)) as caught:
            done(function, arguments)
        assert str(caught.value).startswith(parameter), (wrong, caught.value)
        assert len(str(caught.value)) < 250
        assert host.calls == []


def test_what_was_not_awaited_is_told(host: FakeHost) -> None:
    coroutine = _coroutine()
    try:
        with pytest.raises(TypeError, match=r"embed: .* not a coroutine that was not awaited: write `await"):
            traits.get_next_dist(1, coroutine)  # type: ignore[arg-type]
    finally:
        coroutine.close()
    with pytest.raises(TypeError, match=r"tokens: .*HostFuture that was not awaited"):
        traits.detokenize(1, HostFuture(1, int))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: t.detokenize(1, 65), r"tokens: give a list, each item a token id, as in \[65\], not int 65"),
        (
            lambda t: t.embed_txt(1, [1, "b"], [0, 1], [1, 2]),
            r"tokens\[1\]: give a token id or a TokenFuture, not str 'b'",
        ),
        (lambda t: t.embed_txt(1, [1], [-1], [1]), r"positions\[0\]: -1 is not between 0 and 4294967295"),
        (
            lambda t: t.forward(1, Embeds((1, 1)), [1]),
            r"context: give Pages or a list, each item the address of a page",
        ),
        (lambda t: t.get_next_dist(1, Embeds((3, 2))), r"embed: give one embed, not 2; an index picks one"),
        (lambda t: t.alloc_kvpage("8"), r"queue: give the number of a queue \(from `create_queue`\), or a Context"),
        (lambda t: t.send({"a": 1}), r"message: give text \(`json\.dumps` turns values into text\), not dict"),
        (lambda t: t.tokenize(1, "a\ud800"), r"text: character 1 is half of a surrogate pair"),
    ],
)
def test_messages_say_what_to_give(host: FakeHost, call: Callable[[Any], Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        call(traits)


def test_what_the_listing_of_the_paper_passes_is_taken(host: FakeHost) -> None:
    """Embeds of length one for an embed, and an object that has a queue for a queue."""
    ctx = Context("toy")
    inputs, output, pages = traits.alloc_emb(ctx, 1), traits.alloc_emb(ctx, 1), traits.alloc_kvpage(ctx)
    traits.embed_txt(ctx, [97], range(1), inputs)
    traits.forward(ctx, pages, inputs, pages, output)
    sampler = traits.create_sampler(temperature=0)
    token = traits.sample(ctx, output, sampler).result()
    assert traits.get_next_dist(ctx, output).result().max_index() == token
    assert traits.get_logprobs(ctx, output, (token,)).result() == [-0.5]
    assert traits.get_model_info(ctx.model).name == "toy"  # type: ignore[arg-type]


@given(
    st.lists(st.integers(0, U32 - 1)) | st.lists(st.integers(0, 300)).map(tuple) | st.builds(range, st.integers(0, 9))
)
def test_right_lists_pass_unchanged(values: Any) -> None:
    from inferlet_sdk.traits.arguments import numbers, references

    assert numbers(values, "x") == list(values)
    assert references(values) == list(values)


def test_token_futures_stand_in_token_lists_only(host: FakeHost) -> None:
    from inferlet_sdk.traits.arguments import references

    token = TokenFuture(5, int)
    assert references([1, token]) == [1, 0x8000_0005]
    with pytest.raises(TypeError, match=r"tokens\[0\].*await"):
        traits.push_tokens(1, [token])  # type: ignore[list-item]


def test_contexts_check_too(host: FakeHost) -> None:
    ctx = Context("toy")
    for wrong in ([1.5], ["a"], [-1], [None], 5, None):
        with pytest.raises((TypeError, ValueError), match="text"):
            ctx.fill(wrong)  # type: ignore[arg-type]
    for call, name in (
        (lambda: ctx.fill("\ud800"), "text"),
        (lambda: ctx.truncate(-1), "length"),
        (lambda: ctx.generate("5"), "max_tokens"),  # type: ignore[arg-type]
        (lambda: ctx.generate(-5), "max_tokens"),
        (lambda: run(ctx.score([1.5])), "continuation"),  # type: ignore[list-item]
        (lambda: ctx.fill_chat([5]), r"messages\[0\]"),  # type: ignore[list-item]
    ):
        with pytest.raises((TypeError, ValueError), match=name):
            call()
