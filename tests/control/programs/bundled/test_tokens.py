"""`tokens`: texts and conversations to tokens, and back."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.authoring.native.server import NativeServer
from tests.control.programs.bundled.launching import Ask, asking

ASKED = [{"role": "user", "content": "What is 2 plus 3?"}]


@pytest.fixture(scope="package")
def ask(server: NativeServer) -> Ask:
    return asking(server, "tokens", route="/tokenize")


def test_a_text_becomes_tokens_and_these_become_the_text(ask: Ask, server: NativeServer) -> None:
    told = ask(prompt="What is 2 plus 3?", add_special_tokens=False, return_token_strs=True).body
    assert told["count"] == len(told["tokens"]) > 3
    assert told["max_model_len"] > 256
    assert "".join(told["token_strs"]) == "What is 2 plus 3?"
    back = asking(server, "tokens", route="/detokenize")(tokens=told["tokens"]).body
    assert back == {"prompt": "What is 2 plus 3?"}
    begun = ask(prompt="What is 2 plus 3?").body
    assert begun["tokens"][-told["count"] :] == told["tokens"]
    assert begun["token_strs"] is None


def test_a_conversation_has_the_tokens_of_its_prompt(ask: Ask, server: NativeServer) -> None:
    run = asking(server, "chat_completions")(messages=ASKED, max_tokens=1, return_token_ids=True).body
    assert ask(messages=ASKED).body["tokens"] == run["prompt_token_ids"]
    assert ask(messages=ASKED, add_generation_prompt=False).body["count"] < run["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
    ],
)
def test_what_is_refused(server: NativeServer, route: str, fields: dict[str, Any], param: str | None) -> None:
    error = asking(server, "tokens", route=route)(**fields).error
    assert (error["status"], error["param"]) == (400, param), error
