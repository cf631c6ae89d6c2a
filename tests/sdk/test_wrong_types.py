"""Every parameter of every call, given something of a wrong type: the error names it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Embeds, Pages, Slots
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits import DecodeRun
from tests.helpers.fake_host import FakeHost, HostError

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
    "min_p": 0.1, "typical_p": 0.5,
    "top_p": 0.9, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "adapter": "a", "model": "toy", "name": "n", "prefix": "p", "topic": "t", "message": "m", "url": "http://a.b",
    "method": "GET", "text": "x", "held": "h", "level": "info", "program": "p", "value": 1, "json": None,
    "special_tokens": True, "add_generation_prompt": True, "send": False, "more": False, "allowed": b"x",
    "data": b"x", "context": Pages((1, 1)), "output": Pages((1, 1)), "output_pages": Pages((1, 1)),
    "pages": Pages((1, 1)), "embeds": Embeds((1, 1)), "input_embeds": Embeds((1, 1)), "inputs": Embeds((1, 1)),
    "output_embeds": Embeds((1, 1)), "draft": [1], "tokens": [1], "recent": [1], "stop": [1], "positions": [0],
    "hidden": [1], "strings": ["x"], "mask": [[0]], "messages": [{"role": "user", "content": "x"}], "tools": [],
    "headers": {}, "params": {}, "kwargs": {}, "environment": {}, "logit_bias": {1: 1.0}, "futures": [],
    "matcher": 1, "grammar": 1, "kind": "regex", "whitespace": False, "skip": True,
    "future": HostFuture(1, lambda number: number),
}  # fmt: skip
OF_CALLS: dict[tuple[str, str], Any] = {
    ("copy_emb", "source"): Embeds((1, 1)),
    ("copy_emb", "target"): Embeds((2, 1)),
    ("copy_kvpage", "source"): Slots((1, 1)),
    ("copy_kvpage", "target"): Slots((2, 1)),
    ("http_post", "data"): None,
    ("http_request", "data"): None,
}

CASES = [
    (name, parameter.name)
    for name, call in CALLS.items()
    for parameter in inspect.signature(call).parameters.values()
    if (name, parameter.name) not in ANYTHING
]


class Wrong:
    """Of no type that a call takes."""


def right(call: str, parameter: str) -> Any:
    if parameter == "run":
        return DecodeRun(1)
    return OF_CALLS.get((call, parameter), RIGHT.get(parameter))


def given(name: str, call: Callable[..., Any], wrong: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of which one is wrong; the optional ones are left out."""
    values: dict[str, Any] = {}
    positional: list[Any] = []
    for parameter in inspect.signature(call).parameters.values():
        value = Wrong() if parameter.name == wrong else right(name, parameter.name)
        if parameter.name != wrong and parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            if parameter.name == wrong:
                positional.append(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            if parameter.name == wrong:
                values["max_pages"] = value
        elif parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            values[parameter.name] = value
        else:
            positional.append(value)
    return positional, values


def tried(call: Callable[..., Any], positional: list[Any], values: dict[str, Any]) -> None:
    """Calls; a coroutine goes as far as it can without a host that answers."""
    result = call(*positional, **values)
    if inspect.iscoroutine(result):
        result.send(None)


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=lambda value: value)
def test_the_error_names_the_parameter(name: str, parameter: str) -> None:
    host = FakeHost()
    bindings.install(host, HostError)
    positional, values = given(name, CALLS[name], parameter)
    if name == "launch" and parameter == "arguments":
        positional = ["p", *positional]
    with pytest.raises((TypeError, ValueError)) as caught:
        tried(CALLS[name], positional, values)
    told = "max_pages" if parameter == "limits" else parameter
    assert told in str(caught.value), str(caught.value)
    assert "Wrong" in str(caught.value)
    assert host.calls == [] or set(host.calls) <= {"create_queue", "get_model_info"}


def test_all_calls_are_tried() -> None:
    assert len({name for name, _ in CASES}) > 60
