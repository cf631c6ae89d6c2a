"""A request for a response of OpenAI's API of that name, as the one for a chat completion that asks the same."""

from __future__ import annotations

from typing import Any

from inferlet_sdk.served.fields import Fields

_TRANSLATED = (
    *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "include", "store"),
    *("previous_response_id", "conversation", "background", "truncation", "prompt", "max_tool_calls", "top_logprobs"),
    *("stream_options", "context_management"),
)
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def fields_of_response(fields: Fields) -> Fields:
    """The fields of a chat completion; those that are the same stay as they are. Raises Refused."""
    _refuse_others(fields)
    chat: dict[str, Any] = {name: value for name, value in fields.values.items() if name not in _TRANSLATED}
    chat["max_tokens"] = fields.whole("max_output_tokens", 1) if "max_output_tokens" in fields else None
    instructions = fields.text("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*system, *_messages(fields)]
    chat |= _tools(fields)
    form = fields.object("text").object("format")
    kind = form.kind(("text", "json_object", "json_schema"))
    form.text("name"), form.flag("strict")
    if kind == "json_schema":
        chat["response_format"] = {"type": kind, "json_schema": {"schema": form.object("schema").values}}
    elif kind == "json_object":
        chat["response_format"] = {"type": kind}
    chat["reasoning_effort"] = fields.object("reasoning").get("effort")
    return Fields(chat)


def _refuse_others(fields: Fields) -> None:
    fields.allow_only("store", (False,), "responses are not stored: send false, and the whole conversation as input")
    fields.allow_only("previous_response_id", (), "responses are not stored: send the whole conversation as input")
    fields.allow_only("conversation", (), "conversations are not stored: send all of it as input")
    fields.allow_only("background", (False,), "is not served")
    fields.allow_only("prompt", (), "prompts are not stored")
    fields.allow_only("truncation", ("disabled",), "is not served: send what fits")
    fields.allow_only("top_logprobs", (0,), "is not served here: /v1/chat/completions has it")
    fields.allow_only("prompt_logprobs", (), "is not served here: /v1/chat/completions has it")
    fields.allow_only("max_tool_calls", (), "there are no tools of the server")
    fields.allow_only("n", (1,), "there is one answer")
    fields.allow_only("include", ([], ["reasoning.encrypted_content"]), "is not served")


def _messages(fields: Fields) -> list[dict[str, Any]]:
    given = fields.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise fields.wrong("input", "a text or a list of items")
    messages: list[dict[str, Any]] = []
    for item in fields.objects("input"):
        _add(messages, item)
    return messages


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
    return {"tools": tools, "tool_choice": fields.get("tool_choice")} if tools else {}
