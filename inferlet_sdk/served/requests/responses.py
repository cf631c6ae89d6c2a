"""A request for a response of OpenAI's API of that name, as the one for a chat completion that asks the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet_sdk.served.fields import Fields

_TRANSLATED = (
    *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "include", "store"),
    *("previous_response_id", "conversation", "background", "truncation", "prompt", "max_tool_calls", "top_logprobs"),
    *("stream_options", "context_management"),
)
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


ID = re.compile(r"[\w.-]{1,128}")
"""What the path of a stored response can name."""
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def fields_of_response(fields: Fields, earlier: Sequence[Mapping[str, Any]] = ()) -> Fields:
    """The fields of a chat completion; those that are the same stay as they are. `earlier`: items of the conversation
    before. Raises Refused."""
    _refuse_others(fields)
    chat: dict[str, Any] = {name: value for name, value in fields.values.items() if name not in _TRANSLATED}
    chat["max_tokens"] = fields.whole("max_output_tokens", 1) if "max_output_tokens" in fields else None
    instructions = fields.text("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*system, *_messages(fields, earlier)]
    chat |= _tools(fields)
    form = text_format(fields)
    kind = form["type"]
    chat["response_format"] = {"type": kind, "json_schema": form} if kind == "json_schema" else {"type": kind}
    chat["reasoning_effort"] = fields.object("reasoning").get("effort")
    return Fields(chat)


def text_format(fields: Fields) -> dict[str, Any]:
    """What `text.format` of a request asks for, as the response repeats it. Raises Refused."""
    form = fields.object("text").object("format")
    kind = form.kind(("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return {"type": kind}
    for name, wanted in (("name", "a text"), ("schema", "a JSON Schema")):
        if name not in form:
            raise form.wrong(name, wanted)
    described = {"description": form.text("description")} if "description" in form else {}
    told = {"name": form.text("name"), "schema": form.object("schema").values, "strict": form.flag("strict")}
    return {"type": kind, **described, **told}


def _refuse_others(fields: Fields) -> None:
    if fields.flag("store", True) and fields.text("request_id") and not ID.fullmatch(fields.text("request_id")):
        raise fields.wrong("request_id", "1 to 128 letters, digits, '_', '.' and '-': routes find the response by it")
    if fields.flag("background") and not fields.flag("store", True):
        raise fields.refuse("background", 'needs a response that is stored: leave "store": false out')
    fields.allow_only("conversation", (), "conversations are not stored: previous_response_id goes on from a response")
    fields.allow_only("prompt", (), "prompts are not stored")
    fields.allow_only("truncation", ("disabled",), "is not served: send what fits")
    fields.allow_only("top_logprobs", (0,), "is not served here: /v1/chat/completions has it")
    fields.allow_only("prompt_logprobs", (), "is not served here: /v1/chat/completions has it")
    fields.object("text").allow_only("verbosity", ("medium",), "is not served")
    fields.allow_only("max_tool_calls", (), "there are no tools of the server")
    fields.allow_only("n", (1,), "there is one answer")
    for name in ("max_tokens", "max_completion_tokens"):
        fields.allow_only(name, (), "is max_output_tokens here")
    fields.allow_only("response_format", (), "is text.format here")
    fields.allow_only("include", ([], ["reasoning.encrypted_content"]), "is not served")


def _messages(fields: Fields, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for one in earlier:
        _add(messages, Fields(one, "previous_response_id."))
    given = fields.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise fields.wrong("input", "a text or a list of items")
    for item in fields.objects("input"):
        _add(messages, item)
    return messages


def input_items(fields: Fields, request_id: str) -> list[dict[str, Any]]:
    """The items of a request that `fields_of_response` has read, in their long form, each with an identifier."""
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_item(one, f"{request_id}_in{place}") for place, one in enumerate(items)]


def _item(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    kind = given.get("type") or "message"
    own = {"status": "completed", **given, "type": kind, "id": given.get("id") or f"{_PREFIXES[kind]}_{name}"}
    content = given.get("content")
    if kind == "message" and isinstance(content, str):
        is_answer = given["role"] == "assistant"
        part: dict[str, Any] = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
        own["content"] = [{**part, "text": content}]
    return own


def _add(messages: list[dict[str, Any]], item: Fields) -> None:
    """Adds an item; calls of one turn are one message."""
    kind = item.text("type", "message")
    last = messages[-1] if messages else {}
    if kind == "message":
        role = item.one_of("role", ("system", "developer", "user", "assistant"), "")
        if not role:
            raise item.wrong("role", "system, developer, user or assistant")
        content = item.get("content")
        if not isinstance(content, str):
            content = [_part(one) for one in item.objects("content")]
        messages.append({"role": role, "content": content})
    elif kind == "function_call":
        called = {"name": item.text("name"), "arguments": item.text("arguments")}
        call = {"id": item.text("call_id"), "type": "function", "function": called}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        if not isinstance(output, str):
            output = [_part(one) for one in item.objects("output")]
        messages.append({"role": "tool", "tool_call_id": item.text("call_id"), "content": output})
    elif kind != "reasoning":  # templates leave reasoning of earlier turns out
        raise item.refuse("type", f"items of type {kind!r} are not served")


def _part(part: Fields) -> dict[str, Any]:
    kind = part.text("type")
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.text("image_url")}}
    if kind not in _PARTS:
        raise part.refuse("type", f"parts of type {kind!r} are not served: there are input_text and input_image")
    return {"type": "text", "text": part.text(_PARTS[kind])}


def _tools(fields: Fields) -> dict[str, Any]:
    tools = []
    for one in fields.objects("tools"):
        if one.text("type") != "function":
            raise one.refuse("type", "tools of a server are not served: there are tools of type function")
        if not one.text("name"):
            raise one.wrong("name", "a name")
        function = {"name": one.text("name"), "description": one.text("description")}
        told = {**function, "parameters": one.object("parameters").values, "strict": one.flag("strict")}
        tools.append({"type": "function", "function": told})
    choice = {"tool_choice": fields.get("tool_choice")}  # one that goes with tools is refused where there are none
    return {"tools": tools, **choice} if tools else choice
