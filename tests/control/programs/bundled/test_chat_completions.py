"""`chat_completions`: each field of a request, in small form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inferlet_sdk import Args, Context
from inferlet_sdk.served.requests import wanted
from inferlet_sdk.traits.core import get_model_info
from pie_control.authoring.native.program import Source
from pie_control.authoring.native.server import NativeServer
from tests.control.programs.bundled.launching import BUNDLED, Ask, Served, asking

ASKED = [{"role": "user", "content": "What is 2 plus 3?"}]


@pytest.fixture(scope="package")
def ask(server: NativeServer) -> Ask:
    return asking(server, "chat_completions")


@pytest.fixture(scope="package")
def own(server: NativeServer) -> Any:
    """What a program of the SDK answers."""

    async def main(args: Args) -> dict[str, Any]:
        ctx = Context(args.model).fill_chat(ASKED)
        size = len(ctx)
        generation = ctx.generate(40)
        return {"text": await generation.whole(), "prompt": size, "written": len(generation.tokens)}

    ended = server.run(Source(BUNDLED / "own.py", "own", lambda: main))
    assert ended.result is not None, ended.error
    return json.loads(ended.result)


def test_a_whole_answer(ask: Ask, own: Any) -> None:
    body = ask(model="demo+chat", messages=ASKED, temperature=0, max_tokens=40).body
    assert body.pop("created") > 1_600_000_000
    message = {"role": "assistant", "content": own["text"], "refusal": None}
    assert body == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "model": "demo+chat",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": own["prompt"],
            "completion_tokens": own["written"],
            "total_tokens": own["prompt"] + own["written"],
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_stream(ask: Ask, own: Any) -> None:
    served = ask(messages=ASKED, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True})
    *chunks, last = served.events
    assert served.body is None
    assert served.text == own["text"]
    assert {one["object"] for one in served.events} == {"chat.completion.chunk"}
    assert len({one["id"] for one in served.events}) == 1
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert [one["choices"][0]["delta"].get("role") for one in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert {one["usage"] for one in chunks} == {None}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == own["written"]


def test_a_stream_whose_chunks_tell_the_usage_so_far(ask: Ask, own: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    served = ask(messages=ASKED, temperature=0, max_tokens=40, stream=True, stream_options=options)
    written = [one["usage"]["completion_tokens"] for one in served.events]
    assert served.text == own["text"]
    assert written == sorted(written)
    assert 1 <= written[0] < written[-2] == written[-1] == own["written"]


GREEDY = {"temperature": 0, "max_tokens": 40}


@pytest.mark.parametrize(
    ("fields", "finish_reason", "tokens"),
    [
        ({"max_tokens": 2}, "length", 2),
        ({"max_completion_tokens": 3, "max_tokens": None}, "length", 3),
        ({"max_tokens": 60, "min_tokens": 50}, None, range(50, 61)),
        ({"max_tokens": 30, "ignore_eos": True}, "length", 30),
        ({"max_tokens": 30, "ignore_eos": True, "min_tokens": 10}, "length", 30),
        ({"max_tokens": 30, "min_tokens": 30}, "length", 30),
        ({"temperature": 1.3, "seed": 3, "max_tokens": 5, "top_p": 0.9, "top_k": 20, "min_p": 0.01}, None, range(6)),
        ({"unknown": {"field": 1}, "user": "u", "metadata": {"a": "b"}, "max_tokens": 1}, "length", 1),
    ],
)
def test_how_long_it_is(ask: Ask, fields: dict[str, Any], finish_reason: str | None, tokens: Any) -> None:
    body = ask(messages=ASKED, **{**GREEDY, **fields}).body
    assert finish_reason in (None, body["choices"][0]["finish_reason"])
    written = body["usage"]["completion_tokens"]
    assert written == tokens or (isinstance(tokens, range) and written in tokens)


def test_what_a_model_advises_is_the_default(ask: Ask, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    advised = {"temperature": 1e-3, "top_k": 1, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.0}
    free = {"messages": ASKED, "max_tokens": 40, "ignore_eos": True, "seed": 4}
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1}
    wild = ask(**free, **hot).text
    monkeypatch.setattr(wanted, "get_model_info", lambda name: replace(get_model_info(name), sampling=advised))
    assert ask(messages=ASKED, max_tokens=40).text == own["text"] != wild
    assert ask(**free, **hot).text == wild, "a request has the last word"
    advised["repetition_penalty"] = 1.5
    assert ask(messages=ASKED, max_tokens=40).text != own["text"]
    assert ask(messages=ASKED, max_tokens=40, presence_penalty=1e-9).text == own["text"], "there is one kind of penalty"


def test_stop_strings_and_tokens(ask: Ask, own: Any) -> None:
    word = own["text"].split()[1]
    cut = own["text"][: own["text"].index(word)]
    for fields in ({"stop": word}, {"stop": ["nowhere", word]}, {"stop": word, "stream": True}):
        served = ask(messages=ASKED, **GREEDY, **fields)
        assert (served.text, served.finish_reason) == (cut, "stop")
    assert ask(messages=ASKED, **GREEDY, stop=word, include_stop_str_in_output=True).text == cut + word
    first = ask(messages=ASKED, **GREEDY, return_token_ids=True).body["choices"][0]["token_ids"][1]
    assert (
        len(
            ask(messages=ASKED, **GREEDY, stop_token_ids=[first], return_token_ids=True).body["choices"][0]["token_ids"]
        )
        == 1
    )


def test_choices_are_forks(ask: Ask) -> None:
    whole = ask(messages=ASKED, n=3, seed=5, max_tokens=6, temperature=1.5).body
    assert [one["index"] for one in whole["choices"]] == [0, 1, 2]
    texts = [one["message"]["content"] for one in whole["choices"]]
    assert len(set(texts)) > 1
    streamed = ask(messages=ASKED, n=3, seed=5, max_tokens=6, temperature=1.5, stream=True).events
    for number, text in enumerate(texts):
        deltas = [one["choices"][0] for one in streamed if one["choices"][0]["index"] == number]
        assert "".join(one["delta"].get("content", "") for one in deltas) == text
    single = ask(messages=ASKED, seed=5, max_tokens=6, temperature=1.5).body
    assert single["choices"][0]["message"]["content"] == texts[0]
    assert single["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_logprobs(ask: Ask) -> None:
    whole = ask(messages=ASKED, **GREEDY, logprobs=True, top_logprobs=2).body["choices"][0]
    content = whole["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == whole["message"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == whole["message"]["content"]
    for one in content:
        assert one["top_logprobs"][0]["logprob"] == one["logprob"] <= 0
        assert len(one["top_logprobs"]) == 2
    text = whole["message"]["content"]
    for stop in ((), (text.split()[1],), (text[1:3],), (text[4:6],)):  # within a token, and over two
        alone = ask(messages=ASKED, **GREEDY, logprobs=True, top_logprobs=2, stop=stop).body["choices"][0]
        events = ask(messages=ASKED, **GREEDY, logprobs=True, top_logprobs=2, stop=stop, stream=True).events
        streamed = [s for one in events if (told := one["choices"][0]["logprobs"]) for s in told["content"]]
        assert [one["token"] for one in streamed] == [one["token"] for one in alone["logprobs"]["content"]]
        assert alone["message"]["content"] == (text.partition(*stop)[0] if stop else text)


def test_bias_and_penalties(ask: Ask) -> None:
    plain = ask(messages=ASKED, **GREEDY, return_token_ids=True).body
    tokens = plain["choices"][0]["token_ids"]
    assert plain["prompt_token_ids"]
    biased = ask(messages=ASKED, **GREEDY, return_token_ids=True, logit_bias={str(tokens[0]): -100}).body
    assert tokens[0] not in biased["choices"][0]["token_ids"]
    long = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
    first = ask(messages=ASKED, **long).body["choices"][0]["token_ids"]
    penalized = ask(messages=ASKED, **long, presence_penalty=2, frequency_penalty=2).body["choices"][0]["token_ids"]
    assert len(set(first)) < len(set(penalized))
    assert first[0] == penalized[0], "the prompt does not count"


@pytest.mark.parametrize(
    ("format", "check"),
    [
        ({"response_format": {"type": "json_object"}}, lambda text: text.startswith("{")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
                "type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["a"], "additionalProperties": False}}}},
            lambda text: 1 <= json.loads(text)["a"] <= 9,
        ),
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]"}}, lambda text: text[3] == "-" and len(text) == 5),
        ({"structured_outputs": {"choice": ["yes (sure)", "no."]}}, lambda text: text in ("yes (sure)", "no.")),
        ({"structured_outputs": {"grammar": 'start: "a" "b"+ "c"'}}, lambda text: text[0] == "a" and text[-1] in "bc"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, lambda text: isinstance(json.loads(text), bool)),
        ({"structured_outputs": {"regex": "[a-c]+!"}, "min_tokens": 4}, lambda text: set(text) <= set("abc!")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_formats(ask: Ask, format: dict[str, Any], check: Any, stream: bool) -> None:
    text = ask(messages=ASKED, temperature=0.7, seed=1, max_tokens=60, stream=stream, **format).text
    assert check(text), text


ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
NEG = {"name": "neg", "parameters": {"type": "object", "properties": {"of": {"type": "integer"}}, "required": ["of"]}}
TOOLS = [{"type": "function", "function": ADD}, {"type": "function", "function": NEG}]


def calls_of(served: Served) -> list[dict[str, Any]]:
    """The calls of the first choice, streamed or not."""
    if not served.events:
        return list(served.body["choices"][0]["message"]["tool_calls"])
    return [one for event in served.events for one in event["choices"][0]["delta"].get("tool_calls", [])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"add", "neg"}),
        ({"type": "function", "function": {"name": "neg"}}, {"neg"}),
    ],
)
def test_calls_of_tools(ask: Ask, choice: Any, names: set[str], stream: bool) -> None:
    served = ask(messages=ASKED, tools=TOOLS, tool_choice=choice, **GREEDY, stream=stream, parallel_tool_calls=False)
    (call,) = calls_of(served)
    assert served.finish_reason == "tool_calls"
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"]["name"] in names
    wanted = {"add": {"a", "b"}, "neg": {"of"}}[call["function"]["name"]]
    assert json.loads(call["function"]["arguments"]).keys() == wanted
    assert served.text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_within_a_call_says_so(ask: Ask, stream: bool) -> None:
    """Not that its calls are all there."""
    many = {"temperature": 0, "tools": TOOLS, "tool_choice": "required", "min_tokens": 20}
    cut = ask(messages=ASKED, **many, max_tokens=20, stream=stream)
    assert (len(calls_of(cut)), cut.finish_reason) == (1, "length")


def tool_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "paint", "parameters": parameters}}


OF: dict[str, Any] = {"properties": {"of": {"$ref": "#/$defs/Colour"}}, "required": ["of"]}
COLOURS = {"Colour": {"type": "string", "enum": ["red", "green"]}, "Of": OF}


@pytest.mark.parametrize(
    "parameters",
    [
        {**OF, "$defs": COLOURS},
        {"allOf": [{"$ref": "#/$defs/Of"}], "$defs": COLOURS},
        {"properties": {"of": True}, "required": ["of"]},
        {"properties": {"of": {"type": "null"}}, "required": ["of", "to"]},
        {"properties": {"of": {"type": "null"}}, "required": "of"},
        {"properties": {"of": {"type": "null"}}, "required": [5]},
    ],
)
def test_a_tool_may_have_any_schema(ask: Ask, parameters: dict[str, Any]) -> None:
    one_call = {"tool_choice": "required", "parallel_tool_calls": False}
    served = ask(messages=ASKED, tools=[tool_of(parameters)], max_tokens=60, **one_call)
    assert served.finish_reason in ("tool_calls", "length"), served.body  # a value of any kind may be long
    if "$defs" in parameters:
        assert json.loads(calls_of(served)[0]["function"]["arguments"])["of"] in ("red", "green")


def test_an_agent_goes_on(ask: Ask) -> None:
    asked = [{"role": "user", "content": "What is 12 plus 30?"}]
    first = ask(messages=asked, tools=TOOLS, **GREEDY, tool_choice="required", parallel_tool_calls=False)
    message = first.body["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
    second = ask(messages=[*asked, message, result], tools=TOOLS, **GREEDY)
    assert second.body["usage"]["prompt_tokens"] > first.body["usage"]["prompt_tokens"]
    assert second.finish_reason in ("stop", "tool_calls")


def test_tools_that_are_not_called(ask: Ask, own: Any) -> None:
    assert ask(messages=ASKED, tools=TOOLS, tool_choice="none", **GREEDY).text == own["text"]


def test_tools_and_a_format(ask: Ask) -> None:
    x = {"x": {"type": "boolean"}}
    schema = {"type": "object", "properties": x, "required": ["x"], "additionalProperties": False}
    kept = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    served = ask(messages=ASKED, tools=TOOLS, parallel_tool_calls=False, **GREEDY, **kept)
    if served.finish_reason == "tool_calls":
        assert calls_of(served)
    else:
        assert json.loads(served.text).keys() == {"x"}


def test_messages_in_every_form(ask: Ask, own: Any) -> None:
    parts = [{"type": "text", "text": "What is 2 plus"}, {"type": "text", "text": "3?"}]
    joined = ask(messages=[{"role": "user", "content": "What is 2 plus\n3?"}], **GREEDY).text
    assert ask(messages=[{"role": "user", "content": parts}], **GREEDY).text == joined
    named = ask(messages=[{"role": "developer", "content": "Be brief."}, *ASKED], **GREEDY)
    assert named.text == ask(messages=[{"role": "system", "content": "Be brief."}, *ASKED], **GREEDY).text
    words = own["text"].split(" ")
    begun = [*ASKED, {"role": "assistant", "content": " ".join(words[:2])}]
    rest = ask(messages=begun, **GREEDY, continue_final_message=True, add_generation_prompt=False)
    assert rest.text == "".join(f" {word}" for word in words[2:])
    without = ask(messages=ASKED, max_tokens=1, add_generation_prompt=False).body["usage"]["prompt_tokens"]
    assert without == own["prompt"] - 1
    assert ask(messages=ASKED, max_tokens=1, request_id="mine").body["id"] == "chatcmpl-mine"


def test_what_was_computed_is_not_computed_again(ask: Ask) -> None:
    long = [{"role": "user", "content": "one two three four five six seven eight nine ten " * 30}]
    first = ask(messages=long, max_tokens=1, cache_salt="a").body["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    for salt, n, is_found in (("a", 1, True), ("a", 2, True), ("b", 2, False), ("b", 1, True), (None, 1, False)):
        usage = ask(messages=long, max_tokens=1, cache_salt=salt, n=n).body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached % 16 == 0
        assert cached < usage["prompt_tokens"] == first["prompt_tokens"]
        assert (cached > 256) == is_found


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
        ({"n": 500}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"seed": "x"}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 40}, "top_logprobs"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
        ({"logit_bias": {str(n): 1 for n in range(500)}}, "logit_bias"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"repetition_penalty": 1.2, "presence_penalty": 1}, "repetition_penalty"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [tool_of({"properties": {"a": {"type": "txt"}}})], "tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"moderation": {"policy": {"input": {"mode": "block"}}}}, "moderation"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"functions": []}, "functions"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"priority": 11}, "priority"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)
def test_refusals_name_the_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    error = ask(**{"messages": ASKED, **fields}).error
    assert (error["status"], error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)


def test_other_refusals(ask: Ask, server: NativeServer) -> None:
    assert "not JSON" in ask(body=b'{"messages": [').error["message"]
    assert "must be a JSON object" in ask(body=b"[]").error["message"]
    long = ask(messages=[{"role": "user", "content": "word " * 3000}])
    assert (long.error["code"], long.error["param"]) == ("context_length_exceeded", "messages")
    endless = ask(messages=[{"role": "user", "content": "x" * 1_100_000}]).error  # it is not even tokenized
    assert (endless["status"], endless["code"]) == (400, "context_length_exceeded")
    unknown = asking(server, "chat_completions", model="nothing")(messages=ASKED).error
    assert (unknown["status"], unknown["code"], unknown["param"]) == (404, "model_not_found", "model")
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    blind = ask(messages=[{"role": "user", "content": [part]}]).error
    assert (blind["param"], "takes no images" in blind["message"]) == ("messages[0].content[0].image_url.url", True)
    assert ask(messages=ASKED, structured_outputs={"regex": "["}).error["status"] == 400
    assert ask(messages=ASKED, stream=True, structured_outputs={"grammar": "start: nothing"}).error["status"] == 400
