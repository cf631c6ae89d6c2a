"""Answers are what OpenAI's own description of its API says: schemathesis asks what that allows, and what not.

`openai_description/` is cut from it by scripts/update_openai_description.py. It says nothing of errors but their form;
here every request may be refused with it. Answers are short, so that many fit into a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.schemathesis import check_answers
from tests.helpers.tiers import corpus

DESCRIPTION = json.loads((Path(__file__).parent / "openai_description" / "openapi.json").read_text("utf-8"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LENGTHS = {
    "CreateChatCompletionRequest": "max_completion_tokens",
    "CreateCompletionRequest": "max_tokens",
    "CreateResponse": "max_output_tokens",
    "CreateEmbeddingRequest": None,
}
"""The schemas of requests, and their field for the length of an answer."""
REFUSED = (
    *("audio", "functions", "function_call", "modalities", "prediction", "store", "verbosity", "web_search_options"),
    *("service_tier", "best_of", "suffix", "background", "conversation", "include", "max_tool_calls", "moderation"),
    *("previous_response_id", "prompt_cache_retention", "truncation"),
)
"""Fields that are not served, or not with each value (docs/served-fields.md): left out, so that more is served."""
STORED = "prompt"
"""Of a response: one that OpenAI keeps. It is refused, too."""
TOOL: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}}}


def tried() -> Any:
    """The description with the model of this server, errors and short answers. Streams have a test of their own."""
    description = json.loads(json.dumps(DESCRIPTION))
    schemas = description["components"]["schemas"]
    for name, length in LENGTHS.items():
        _narrow(schemas, schemas[name], length)
        if length:
            needed = [length, *(["input"] if name == "CreateResponse" else [])]
            schemas[name] = {"allOf": [schemas[name], {"type": "object", "required": needed}]}
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]
    scores = choice["properties"]["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):  # null of the first token with `echo`, as OpenAI answers it
        scores[name]["items"] = {"anyOf": [scores[name]["items"], {"type": "null"}]}
    error = {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}
    for path in description["paths"].values():
        for operation in path.values():
            operation["responses"]["200"]["content"].pop("text/event-stream", None)
            operation["responses"]["4XX"] = {"description": "an error", "content": {"application/json": error}}
    return description


def _narrow(schemas: Any, schema: Any, length: str | None) -> None:
    """Changes the fields of a request in place, wherever they are declared."""
    if "$ref" in schema:
        _narrow(schemas, schemas[schema["$ref"].rpartition("/")[2]], length)
    for part in schema.get("allOf", ()):
        _narrow(schemas, part, length)
    fields = schema.get("properties", {})
    for name in (*REFUSED, "stream", *([STORED] if length == LENGTHS["CreateResponse"] else ())):
        fields.pop(name, None)
    if "model" in fields:
        fields["model"] = {"const": "fake"}
    if length in fields:
        fields[length] = {"type": "integer", "minimum": 1, "maximum": 4}
    if "dimensions" in fields:
        del fields["encoding_format"]  # of an answer in base64 the description knows nothing
        fields["dimensions"] = {"enum": [2, 8]}
    if "input" in fields:
        fields["input"] = {"type": "string", "minLength": 1}  # tokens are not all known, and items not all served


@pytest.mark.parametrize("run", corpus([("fuzzing", 8), ("fuzzing,coverage", 60)], kind=lambda one: "phases"))
def test_every_answer_is_described(server: str, tmp_path: Path, run: tuple[str, int]) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(tried()))
    options = ["--url", f"{server}/v1", "--phases", run[0], "--checks", CHECKS]
    told = check_answers(tmp_path, "openapi.json", run[1], *options, "--report", "ndjson", "--report-dir", "report")
    assert served(tmp_path / "report") == {f"{m.upper()} {path}" for path, m in operations()}, told


def operations() -> list[tuple[str, str]]:
    return [(path, method) for path, each in DESCRIPTION["paths"].items() for method in each]


def served(folder: Path) -> set[str]:
    """The operations of which a request was not refused."""
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text("utf-8").splitlines()]
    recorders = [line["ScenarioFinished"]["recorder"] for line in lines if "ScenarioFinished" in line]
    return {
        one["label"]
        for one in recorders
        for exchange in one["interactions"].values()
        if (exchange.get("response") or {}).get("status_code") == 200
    }


@pytest.mark.parametrize(
    ("path", "schema", "fields"),
    [
        ("chat/completions", "CreateChatCompletionStreamResponse", {"logprobs": True, "top_logprobs": 2, "n": 2}),
        ("chat/completions", "CreateChatCompletionStreamResponse", {"tools": [{"type": "function", "function": TOOL}]}),
        ("responses", "ResponseStreamEvent", {}),
        ("responses", "ResponseStreamEvent", {"tools": [{"type": "function", "strict": True, **TOOL}]}),
    ],
)
def test_every_event_is_described(server: str, path: str, schema: str, fields: dict[str, Any]) -> None:
    """Those of completions are not: a `finish_reason` is never null by their description, but OpenAI's is."""
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": DESCRIPTION["components"]}
    described = jsonschema_rs.validator_for(wanted)
    is_chat = path == "chat/completions"
    asked: Any = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40} if is_chat else {"input": "Hi"}
    length = {"max_output_tokens": 40, "ignore_eos": True, "seed": 1}
    chosen = {"tool_choice": "required"} if "tools" in fields else {}
    usage = {"stream_options": {"include_usage": True}} if is_chat else {}
    with httpx.Client(trust_env=False, timeout=HANG_SECONDS) as client:
        body = {"model": "fake", "stream": True, **asked, **length, **chosen, **usage, **fields}
        answer = client.post(f"{server}/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    events = [one.partition("data: ")[2] for one in answer.text.strip().split("\n\n")]
    assert not is_chat or events.pop() == "[DONE]"
    assert len(events) > 2
    for event in events:
        described.validate(json.loads(event))
