"""A wrong argument of any call is a TypeError or ValueError that names the parameter, before the host is asked: the
generated bindings would end the inferlet."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk import Context, Embeds, Pages, Slots, traits
from inferlet_sdk.errors import TooLong
from inferlet_sdk.event_loop import run
from inferlet_sdk.futures import HostFuture, TokenFuture
from inferlet_sdk.traits import DecodeRun, arguments
from tests.helpers.native_host import NativeHost

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
    "dist": [5, "abc", (1,), (1, 2, 3), (1.5, 1.0), (1, "a"), (-1, 1.0)],
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
"""Wrong values of parameters. Every parameter is given something of no type at all, besides."""

CALLS = {
    name: call
    for name, call in vars(traits).items()
    if inspect.isfunction(call) and not name.startswith("_") and call.__module__.startswith("inferlet_sdk.")
}
ANYTHING = {("log", "message"), ("set_result", "value"), ("http_post", "json"), ("http_request", "json")}
"""Parameters that take any value."""

RIGHT: dict[str, Any] = {
    "queue": 1, "sampler": 2, "detokenizer": 3, "embed": 4, "input": 4, "output_embed": 4, "blob": 1, "body": 1,
    "child": 1, "image": 1, "subscription": 1, "count": 1, "first": 0, "k": 4, "keep": 1, "most": 10, "offset": 0,
    "length": 1, "position": 0, "priority": 1, "steps": 1, "window": 0, "alternatives": 0, "width": 10, "height": 10,
    "redirects": 1, "top_k": 1, "seed": 1, "logprobs": None, "seconds": 0.1, "temperature": 1.0, "timeout": 1.0,
    "by": 1, "min_p": 0.1, "typical_p": 0.5, "top_p": 0.9,
    "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "adapter": "a", "model": "toy", "name": "n", "prefix": "p", "topic": "t", "message": "m", "url": "http://a.b",
    "method": "GET", "text": "x", "held": "h", "level": "info", "program": "p", "value": 1, "json": None,
    "special_tokens": True, "add_generation_prompt": True, "send": False, "more": False, "allowed": b"x",
    "data": b"x", "context": Pages((1, 1)), "output": Pages((1, 1)), "output_pages": Pages((1, 1)),
    "pages": Pages((1, 1)), "embeds": Embeds((1, 1)), "input_embeds": Embeds((1, 1)), "inputs": Embeds((1, 1)),
    "output_embeds": Embeds((1, 1)), "draft": [1], "tokens": [1], "recent": [1], "stop": [1], "positions": [0],
    "hidden": [1], "strings": ["x"], "mask": [[0]], "messages": [{"role": "user", "content": "x"}], "tools": [],
    "headers": {}, "params": {}, "kwargs": {}, "environment": {}, "logit_bias": {1: 1.0}, "futures": [],
    "matcher": 1, "grammar": 1, "kind": "regex", "whitespace": False, "skip": 1,
    "future": HostFuture(1, lambda number: number),
}  # fmt: skip
OF_CALLS: dict[tuple[str, str], Any] = {
    ("copy_emb", "source"): Embeds((1, 1)),
    ("copy_emb", "target"): Embeds((2, 1)),
    ("copy_kvpage", "source"): Slots((1, 1)),
    ("copy_kvpage", "target"): Slots((2, 1)),
    ("http_post", "data"): None,
    ("http_request", "data"): None,
    ("pin_exports", "seconds"): 60,
}

KEYWORDS = {"kwargs": "topic", "options": "timeout"}
"""Of the parameters that take any keyword: one of them."""
CASES = [
    (name, parameter)
    for name, call in CALLS.items()
    for parameter in inspect.signature(call).parameters
    if (name, parameter) not in ANYTHING
]


class Wrong:
    """Of no type that a call takes."""


def right(call: str, parameter: str) -> Any:
    if parameter == "run":
        return DecodeRun(1)
    return OF_CALLS.get((call, parameter), RIGHT.get(parameter))


def arguments_with(name: str, wrong: str, wrong_value: object) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of which one is wrong; the optional ones are left out."""
    values: dict[str, Any] = {}
    positional: list[Any] = []
    for parameter in inspect.signature(CALLS[name]).parameters.values():
        value = wrong_value if parameter.name == wrong else right(name, parameter.name)
        if parameter.name != wrong and parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            if parameter.name == wrong:
                positional += ["p", value] if name == "launch" else [value]
        elif parameter.kind is parameter.VAR_KEYWORD:
            if parameter.name == wrong:
                values[KEYWORDS[wrong]] = value
        elif parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            values[parameter.name] = value
        else:
            positional.append(value)
    return positional, values


def test_every_call_of_the_world_is_among_the_cases() -> None:
    names = {name for name, _ in CASES}
    assert {"get_next_dist", "forward", "verify", "tokenize_chat", "wait", "log"} <= names
    assert len(names) > 60


def done(result: object) -> None:
    if inspect.iscoroutine(result):
        run(result)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_a_wrong_value_is_told_by_name(name: str, host: NativeHost) -> None:
    parameters = [parameter for one, parameter in CASES if one == name]
    for parameter, wrong in [(one, value) for one in parameters for value in (Wrong(), *WRONG.get(one, ()))]:
        if wrong is None and inspect.signature(CALLS[name]).parameters[parameter].default is None:
            continue
        positional, values = arguments_with(name, parameter, wrong)
        with pytest.raises((TypeError, ValueError)) as caught:
            done(CALLS[name](*positional, **values))
        told = str(caught.value)
        assert "Wrong" in told or not isinstance(wrong, Wrong)
        assert told.startswith(KEYWORDS.get(parameter, parameter)), (wrong, told)
        assert len(told) < 250
    assert set(host.calls) <= {"create_queue", "get_model_info"}


def test_what_was_not_awaited_is_told(host: NativeHost) -> None:
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
def test_messages_say_what_to_give(host: NativeHost, call: Callable[[Any], Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        call(traits)


def test_what_the_listing_of_the_paper_passes_is_taken(host: NativeHost) -> None:
    """Embeds of length one for an embed, and what has a queue or a name for a queue or a model."""
    ctx = Context(Context("toy").model)  # type: ignore[arg-type]
    inputs, output, pages = traits.alloc_emb(ctx, 1), traits.alloc_emb(ctx, 1), traits.alloc_kvpage(ctx)
    traits.embed_txt(ctx, [97], range(1), inputs)
    traits.forward(ctx, pages, inputs, pages, output)
    sampler = traits.create_sampler(temperature=0)
    token = traits.sample(ctx, output, sampler).result()
    assert traits.get_next_dist(ctx, output).result().max_index() == token
    assert traits.get_logprobs(ctx, output, (token,)).result()[0] > -4
    assert traits.get_model_info(ctx.model).name == "toy"  # type: ignore[arg-type]


@given(
    st.lists(st.integers(0, U32 - 1)) | st.lists(st.integers(0, 300)).map(tuple) | st.builds(range, st.integers(0, 9))
)
def test_right_lists_pass_unchanged(values: Any) -> None:
    from inferlet_sdk.traits.arguments import numbers, references

    assert numbers(values, "x") == list(values)
    assert references(values) == list(values)


def test_token_futures_stand_in_token_lists_only(host: NativeHost) -> None:
    from inferlet_sdk.traits.arguments import references

    token = TokenFuture(5, int)
    assert references([1, token]) == [1, 0x8000_0005]
    with pytest.raises(TypeError, match=r"tokens\[0\].*await"):
        traits.push_tokens(1, [token])  # type: ignore[list-item]


def test_contexts_check_too(host: NativeHost) -> None:
    ctx = Context("toy")
    for wrong in ([1.5], ["a"], [-1], [None], 5, None):
        with pytest.raises((TypeError, ValueError), match="text"):
            ctx.fill(wrong)  # type: ignore[arg-type]
    for call, name in (
        (lambda: ctx.fill("\ud800"), "text"),
        (lambda: ctx.truncate(-1), "length"),
        (lambda: ctx.generate("5"), "max_tokens"),  # type: ignore[arg-type]
        (lambda: ctx.generate(-5), "max_tokens"),
        (lambda: run(ctx.best_of(2, sampler=lambda dist: 1)), "sampler: give a Sampler"),  # type: ignore[arg-type]
        (lambda: run(ctx.score([1.5])), "continuation"),  # type: ignore[list-item]
        (lambda: ctx.fill_chat([5]), r"messages\[0\]"),  # type: ignore[list-item]
    ):
        with pytest.raises((TypeError, ValueError), match=name):
            call()


def test_what_is_more_than_a_call_may_pass_is_too_long() -> None:
    """The sandbox would end the inferlet."""
    assert arguments.text("a" * arguments.MOST_TEXT, "text")
    assert len(arguments.tokens([1] * arguments.MOST_TOKENS)) == arguments.MOST_TOKENS
    long = "a" * (arguments.MOST_TEXT + 1)
    with pytest.raises(TooLong, match=r"text: 4194305 characters .* give less at a time"):
        arguments.text(long, "text")
    with pytest.raises(TooLong, match="messages: "):
        arguments.as_json([{"content": long}], "messages")
    with pytest.raises(TooLong, match="tokens: 131073 tokens"):
        arguments.tokens([1] * (arguments.MOST_TOKENS + 1))


MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    "ask",
    [
        lambda queue: traits.tokenize(queue, "\U0001f600" * 3 * MEBIBYTE),
        lambda queue: traits.embed_txt(queue, [5] * 100_000, range(100_000), range(100_000)),
        lambda queue: traits.set_result("a" * 9 * MEBIBYTE),
        lambda queue: traits.http_post("http://127.0.0.1:1/", data=b"a" * 7 * MEBIBYTE),
        lambda queue: traits.launch(None, *["a" * 3 * MEBIBYTE] * 3),
        lambda queue: traits.export_kvpage(queue, "x", (), [1] * 3 * MEBIBYTE),
    ],
)
def test_a_call_that_passes_too_much_together_is_too_long(host: NativeHost, ask: Callable[[int], Any]) -> None:
    with pytest.raises(TooLong, match="at most 8388608 bytes"):
        ask(traits.create_queue("toy"))
