"""The package `openai`, which refuses whatever is not as OpenAI describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.late import Late

if TYPE_CHECKING:
    from openai import OpenAI

openai = Late("openai")

ASKED: Any = [{"role": "user", "content": "Why?"}]
SHORT: Any = {"model": "fake", "max_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


def connected(server: str, strict: bool) -> OpenAI:
    """A client that refuses what is not as described, or one that takes what it gets."""
    client: OpenAI = openai.OpenAI(
        base_url=f"{server}/v1",
        api_key="none",
        max_retries=0,
        timeout=HANG_SECONDS,
        _strict_response_validation=strict,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )
    return client


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[OpenAI]:
    with connected(server, strict=True) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").object == "model"


def test_a_chat(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=ASKED, n=2, **SHORT)
    assert [one.finish_reason for one in whole.choices] == ["length", "length"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details is not None
    chunks = list(
        client.chat.completions.create(messages=ASKED, stream=True, stream_options={"include_usage": True}, **SHORT)
    )
    text = "".join(one.choices[0].delta.content or "" for one in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)
    assert chunks[-2].choices[0].finish_reason == "length"


def test_logprobs(client: OpenAI) -> None:
    chat = client.chat.completions.create(messages=ASKED, logprobs=True, top_logprobs=2, **SHORT).choices[0]
    assert chat.logprobs is not None
    assert [len(one.top_logprobs) for one in chat.logprobs.content or ()] == [2] * 6
    text = client.completions.create(prompt="a", logprobs=2, **SHORT).choices[0]
    assert text.logprobs is not None
    assert len(text.logprobs.tokens or ()) == 6


def test_completions(client: OpenAI, server: str) -> None:
    whole = client.completions.create(prompt=["a", "b"], **SHORT)
    assert [one.index for one in whole.choices] == [0, 1]
    # `finish_reason` of a chunk is null until the last one, as OpenAI's is, which the strict client does not know.
    with connected(server, strict=False) as lenient:
        streamed = list(lenient.completions.create(prompt="a", stream=True, **SHORT))
    assert "".join(one.choices[0].text for one in streamed) == whole.choices[0].text


def test_tools(client: OpenAI) -> None:
    options: Any = {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False}
    message = client.chat.completions.create(messages=ASKED, **options, **(SHORT | {"max_tokens": 200})).choices[0]
    assert message.finish_reason == "tool_calls"
    call: Any = (message.message.tool_calls or [])[0]
    assert json.loads(call.function.arguments).keys() == {"a"}
    answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "yes"}
    again = client.chat.completions.create(messages=[*ASKED, message.message, answer], tools=[ADD], **SHORT)
    assert again.choices[0].finish_reason == "length"


def test_a_stream_of_tools(client: OpenAI) -> None:
    options: Any = {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}}
    with client.chat.completions.stream(messages=ASKED, **options, **(SHORT | {"max_tokens": 200})) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.name == "add"


def test_a_format(client: OpenAI) -> None:
    described: Any = {"name": "n", "schema": ADD["function"]["parameters"], "strict": True}
    form: Any = {"type": "json_schema", "json_schema": described}
    answer = client.chat.completions.create(messages=ASKED, response_format=form, **(SHORT | {"max_tokens": 60}))
    assert json.loads(answer.choices[0].message.content or "").keys() == {"a"}


def test_responses(client: OpenAI) -> None:
    short: Any = {"model": "fake", "max_output_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.responses.create(input="Why?", **short)
    assert (whole.status, whole.usage is not None and whole.usage.output_tokens) == ("incomplete", 6)
    with client.responses.stream(input="Why?", **short) as stream:
        events = list(stream)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    flat: Any = {"type": "function", **ADD["function"], "strict": True}
    chosen: Any = {"tools": [flat], "tool_choice": {"type": "function", "name": "add"}}
    (call,) = client.responses.create(input="Why?", **chosen, **(short | {"max_output_tokens": 200})).output
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"a"}


def test_stored_responses(client: OpenAI) -> None:
    short: Any = {"model": "fake", "max_output_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
    first = client.responses.create(input="Why?", **short)
    assert client.responses.retrieve(first.id) == first
    (item,) = client.responses.input_items.list(first.id).data
    assert (item.type, item.id) == ("message", f"msg_{first.id.removeprefix('resp_')}_in0")
    second = client.responses.create(input="And then?", previous_response_id=first.id, **short)
    said: Any = [{"role": "user", "content": "Why?"}, *first.output, {"role": "user", "content": "And then?"}]
    whole = client.responses.create(input=said, store=False, **short)
    assert second.usage is not None
    assert whole.usage is not None
    assert (second.usage.input_tokens, second.output_text) == (whole.usage.input_tokens, whole.output_text)
    client.responses.delete(first.id)
    for lost in (first.id, whole.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(lost)
    third = client.responses.create(input="And then?", previous_response_id=second.id, **short)
    assert third.usage is not None
    assert third.usage.input_tokens > second.usage.total_tokens  # the first one is there for those after it
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="And then?", previous_response_id=first.id, **short)
    assert refused.value.code == "previous_response_not_found"


def test_responses_in_the_background(client: OpenAI) -> None:
    short: Any = {"model": "fake", "max_output_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
    made = client.responses.create(input="Why?", background=True, **short)
    while made.status == "in_progress":
        made = client.responses.retrieve(made.id)
    assert (made.status, made.background) == ("incomplete", True)
    endless: Any = short | {"max_output_tokens": 400}
    running = client.responses.create(input="Why?", background=True, **endless)
    assert client.responses.cancel(running.id).status in ("cancelled", "incomplete")
    events = list(client.responses.create(input="Why?", background=True, stream=True, **short))
    begun: Any = events[0]
    rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=2))
    assert rest == events[3:]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(begun.response.id, stream=True, starting_after=len(events))
    assert refused.value.param == "starting_after"


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=ASKED, **(SHORT | {"n": 500}))
    assert (refused.value.param, refused.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=ASKED, stream=True, **(SHORT | {"extra_body": {"guided_regex": "a"}}))
    assert refused.value.param == "guided_regex"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(messages=ASKED, model="nothing")
    assert missing.value.code == "model_not_found"
