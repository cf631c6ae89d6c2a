"""The package `anthropic`, which refuses whatever is not as Anthropic describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.late import Late

if TYPE_CHECKING:
    from anthropic import Anthropic

anthropic = Late("anthropic")

ASKED: Any = [{"role": "user", "content": "Why?"}]
SHORT: Any = {"model": "fake", "max_tokens": 6, "extra_body": {"ignore_eos": True}}
PICK: Any = {
    "name": "pick",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Anthropic]:
    with anthropic.Anthropic(
        base_url=server,
        api_key="none",
        max_retries=0,
        timeout=HANG_SECONDS,
        _strict_response_validation=True,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(messages=ASKED, system="Be brief.", **SHORT)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 6)
    assert [block.type for block in message.content] == ["text"]
    count = client.messages.count_tokens(messages=ASKED, system="Be brief.", model="fake").input_tokens
    assert message.usage.input_tokens == count


def test_models(client: Anthropic) -> None:
    (model,) = client.models.list()
    assert model == client.models.retrieve("fake")
    assert (model.id, model.display_name, model.type) == ("fake", "fake", "model")


def test_a_stream(client: Anthropic) -> None:
    with client.messages.stream(messages=ASKED, **SHORT) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens"
    (block,) = final.content
    assert block.type == "text"
    assert block.text == text


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: Anthropic, stream: bool) -> None:
    options: Any = {"tools": [PICK], "tool_choice": {"type": "tool", "name": "pick"}, **SHORT, "max_tokens": 200}
    if stream:
        with client.messages.stream(messages=ASKED, **options) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(messages=ASKED, **options)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert block.type == "tool_use"
    assert block.input.keys() == {"a"}
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "yes"}]}
    said: Any = {"role": "assistant", "content": message.content}
    assert client.messages.create(messages=[*ASKED, said, result], tools=[PICK], **SHORT).stop_reason == "max_tokens"


def test_errors(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(messages=[], **SHORT)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(messages=ASKED, **(SHORT | {"model": "nothing"}))
    body = missing.value.body
    assert body["error"]["type"] == "not_found_error"
