"""Whatever stands in a field, a program serves the request or refuses it by the name of the field; it never fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.authoring.native.server import NativeServer
from tests.control.programs.bundled.launching import asking

SHORT: dict[str, Any] = {"max_tokens": 2}
USER: Any = [{"role": "user", "content": "Hi"}]
BASES: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": USER},
    "completions": {"prompt": "Once"},
    "responses": {"input": "Hi", "max_tokens": None, "max_output_tokens": 2},
    "messages": {"messages": USER},
    "embeddings": {"input": "Hi"},
    "rerank": {"query": "a", "documents": ["b"]},
}
FIELDS = {
    "chat_completions": "messages tools tool_choice add_generation_prompt continue_final_message chat_template_kwargs "
    "reasoning_effort thinking_token_budget top_logprobs response_format modalities max_completion_tokens",
    "completions": "prompt echo best_of suffix logprobs",
    "responses": "input instructions reasoning text tools tool_choice parallel_tool_calls include truncation store",
    "messages": "messages system stop_sequences tools tool_choice thinking output_config mcp_servers",
    "embeddings": "input encoding_format dimensions",
    "rerank": "query documents top_n return_documents instruction",
}
SHARED = (
    "model stream stream_options max_tokens n temperature top_p top_k min_p typical_p seed presence_penalty "
    "frequency_penalty repetition_penalty logit_bias stop stop_token_ids min_tokens ignore_eos structured_outputs "
    "return_token_ids cache_salt request_id guided_json priority service_tier skip_special_tokens logprobs"
)
PARTS = ["type", "text", "function", "role", "user", "content", "name", "image_url", "schema", "json", "regex", "("]
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(PARTS)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(PARTS), inner, max_size=3)
)


def tool(parameters: Any) -> Any:
    function = {"name": "f", "parameters": parameters, "input_schema": parameters}
    return [{"function": function, **function}]


def called(arguments: str) -> Any:
    return [{"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]


@pytest.mark.parametrize("program", BASES)
def test_any_value_in_any_field(server: NativeServer, program: str) -> None:
    ask = asking(server, program)
    known = [*FIELDS[program].split(), *(SHARED.split() if program not in ("embeddings", "rerank") else ())]

    @settings(max_examples=30)
    @given(st.sampled_from(known), VALUES)
    def check(field: str, value: Any) -> None:
        served = ask(**{**SHORT, **BASES[program], field: value})
        if isinstance(served.body, dict) and "served_error" in served.body:
            error = served.error
            assert error["status"] in (400, 404), error
            assert error["param"] is not None, error
            assert error["message"].startswith(error["param"]), error

    check()


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("tools", tool({"properties": 5}), "tools[0].function.parameters.properties"),
        ("tools", tool({"properties": [1]}), "tools[0].function.parameters.properties"),
        ("messages", called("[1]"), "messages[0].tool_calls[0].function.arguments"),
        ("messages", called("{"), "messages[0].tool_calls[0].function.arguments"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}, "response_format"),
        ("structured_outputs", {"regex": "("}, "structured_outputs"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_tokens", 1e30, "max_tokens"),
        ("parallel_tool_calls", "no", "parallel_tool_calls"),
        ("structured_outputs", {"structural_tag": {}}, "structured_outputs"),
    ],
)
def test_the_field_is_named(server: NativeServer, field: str, value: Any, param: str) -> None:
    error = asking(server, "chat_completions")(**{**SHORT, "messages": USER, field: value}).error
    assert (error["status"], error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("program", "field", "value"),
    [
        ("responses", "max_tokens", 5),
        ("responses", "max_completion_tokens", 5),
        ("responses", "response_format", {"type": "json_object"}),
        ("messages", "n", 2),
        ("messages", "tool_choice", "any"),
        ("messages", "tool_choice", {"type": "any"}),
        ("messages", "stop", 5),
        ("messages", "response_format", "json"),
        ("messages", "stop_sequences", 5),
        ("completions", "max_completion_tokens", "x"),
    ],
)
def test_what_another_route_calls_so_is_not_left_out_in_silence(
    server: NativeServer, program: str, field: str, value: Any
) -> None:
    error = asking(server, program)(**{**SHORT, **BASES[program], field: value}).error
    assert (error["status"], error["param"]) == (400, field)


def test_names_of_chat_completions_are_served_elsewhere(server: NativeServer) -> None:
    text = asking(server, "completions")(prompt="Once", max_completion_tokens=3, ignore_eos=True)
    assert text.body["usage"]["completion_tokens"] == 3
    ask = asking(server, "messages")
    whole = ask(messages=USER, max_tokens=20, temperature=0, ignore_eos=True).body["content"][0]["text"]
    cut = ask(messages=USER, max_tokens=20, temperature=0, ignore_eos=True, stop=[whole[3:6]]).body
    assert (cut["stop_reason"], whole.startswith(cut["content"][0]["text"])) == ("stop_sequence", True)


def test_numbers_in_other_forms(server: NativeServer) -> None:
    """JSON Schema calls 2.0 an integer, and OpenAI's description allows a `top_p` of 0."""
    ask = asking(server, "chat_completions")
    served = ask(messages=USER, max_tokens=2.0, top_p=0, seed=1, ignore_eos=True)
    greedy = ask(messages=USER, max_tokens=2, temperature=0, ignore_eos=True)
    assert served.text == greedy.text
    assert served.body["usage"]["completion_tokens"] == 2
