"""Models that reason, and what a request says of it: a model without weights, whose template knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from inferlet_sdk.served.writing.reasoning import ReasoningParser
from pie_control.authoring.native.server import native_server
from pie_control.config import ServerConfig, build_config
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol.conversation import ModelDescription
from pie_inference.testing import byte_tokenizer
from tests.control.programs.bundled.launching import Ask, asking, marked

ASKED = [{"role": "user", "content": "Why?"}]
TEMPLATE = (
    byte_tokenizer.CHAT_TEMPLATE
    + "{% if enable_thinking is false %}<think></think>{% elif begin is true %}<think>{% endif %}{{ mood }}"
)
MARKS = {"<think>": 254, "</think>": 255}  # no text in UTF-8 has these bytes
LONG = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}


class Reasoner(FakeModel):
    """Its tokens mean nothing, but its tokenizer has marks, and its template knows when to write them."""

    def describe(self) -> tuple[ModelDescription, ...]:
        return (marked(super().describe()[0], MARKS, TEMPLATE),)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    def client(_config: ServerConfig, _model: Any) -> InProcessClient:
        return InProcessClient(Reasoner("demo"))

    with native_server(build_config({}).resolved(), client) as server:
        yield asking(server, "chat_completions")


def parts(body: Any) -> tuple[str, str]:
    message = body["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"]


def test_reasoning_that_the_template_begins(ask: Ask) -> None:
    body = ask(messages=ASKED, **LONG, chat_template_kwargs={"begin": True}).body
    reasoning, text = parts(body)
    assert reasoning
    assert text == ""
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 30
    without = ask(messages=ASKED, **LONG, reasoning_effort="none").body
    assert parts(without)[0] == ""
    assert "completion_tokens_details" not in without["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_stop_string_is_told(ask: Ask, stream: bool) -> None:
    """Each byte is a token, and the reader of the marks has the tokens themselves: it told the first ones."""
    plain = {"messages": ASKED, **LONG, "reasoning_effort": "none"}
    text = ask(**plain).text
    stops = [text[place : place + 2] for place in range(len(text) - 1)]
    for stop in [one for one in stops if "\ufffd" not in one][:6]:
        assert ask(**plain, stop=[stop], stream=stream).text == text.partition(stop)[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 7])
def test_a_budget_ends_reasoning(ask: Ask, budget: int, stream: bool) -> None:
    served = ask(messages=ASKED, **LONG, thinking_token_budget=budget, stream=stream, return_token_ids=True)
    if stream:
        deltas = [one["choices"][0]["delta"] for one in served.events]
        reasoning = "".join(one.get("reasoning_content", "") for one in deltas)
        count = sum(len(one["choices"][0].get("token_ids", ())) for one in served.events)
    else:
        reasoning, _ = parts(served.body)
        count = len(served.body["choices"][0]["token_ids"])
        details = served.body["usage"].get("completion_tokens_details", {"reasoning_tokens": 0})
        assert details == {"reasoning_tokens": budget}
    assert count == 30
    assert bool(reasoning) == bool(budget)
    assert served.text
    assert "think" not in reasoning + served.text


def test_a_format_holds_for_the_answer(ask: Ask) -> None:
    body = ask(
        messages=ASKED, **{**LONG, "max_tokens": 60}, thinking_token_budget=5, structured_outputs={"regex": "[ab]{3}"}
    ).body
    reasoning, text = parts(body)
    assert reasoning
    assert len(text) == 3
    assert set(text) <= {"a", "b"}


def test_variables_are_no_special_tokens(ask: Ask) -> None:
    told = {"mood": "<|end|><think>"}
    body = ask(messages=ASKED, **LONG, chat_template_kwargs=told, return_token_ids=True).body
    marks = [token for token in body["prompt_token_ids"] if token in (byte_tokenizer.END, *MARKS.values())]
    assert marks == [byte_tokenizer.END], "that of the message"
    assert parts(body)[0] == ""


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("so it is</think>\n\nYes.", True, ("so it is", "Yes.")),
        ("\n so\nit is \n</think>Yes </think>", True, ("so\nit is", "Yes </think>")),
        ("<think>\nhm\n</think>\n\nNo", False, ("hm", "No")),
        (" \n<think>a < b</think>", False, ("a < b", "")),
        ("<thin air", False, ("", "<thin air")),
        ("plain <think> text", False, ("", "plain <think> text")),
        ("never ends </thi", True, ("never ends </thi", "")),
        ("", False, ("", "")),
    ],
)
def test_any_split_gives_the_same(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    for size in (1, 2, 3, 100):
        parser, reasoning, rest = ReasoningParser(is_open), "", ""
        for start in range(0, len(text), size):
            one, other = parser.feed(text[start : start + size])
            reasoning, rest = reasoning + one, rest + other
        one, other = parser.finish()
        assert (reasoning + one, rest + other) == expected, size
