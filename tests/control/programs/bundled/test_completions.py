"""`completions`: each field of a request, in small form."""

from __future__ import annotations

import json
from math import isclose
from typing import Any

import pytest

from inferlet_sdk import Args, Context
from inferlet_sdk.served import Vocabulary
from pie_control.authoring.native.program import Source
from pie_control.authoring.native.server import NativeServer
from tests.control.programs.bundled.launching import BUNDLED, Ask, asking

BEGIN = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="package")
def ask(server: NativeServer) -> Ask:
    return asking(server, "completions")


@pytest.fixture(scope="package")
def own(server: NativeServer) -> Any:
    """What a program of the SDK answers."""

    async def main(args: Args) -> dict[str, Any]:
        ctx = Context(args.model)
        ctx.fill(ctx.model.begin_tokens).fill(BEGIN)
        prompt, before = ctx.tokens, ctx.fork()
        scores = await Context(args.model).fill(prompt[:1]).score(prompt[1:])
        generation = before.generate(12)
        text = await generation.whole()
        return {"text": text, "prompt": prompt, "tokens": generation.tokens, "scores": scores}

    ended = server.run(Source(BUNDLED / "own.py", "own", lambda: main))
    assert ended.result is not None, ended.error
    return json.loads(ended.result)


def test_a_whole_answer(ask: Ask, own: Any) -> None:
    body = ask(model="demo", prompt=BEGIN, **GREEDY).body
    assert body.pop("created") > 1_600_000_000
    prompt, written = len(own["prompt"]), len(own["tokens"])
    assert body == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "model": "demo",
        "choices": [{"index": 0, "text": own["text"], "finish_reason": "length", "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_stream_whose_chunks_tell_the_usage_so_far(ask: Ask) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    served = ask(prompt=[BEGIN, BEGIN], **GREEDY, stream=True, stream_options=options)
    *chunks, last = served.events
    ends = [one["usage"]["completion_tokens"] for one in chunks if one["choices"][0]["finish_reason"]]
    assert (ends, last["usage"]["completion_tokens"]) == ([12, 12], 24)
    assert len({one["usage"]["prompt_tokens"] for one in chunks}) == 1


def test_a_stream(ask: Ask, own: Any) -> None:
    served = ask(prompt=BEGIN, **GREEDY, stream=True, stream_options={"include_usage": True}, logprobs=1)
    assert served.text == own["text"]
    *chunks, last = served.events
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 12)
    told = [one["choices"][0]["logprobs"] for one in chunks if one["choices"][0]["logprobs"]]
    assert "".join(token for one in told for token in one["tokens"]) == own["text"]
    assert told[0]["text_offset"][0] == 0


def test_prompts_in_every_form(ask: Ask, own: Any) -> None:
    tokens = own["prompt"]
    for prompt in (BEGIN, [BEGIN], tokens, [tokens]):
        assert ask(prompt=prompt, **GREEDY).text == own["text"]
    choices = ask(prompt=[BEGIN, tokens, "The sun"], **GREEDY, n=2).body["choices"]
    assert [one["index"] for one in choices] == list(range(6))
    assert [one["text"] == own["text"] for one in choices] == [True] * 4 + [False] * 2
    assert ask(**GREEDY).body["usage"]["prompt_tokens"] == 1
    assert len(ask(prompt=BEGIN, temperature=0).body["choices"][0]["text"]) > len(own["text"])  # 16 tokens


def test_texts_begin_as_the_tokenizer_says(ask: Ask, own: Any, server: NativeServer) -> None:
    def prompt(text: object, **fields: Any) -> list[int]:
        served = ask(prompt=text, max_tokens=1, return_token_ids=True, **fields)
        tokens: list[int] = served.body["choices"][0]["prompt_token_ids"]
        return tokens

    assert prompt(BEGIN) == own["prompt"] == asking(server, "tokens", route="/tokenize")(prompt=BEGIN).body["tokens"]
    assert prompt(BEGIN, add_special_tokens=False) == prompt(own["prompt"][1:]) == own["prompt"][1:]
    assert prompt(f"<|begin|>{BEGIN}") == own["prompt"]  # not twice
    assert ask(prompt=BEGIN, add_special_tokens=1).error["param"] == "add_special_tokens"


def test_offsets_are_places_in_the_text_where_a_character_takes_several_tokens(ask: Ask) -> None:
    prompt = "ok é🙂 now"
    choice = ask(prompt=prompt, **GREEDY, echo=True, logprobs=0).body["choices"][0]
    told = choice["logprobs"]
    assert any(one.startswith("bytes:") for one in told["tokens"])
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<")):
            assert choice["text"][offset : offset + len(token)] == token
    streamed = Vocabulary.__new__(Vocabulary)
    streamed._bytes = [bytes([one]) for one in range(256)]
    offsets = streamed.offsets()
    assert [offsets.next(one) for one in "é🙂!".encode()] == [0, 0, 1, 1, 1, 1, 2]


def test_numbers_may_be_written_with_a_point(ask: Ask, own: Any) -> None:
    sampled = {"prompt": BEGIN, "max_tokens": 4.0, "temperature": 1}
    assert ask(**sampled, seed=3.0).text == ask(**sampled, seed=3).text
    tokens = [float(one) for one in own["prompt"]]
    assert ask(prompt=tokens, **GREEDY, stop_token_ids=[5.0]).text == ask(prompt=BEGIN, **GREEDY).text
    assert ask(prompt=[tokens], **GREEDY).text == ask(prompt=BEGIN, **GREEDY).text
    for wrong in ({"seed": 3.5}, {"seed": True}, {"seed": 1e400}, {"stop_token_ids": [1.5]}, {"prompt": [0.5]}):
        assert ask(**{"prompt": BEGIN, **wrong}).error["param"] == next(iter(wrong))


def test_echo(ask: Ask, own: Any) -> None:
    assert ask(prompt=BEGIN, **GREEDY, echo=True).text == BEGIN + own["text"]
    choice = ask(prompt=BEGIN, **GREEDY, echo=True, logprobs=2, return_token_ids=True).body["choices"][0]
    told, tokens = choice["logprobs"], [*own["prompt"], *own["tokens"]]
    assert choice["prompt_token_ids"] + choice["token_ids"] == tokens
    assert "".join(told["tokens"]) == "<|begin|>" + BEGIN + own["text"]
    assert told["text_offset"][:2] == [0, 0]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    scores = told["token_logprobs"][1 : len(own["prompt"])]
    assert all(isclose(one, other, abs_tol=2e-2) for one, other in zip(scores, own["scores"], strict=True))
    assert [len(one) for one in told["top_logprobs"][1:]] == [2] * (len(tokens) - 1)
    assert told["text_offset"][len(own["prompt"])] == len(BEGIN)
    stopped = ask(prompt=BEGIN, **GREEDY, stop=[own["text"][2:4]], logprobs=0).body["choices"][0]  # within a token
    assert "".join(stopped["logprobs"]["tokens"]) == stopped["text"] == own["text"][:2]
    assert stopped["logprobs"]["token_logprobs"][-1] is None
    alone = ask(prompt=BEGIN, echo=True, logprobs=0, max_tokens=0).body
    assert alone["choices"][0]["text"] == BEGIN
    assert len(alone["choices"][0]["logprobs"]["token_logprobs"]) == len(own["prompt"])
    assert alone["usage"]["completion_tokens"] == 0


def test_log_probabilities_of_the_prompt(ask: Ask, own: Any, server: NativeServer) -> None:
    body = ask(prompt=[BEGIN, "The sun"], **GREEDY, prompt_logprobs=2, return_token_ids=True).body
    for choice in body["choices"]:
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        for token, told in zip(choice["prompt_token_ids"][1:], rest, strict=True):
            assert sorted(one["rank"] for one in told.values() if one["rank"] is not None) == [1, 2]
            assert len(told) == 2 + (told[str(token)]["rank"] is None)
    begun = body["choices"][0]["prompt_logprobs"][1:]
    scores = [told[str(token)]["logprob"] for told, token in zip(begun, own["prompt"][1:], strict=True)]
    assert all(isclose(one, other, abs_tol=2e-2) for one, other in zip(scores, own["scores"], strict=True))
    asked = [{"role": "user", "content": "Why?"}]
    chat = asking(server, "chat_completions")(messages=asked, prompt_logprobs=0, **GREEDY)
    assert len(chat.body["prompt_logprobs"]) == chat.body["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [BEGIN, 5]}, "prompt"),
        ({"prompt": [BEGIN] * 200}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "stream": True}, "echo"),
        ({"best_of": 4}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 50}, "logprobs"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"prompt": "word " * 3000}, "prompt"),
    ],
)
def test_refusals_name_the_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    error = ask(**{"prompt": BEGIN, **fields}).error
    assert (error["status"], error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)


def test_tokens_beyond_the_vocabulary(ask: Ask) -> None:
    assert ask(prompt=[1, 10**6]).error["status"] == 400
