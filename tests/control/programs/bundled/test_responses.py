"""`responses`: items, on top of what `chat_completions` does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pie_control.authoring.native.server import NativeServer
from pie_control.gateway.stored.marks import read_mark
from tests.control.programs.bundled.launching import Ask, asking

ASKED = "What is 2 plus 3?"
GREEDY = {"temperature": 0, "max_output_tokens": 40}
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


@pytest.fixture(scope="package")
def ask(server: NativeServer) -> Ask:
    return asking(server, "responses", route="/v1/responses")


@pytest.fixture(scope="package")
def text(server: NativeServer) -> str:
    """What a chat completion answers."""
    asked = [{"role": "user", "content": ASKED}]
    return asking(server, "chat_completions")(messages=asked, temperature=0, max_tokens=40).text


def test_a_whole_answer(ask: Ask, text: str) -> None:
    parts = [{"type": "input_text", "text": ASKED}]
    message = {"role": "user", "content": ASKED}
    for given in (ASKED, [message], [{"type": "message", "role": "user", "content": parts}]):
        served = ask(model="demo", input=given, **GREEDY)
        body, (mark,) = served.body, served.marks
        assert (body["id"], body["object"], body["status"], body["store"]) == (
            "resp_r1",
            "response",
            "completed",
            True,
        )
        assert (mark.id, json.loads(bytes(mark.body))["status"], mark.background) == ("resp_r1", "in_progress", False)
        (asked,) = json.loads(bytes(mark.input))
        assert (asked["content"], asked["role"], asked["id"]) == (parts, "user", "msg_r1_in0")
        (item,) = body["output"]
        assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", text)
        assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    cut = ask(input=ASKED, instructions="Be brief.", **{**GREEDY, "max_output_tokens": 2}).body
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["instructions"] == "Be brief."


def test_a_stream(ask: Ask, text: str) -> None:
    events = ask(input=ASKED, **GREEDY, stream=True).events
    kinds = [one["type"].removeprefix("response.") for one in events]
    assert {one["sequence_number"] for one in events} == {-1}, "the server numbers them"
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(one["delta"] for one in events if one["type"].endswith("text.delta")) == text
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent(ask: Ask, stream: bool) -> None:
    chosen: Any = {"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}}
    served = ask(input=ASKED, **chosen, **GREEDY, stream=stream)
    output = served.events[-1]["response"]["output"] if stream else served.body["output"]
    (call,) = output
    assert (call["type"], call["name"]) == ("function_call", "add")
    assert json.loads(call["arguments"]).keys() == {"a", "b"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    again = ask(input=[{"role": "user", "content": ASKED}, call, result], tools=[ADD], **GREEDY).body
    assert again["status"] == "completed"


def test_what_is_not_stored_and_what_is_too_long_for_one_message(ask: Ask) -> None:
    served = ask(input=ASKED, store=False, **GREEDY)
    assert (served.body["store"], served.marks) == (False, [])
    long = [{"role": "user", "content": ASKED}, {"type": "reasoning", "id": "rs_1", "text": "\u00e4" * 40_000}]
    streamed = ask(input=long, stream=True, **GREEDY)
    parts = [one.text for one in streamed.marks]
    assert (len(parts), parts[-1]) == (3, "")
    mark: Any = read_mark("".join(parts))
    assert json.loads(bytes(mark.input))[1] == {"status": "completed", **long[1]}
    assert streamed.body == streamed.events[-1]["response"]  # of a stream, for those who ask later


def test_the_id_of_a_stored_response_can_stand_in_its_path(ask: Ask, server: NativeServer) -> None:
    asked: dict[str, Any] = {"input": ASKED, "max_output_tokens": 1}
    of_proxy = asking(server, "responses", route="/v1/responses", request_id="host/7-1 ?", answer_id="a1")
    (mark,) = of_proxy(**asked).marks
    assert mark.id == "resp_a1", "a proxy may call two requests the same"
    assert ask(**asked, store=False, request_id="a/b").body["status"] == "incomplete"
    assert ask(**asked, request_id="a-1.b_2").marks[0].id == "resp_a-1.b_2"


def test_a_format(ask: Ask) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "boolean"}}
    body = ask(input=ASKED, text={"format": form}, **GREEDY).body
    assert body["output"][0]["content"][0]["text"] in ("true", "false")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"store": "yes"}, "store"),
        ({"request_id": "a/b"}, "request_id"),
        ({"request_id": "a" * 129}, "request_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_refusals_name_the_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    error = ask(**{"input": ASKED, **fields}).error
    assert (error["status"], error["type"], error["param"]) == (400, "invalid_request_error", param)
