"""The cases by which llama.cpp tests its server (`tools/server/tests/unit`), written anew for this one.

Here: `test_chat_completion.py` (parts of content, formats, grammars, wrong messages, log-probabilities, biases, a
context that is full), `test_completion.py` (stream against whole, tokens as prompts, seeds, requests side by side),
`test_ignore_eos.py`, `test_compat_oai_responses.py`, `test_compat_anthropic.py` (stops, results of tools, what is
missing).

Covered by other tests: `test_basic.py` and what uses OpenAI's client (test_openai_client.py); conversations, several
choices, messages, their streams, tools and counts (control/programs/bundled/, test_anthropic_client.py); a client that
leaves (control/http_server/test_served.py); `test_tokenize.py` (system/test_served.py); `test_security.py`
(control/http_server/test_callers.py and test_guard.py: pages of other origins are refused, so there are no headers for
them, and no files of the server are images: test_bad_input.py); `test_embedding.py` and `test_rerank.py`
(system/test_retrieval.py, control/programs/bundled/test_rerank.py); `test_tool_call.py` and `test_template.py`
(sdk/tools/, control/programs/bundled/test_chat_completions.py: format and template come with the checkpoint);
`test_vision_api.py` (control/programs/bundled/test_images.py); `test_lora.py` (system/test_adapters.py: an adapter is a
model here); prompts that were computed, of `test_completion.py` and `test_slot_save.py`
(control/programs/bundled/test_kept_replies.py).

Not here, since there is no such thing: slots and their files; `/props`, `/infill`, `/apply-template`; `/completion`
with `n_predict` and `response_fields` (the routes are OpenAI's); `timings` and `return_progress` (times are metrics);
`post_sampling_probs`; a context that is shifted (`test_ctx_shift.py`: a program does that); `pooling` by request;
several models behind a router; a server that sleeps; speculation by an option (a program does that); audio; tools that
the server runs. A conversation may end with two messages of the assistant, which llama.cpp refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.helpers.guard import HANG_SECONDS

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
BOOK: Any = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
PROMPT = "I believe the meaning of life is"
GREEDY: Any = {"model": "fake", "temperature": 0, "ignore_eos": True}
SHORT: Any = {**GREEDY, "max_tokens": 8}
WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]},
}
ASKED: Any = {"role": "user", "content": "What's the weather?"}
CALLED: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]}


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, trust_env=False, timeout=HANG_SECONDS) as client:
        yield client


def ask(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, path: str, **fields: Any) -> list[Any]:
    answer = client.post(path, json={**fields, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def refused(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# ---- chat completions ----


def test_content_in_parts_is_one_text(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]
    joined = ask(client, CHAT, messages=[{"role": "user", "content": "What is\nthe best book"}], **SHORT)
    assert ask(client, CHAT, messages=[{"role": "user", "content": parts}], **SHORT)["usage"] == joined["usage"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "42"}}}}, '"42"'),
        ({"structured_outputs": {"json": {"const": "foooooo"}}}, '"foooooo"'),
        ({"structured_outputs": {"grammar": 'start: "a"~5'}}, "aaaaa"),
    ],
)
def test_formats(client: httpx.Client, fields: Any, text: str) -> None:
    body = {**SHORT, "ignore_eos": False, "max_tokens": 40}
    assert ask(client, CHAT, messages=BOOK, **body, **fields)["choices"][0]["message"]["content"].strip() == text


@pytest.mark.parametrize(
    "form",
    [
        {"type": "sound"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": 123}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 123}}},
    ],
)
def test_wrong_formats(client: httpx.Client, form: Any) -> None:
    assert refused(client, CHAT, messages=BOOK, response_format=form, **SHORT)["param"].startswith("response_format")


@pytest.mark.parametrize(
    "messages",
    [None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [BOOK[0], {}]],
)
def test_wrong_messages(client: httpx.Client, messages: Any) -> None:
    assert refused(client, CHAT, messages=messages, **SHORT)["param"].startswith("messages")


def test_log_probabilities_tell_the_text(client: httpx.Client) -> None:
    asked = {"messages": BOOK, "logprobs": True, "top_logprobs": 10, **SHORT}
    (choice,) = ask(client, CHAT, **asked)["choices"]
    streamed = [one["choices"][0].get("logprobs") for one in events(client, CHAT, **asked)]
    told = [one for each in streamed if each for one in each["content"]]
    assert told == choice["logprobs"]["content"]
    spelled = bytes(byte for one in told for byte in one["bytes"])
    assert spelled.decode(errors="replace") == choice["message"]["content"]
    assert all(one["logprob"] <= 0 and one["bytes"] and len(one["top_logprobs"]) == 10 for one in told)


def test_biases_keep_tokens_away(client: httpx.Client) -> None:
    usual = ask(client, CHAT, messages=BOOK, return_token_ids=True, **SHORT)["choices"][0]["token_ids"]
    bias = {str(one): -100 for one in usual}
    biased = ask(client, CHAT, messages=BOOK, return_token_ids=True, logit_bias=bias, **SHORT)["choices"][0][
        "token_ids"
    ]
    assert len(biased) == 8
    assert not set(biased) & set(usual)


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_that_is_full(client: httpx.Client, stream: bool) -> None:
    long = [{"role": "user", "content": "This is a test " * 5000}]
    error = refused(client, CHAT, messages=long, stream=stream, **SHORT)
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")


# ---- completions ----


def test_a_stream_is_the_whole_and_ends_where_it_should(client: httpx.Client) -> None:
    whole = ask(client, TEXT, prompt=PROMPT, **SHORT)
    parts = events(client, TEXT, prompt=PROMPT, **SHORT)
    assert "".join(one["choices"][0]["text"] for one in parts) == whole["choices"][0]["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 8, "`ignore_eos`: whatever ends texts"


def test_tokens_are_prompts(client: httpx.Client) -> None:
    tokens = ask(client, "/tokenize", model="fake", prompt=PROMPT, add_special_tokens=False)["tokens"]
    text = ask(client, TEXT, prompt=PROMPT, **SHORT)["choices"][0]["text"]
    assert ask(client, TEXT, prompt=tokens, **SHORT)["choices"][0]["text"] == text
    assert [one["text"] for one in ask(client, TEXT, prompt=[tokens, PROMPT], **SHORT)["choices"]] == [text] * 2


def test_seeds(client: httpx.Client) -> None:
    def text(seed: int) -> str:
        body = {"model": "fake", "prompt": PROMPT, "seed": seed, "ignore_eos": True, "max_tokens": 16}
        return str(ask(client, TEXT, **body)["choices"][0]["text"])

    assert text(42) == text(42)
    assert len({text(seed) for seed in range(4)}) == 4


def test_requests_side_by_side_are_as_alone(client: httpx.Client) -> None:
    prompts = ["Write a very long book.", "Write a poem.", "What is LLM?", "The sky is blue.", "Write a joke.", "Why?"]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda one: ask(client, TEXT, prompt=one, **SHORT)["choices"], prompts))
    assert together == [ask(client, TEXT, prompt=one, **SHORT)["choices"] for one in prompts]


# ---- responses ----


def test_formats_of_responses(client: httpx.Client) -> None:
    def answered(form: Any) -> Any:
        told = ask(client, RESPONSES, input="Write an example", text={"format": form}, **body)
        assert told["text"]["format"].items() >= form.items()
        (message,) = [one for one in told["output"] if one["type"] == "message"]
        return message["content"][0]["text"]

    body = {**GREEDY, "ignore_eos": False, "max_output_tokens": 40}
    assert answered({"type": "json_schema", "name": "n", "schema": {"const": "foooooo"}}).strip() == '"foooooo"'
    assert answered({"type": "json_object"}).lstrip()[0] == "{"
    assert answered({"type": "text"})
    wrong = {"format": {"type": "json_schema", "name": "n"}}
    assert refused(client, RESPONSES, input="Write an example", text=wrong, **body)["param"] == "text.format.schema"


@pytest.mark.parametrize("store", [False, True])
def test_events_of_a_response_name_its_items(client: httpx.Client, store: bool) -> None:
    told = events(client, RESPONSES, input=BOOK, max_output_tokens=40, min_tokens=20, store=store, **GREEDY)
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert [one["type"] for one in told[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert len({one["response"]["id"] for one in told if "response" in one}) == 1
    item = told[2]["item"]["id"]
    assert item.startswith("msg_")
    assert {one["item_id"] for one in told if "item_id" in one} == {item}
    text = "".join(one["delta"] for one in told if one["type"] == "response.output_text.delta")
    whole = ask(client, RESPONSES, input=BOOK, max_output_tokens=40, min_tokens=20, **GREEDY)
    for output in (told[-1]["response"]["output"], whole["output"]):
        assert output[0]["content"][0]["text"] == text


# ---- messages ----


def test_a_sequence_stops_a_message(client: httpx.Client) -> None:
    text = ask(client, MESSAGES, messages=[ASKED], **SHORT)["content"][0]["text"]
    stopped = ask(client, MESSAGES, messages=[ASKED], stop_sequences=[text[3:5]], **SHORT)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", text[3:5])
    assert stopped["content"][0]["text"] == text[: text.index(text[3:5])]


@pytest.mark.parametrize(
    "before", [[], [{"type": "text", "text": "Here are the results:"}]], ids=["alone", "beside a text"]
)
def test_results_of_tools(client: httpx.Client, before: list[Any]) -> None:
    for failed in (False, True):
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny, 25°C", "is_error": failed}
        said = [ASKED, CALLED, {"role": "user", "content": [*before, result]}]
        assert ask(client, MESSAGES, messages=said, tools=[WEATHER], **SHORT)["content"][0]["type"] == "text"


@pytest.mark.parametrize("fields", [{"messages": [ASKED]}, {"max_tokens": 5}, {"max_tokens": 5, "messages": []}])
def test_what_a_message_must_have(client: httpx.Client, fields: Any) -> None:
    assert refused(client, MESSAGES, model="fake", **fields)["type"] == "invalid_request_error"
