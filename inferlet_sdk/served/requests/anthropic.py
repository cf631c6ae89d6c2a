"""A request for Anthropic's messages, as the one for a chat completion that asks the same."""

from __future__ import annotations

import json
import re
from typing import Any

from inferlet_sdk.served.errors import Refused
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.served.requests.caching import CacheMark, cache_marks
from inferlet_sdk.served.requests.messages import checked_messages

_TRANSLATED = (
    *("system", "messages", "max_tokens", "stop_sequences", "tools", "tool_choice", "thinking", "n", "service_tier"),
    *("container", "mcp_servers", "context_management", "output_config", "output_format", "inference_geo"),
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
_SCHEMA, _IMAGE = "].function.parameters", re.compile(r"messages\[(\d+)\]\.content\[\d+\]\.image_url.*")


def chat_fields(fields: Fields, is_count: bool = False) -> Fields:
    """The fields of a chat completion; those that Anthropic does not know stay as they are. `is_count`: only the prompt
    matters. Raises Refused, by Anthropic's names."""
    fields.allow_only("service_tier", ("auto", "standard_only"), "there is one tier")
    fields.allow_only("prompt_logprobs", (), "is not served here: /v1/chat/completions has it")
    fields.allow_only("n", (1,), "there is one answer")
    for name in ("container", "mcp_servers", "context_management"):
        fields.allow_only(name, ([], {}), "is not served")
    if not is_count and "max_tokens" not in fields:
        raise fields.wrong("max_tokens", "a whole number of at least 1")
    chat: dict[str, Any] = {name: value for name, value in fields.values.items() if name not in _TRANSLATED}
    chat["max_tokens"] = fields.whole("max_tokens", 1, default=1)
    chat["stop"] = [*fields.texts("stop_sequences"), *fields.texts("stop")]
    chat["messages"] = [*_system(fields), *(one for given in checked_messages(fields) for one in _message(given))]
    chat |= _tools(fields)
    thinking = fields.object("thinking")
    kind = thinking.one_of("type", ("enabled", "disabled", "adaptive"), "adaptive")
    if kind == "enabled":
        chat["thinking_token_budget"] = thinking.whole("budget_tokens", 1, default=1024)
    elif kind == "disabled":
        chat["chat_template_kwargs"] = {"enable_thinking": False, **fields.object("chat_template_kwargs").values}
    output = fields.object("output_config")
    if "format" in output or "output_format" in fields:  # which older clients send
        given = output.object("format") if "format" in output else fields.object("output_format")
        schema = given.object("schema").values
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    if "effort" in output:
        chat["reasoning_effort"] = output.text("effort")
    return Fields(chat)


def marks_of(fields: Fields) -> list[CacheMark]:
    """Up to where a request asks that its prompt be kept, in order. Raises Refused."""
    return cache_marks(fields, len(_system(fields)), _message)


def _system(fields: Fields) -> list[dict[str, Any]]:
    given = fields.get("system")
    if given is None or given == []:
        return []
    text = given if isinstance(given, str) else "\n".join(_text(one) for one in fields.objects("system"))
    return [{"role": "system", "content": text}]


def _text(block: Fields) -> str:
    if block.text("type") != "text":
        raise block.refuse("type", "is not served here: there is text")
    return block.text("text")


def _message(given: Fields) -> list[dict[str, Any]]:
    """A message of the assistant, or what a user's message brings: results of tools, then what the user says."""
    role, content = given.one_of("role", ("user", "assistant", "system"), ""), given.get("content")
    if not role:
        raise given.wrong("role", "user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise given.wrong("content", "a text or a list of blocks")
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in given.objects("content"):
        match block.text("type"):
            case "text":
                parts.append({"type": "text", "text": block.text("text")})
            case "image":
                parts.append(_image(block))
            case "tool_use" if role == "assistant":
                called = {"name": block.text("name"), "arguments": json.dumps(block.object("input").values)}
                calls.append({"id": block.text("id"), "type": "function", "function": called})
            case "tool_result" if role == "user":
                results.append(_result(block))
            case "thinking" if role == "assistant":
                reasoning.append(block.text("thinking"))
            case "redacted_thinking" if role == "assistant":
                continue
            case kind:
                raise block.refuse("type", f"blocks of type {kind!r} are not served in a message of the {role}")
    message: dict[str, Any] = {"role": role, "content": parts}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    return [*results, message] if parts or calls or not results else results


def _image(block: Fields) -> dict[str, Any]:
    source = block.object("source")
    if source.text("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.text("url")}}
    if source.text("type") != "base64":
        raise source.refuse("type", "must be base64 or url")
    return {"type": "image_url", "image_url": {"url": f"data:{source.text('media_type')};base64,{source.text('data')}"}}


def _result(block: Fields) -> dict[str, Any]:
    content = block.get("content")
    text = content if isinstance(content, str) else "\n".join(_text(one) for one in block.objects("content"))
    told = f"Error: {text}" if block.flag("is_error") else text
    return {"role": "tool", "tool_call_id": block.text("tool_use_id"), "content": told}


def _tools(fields: Fields) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for one in fields.objects("tools"):
        if one.text("type", "custom") != "custom":
            raise one.refuse("type", "tools of a server are not served: there are custom ones")
        if not one.text("name"):
            raise one.wrong("name", "a name")
        described: dict[str, Any] = {"name": one.text("name"), "description": one.text("description")}
        described |= {"parameters": one.object("input_schema").values, "strict": one.flag("strict")}
        tools.append({"type": "function", "function": described})
    choice = fields.object("tool_choice")
    kind = choice.one_of("type", (*_CHOICES, "tool"), "auto")
    if not tools:
        if kind in ("any", "tool"):
            raise fields.refuse("tool_choice", "goes with tools")
        return {}
    names = [one["function"]["name"] for one in tools]
    named = {"type": "function", "function": {"name": choice.text("name")}}
    if kind == "tool" and choice.text("name") not in names:
        raise choice.wrong("name", "the name of one of the tools")
    chosen = named if kind == "tool" else _CHOICES[kind]
    return {"tools": tools, "tool_choice": chosen, "parallel_tool_calls": not choice.flag("disable_parallel_tool_use")}


def renamed(refused: Refused, fields: Fields) -> Refused:
    """A refusal that calls the fields of a request as Anthropic does, but for those that it has by the other name."""
    param = refused.param or ""
    name = None if param in fields else _NAMES.get(param, param.replace(_SCHEMA, "].input_schema"))
    if image := _IMAGE.fullmatch(param):
        ours = [place for place, one in enumerate(fields.objects("messages")) for _ in _message(one)]
        name = f"messages[{ours[int(image[1]) - len(_system(fields))]}].content"
    if name in (None, param):
        return refused
    message = refused.message.replace(str(refused.param), name, 1)
    return Refused(message, name, status=refused.status, code=refused.code)
