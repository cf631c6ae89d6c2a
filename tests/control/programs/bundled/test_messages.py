"""`messages`: Anthropic's form, on top of what `chat_completions` does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pie_control.authoring.native.server import NativeServer
from tests.control.programs.bundled.launching import Ask, Served, asking

ASKED = [{"role": "user", "content": "What is 2 plus 3?"}]
GREEDY = {"temperature": 0, "max_tokens": 40}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


@pytest.fixture(scope="package")
def ask(server: NativeServer) -> Ask:
    return asking(server, "messages", route="/v1/messages")


@pytest.fixture(scope="package")
def text(server: NativeServer) -> str:
    """What a chat completion answers."""
    return asking(server, "chat_completions")(messages=ASKED, **GREEDY).text


def blocks_of(served: Served) -> list[dict[str, Any]]:
    """The content of an answer, put together from the events of a stream as clients do."""
    if not served.events:
        return list(served.body["content"])
    blocks: list[dict[str, Any]] = []
    for event in served.events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[event["index"]]["text"] += delta["text"]
            else:
                blocks[event["index"]]["input"] = json.loads(delta["partial_json"])
    return blocks


def test_a_whole_answer(ask: Ask, text: str) -> None:
    body = ask(model="demo", messages=ASKED, **GREEDY).body
    usage = body.pop("usage")
    assert body == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert usage["input_tokens"] > usage["cache_read_input_tokens"] == usage["cache_creation_input_tokens"] == 0
    assert usage["output_tokens"] > 0


def test_a_stream(ask: Ask, text: str) -> None:
    events = ask(model="demo", messages=ASKED, **GREEDY, stream=True).events
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == text
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > events[0]["message"]["usage"]["output_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_why_it_ends(ask: Ask, text: str, stream: bool) -> None:
    word = text.split()[1]
    for fields, expected in (
        ({"max_tokens": 2}, ("max_tokens", None)),
        ({"stop_sequences": ["nowhere", word]}, ("stop_sequence", word)),
        ({"stop_sequences": ["nowhere"]}, ("end_turn", None)),
    ):
        served = ask(messages=ASKED, **{**GREEDY, **fields}, stream=stream)
        told = served.events[-2]["delta"] if stream else served.body
        assert (told["stop_reason"], told["stop_sequence"]) == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}]
)
def test_an_agent(ask: Ask, choice: dict[str, Any], stream: bool) -> None:
    served = ask(messages=ASKED, tools=[ADD], tool_choice=choice, **GREEDY, stream=stream)
    (block,) = blocks_of(served)
    assert (block["type"], block["name"], block["input"].keys()) == ("tool_use", "add", {"a", "b"})
    assert block["id"].startswith("toolu_")
    told = served.events[-2]["delta"] if stream else served.body
    assert told["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "5"}]}
    talk = [*ASKED, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    assert ask(messages=talk, tools=[ADD], **GREEDY).body["stop_reason"] in ("end_turn", "tool_use")


def test_system_and_count(ask: Ask, server: NativeServer) -> None:
    count = asking(server, "messages", route="/v1/messages/count_tokens")
    plain = count(messages=ASKED).body["input_tokens"]
    assert plain == ask(messages=ASKED, **GREEDY).body["usage"]["input_tokens"]
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    for system in ("Be brief.", blocks):
        assert count(messages=ASKED, system=system).body["input_tokens"] > plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"system": 5}, "system"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_format": {"type": "json_schema", "schema": {"type": "intger"}}}, "output_config.format"),
        ({"tools": [{**ADD, "input_schema": {"properties": 5}}]}, "tools[0].input_schema.properties"),
        ({"system": "Be brief.", "messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content"),
        ({"temperature": "hot"}, "temperature"),
        ({"service_tier": "priority"}, "service_tier"),
    ],
)
def test_refusals_name_the_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    error = ask(**{"messages": ASKED, "max_tokens": 5, **fields}).error
    assert (error["status"], error["type"], error["param"]) == (400, "invalid_request_error", param)


LONG = "You are a patient agent. " * 40
MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("number", "system", "content", "others", "is_whole"),
    [
        (1, [{"type": "text", "text": LONG, **MARK}], "Why?", {}, False),
        (2, "Be brief.", [{"type": "text", "text": LONG, **MARK}, {"type": "text", "text": LONG}], {}, False),
        (3, "Be brief.", [{"type": "text", "text": LONG, **MARK}], {}, True),
        (4, "Be brief.", LONG, MARK, True),
        (5, LONG, "Why?", {"tools": [{**ADD, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, False),
    ],
)
def test_what_is_marked_is_told_apart(
    ask: Ask, number: int, system: Any, content: Any, others: dict[str, Any], is_whole: bool
) -> None:
    said = [{"role": "user", "content": content}]
    asked = {"messages": said, "system": system, "max_tokens": 1, "cache_salt": f"marked {number}", **others}
    first, second = (ask(**asked).body["usage"] for _ in range(2))
    created = first["cache_creation_input_tokens"]
    assert first["cache_read_input_tokens"] == second["cache_creation_input_tokens"] == 0
    assert created % 16 == 0
    assert second["cache_read_input_tokens"] >= created >= 150
    assert (first["input_tokens"] < 40) == (is_whole or number in (1, 5))
    assert first["cache_pinned_input_tokens"] == second["cache_pinned_input_tokens"] == created
    assert sum(first.values()) == sum(second.values())


@pytest.mark.parametrize("mark", [{"type": "eternal"}, {}, {"type": "ephemeral", "ttl": "2h"}, 5])
def test_a_wrong_mark_is_refused(ask: Ask, mark: Any) -> None:
    served = ask(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]}], **GREEDY
    )
    if mark == {}:
        assert served.body["type"] == "message"
    else:
        assert served.error["param"].startswith("messages[0].content[0].cache_control")


def test_a_prompt_beyond_the_context_has_a_code_of_its_own(ask: Ask) -> None:
    for words in ("word " * 3000, "x" * 1_100_000):  # the latter is not even tokenized
        error = ask(messages=[{"role": "user", "content": words}], **GREEDY).error
        assert (error["status"], error["code"]) == (400, "context_length_exceeded")


def test_more_than_four_marks_are_refused(ask: Ask) -> None:
    blocks = [{"type": "text", "text": "a", **MARK}] * 5
    assert ask(messages=[{"role": "user", "content": blocks}], **GREEDY).error["param"] == "cache_control"
    later = [blocks[0], {**blocks[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert "come before" in ask(messages=[{"role": "user", "content": later}], **GREEDY).error["message"]
