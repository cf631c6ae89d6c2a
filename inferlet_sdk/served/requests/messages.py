"""Messages of OpenAI's form as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from inferlet_sdk.errors import NotFound
from inferlet_sdk.images import Image
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.tools.formats.dialect import Dialect
from inferlet_sdk.traits.outside.blobs import Blob
from inferlet_sdk.traits.outside.http import http_get

ROLES = ("system", "developer", "user", "assistant", "tool")
NO_IMAGES: Mapping[str, Blob] = {}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class Messages:
    """Turns messages to those of a template. `dialect` says how the model writes calls; None: it has no tools."""

    def __init__(
        self,
        dialect: Dialect | None,
        parameters: Mapping[str, Sequence[str]],
        sees: bool,
        images: Mapping[str, Blob] = NO_IMAGES,
    ) -> None:
        """`parameters`: names of the parameters of each tool, in order; `sees`: whether the model takes images;
        `images`: those that did not come with the request, by name."""
        self._images = images
        self._sees = sees
        self._dialect = dialect
        self._parameters = parameters
        self._calls: dict[str, tuple[str, str]] = {}  # the template's identifier, and the name, by the client's

    async def read(self, messages: Sequence[Fields]) -> list[dict[str, Any]]:
        """All messages; raises Refused."""
        return [await self._message(one) for one in messages]

    async def _message(self, given: Fields) -> dict[str, Any]:
        role = given.one_of("role", ROLES, "")
        if not role:
            raise given.wrong("role", f"one of {', '.join(ROLES)}")
        content = await self._content(given, role)
        if role == "tool":
            identifier, name = self._calls.get(given.text("tool_call_id"), ("call00000", given.text("name")))
            return {"role": role, "content": content, "tool_call_id": identifier, "name": name}
        calls = given.objects("tool_calls") if role == "assistant" else []
        if calls:
            return self._with_calls(content, calls)
        message = {"role": "system" if role == "developer" else role, "content": content}
        reasoning = given.text("reasoning_content") or given.text("reasoning")
        return {**message, "reasoning_content": reasoning} if reasoning else message

    # ---- content ----

    async def _content(self, given: Fields, role: str) -> Any:
        content = given.get("content")
        if isinstance(content, str):
            return content
        if content is None:
            if role in ("assistant", "tool"):
                return ""
            raise given.wrong("content", "a text or a list of parts")
        if not isinstance(content, list):
            raise given.wrong("content", "a text or a list of parts")
        parts = [await self._part(part) for part in given.objects("content")]
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)
        return parts

    async def _part(self, part: Fields) -> dict[str, Any]:
        kind = part.text("type")
        if kind in _TEXT_PARTS:
            return {"type": "text", "text": part.text("refusal" if kind == "refusal" else "text")}
        if kind == "image_url":
            return {"type": "image", "image": await self._image(part.object("image_url"), "url")}
        if kind == "input_image":
            return {"type": "image", "image": await self._image(part, "image_url")}
        raise part.refuse("type", f"parts of type {kind!r} are not served: there are text and image_url")

    async def _image(self, place: Fields, name: str) -> Image:
        """The server has put images of data URLs beside the request; others are fetched."""
        if not self._sees:
            raise place.refuse(name, "this model takes no images")
        url = place.text(name)
        if url.startswith(("http://", "https://")):
            response = await http_get(url)
            return Image(await response.raise_for_status().blob())
        kind, _, data = url.partition(",")
        known_as = f"image-{sha256(data.encode()).hexdigest()[:32]}"
        try:
            return Image(self._images.get(known_as) or Blob.open(known_as))
        except NotFound:
            wanted = "must be a PNG or JPEG image in a data URL with base64, or an http URL"
            raise place.refuse(name, f"{wanted}, not {kind[:40]!r}") from None

    # ---- calls ----

    def _with_calls(self, content: Any, calls: Sequence[Fields]) -> dict[str, Any]:
        dialect = self._dialect
        assert dialect is not None, "there are calls, so it was asked for"
        written = [self._call(one) for one in calls]
        if dialect.renders_calls:
            text = content if content and dialect.keeps_text else dialect.blank
            return {"role": "assistant", "content": text, "tool_calls": written}
        texts = [self._as_text(one["function"]) for one in written]
        return {"role": "assistant", "content": "".join([content, *texts])}

    def _call(self, given: Fields) -> dict[str, Any]:
        assert self._dialect is not None
        function = given.object("function")
        name, text = function.text("name"), function.text("arguments") or "{}"
        identifier = f"call{len(self._calls) % 100_000:05d}"  # nine letters: Mistral's templates want them
        self._calls[given.text("id")] = identifier, name
        try:
            arguments = json.loads(text)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise function.wrong("arguments", "the JSON text of an object")
        shown = text if self._dialect.text_arguments else arguments
        return {"id": identifier, "type": "function", "function": {"name": name, "arguments": shown}}

    def _as_text(self, function: Mapping[str, Any]) -> str:
        """A call as the model would have written it, for a template that renders none."""
        assert self._dialect is not None
        known, name, arguments = self._dialect.format, function["name"], function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        begin, end = known.markers[0], known.markers[1] if len(known.markers) > 1 else ""
        if known.name == "signature":
            order = self._parameters.get(name, ())
            named = sorted(arguments, key=lambda one: order.index(one) if one in order else len(order))
            return f"{begin}{name}({', '.join(json.dumps(arguments[one]) for one in named)}){end}"
        return f"{begin}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{end}"


def checked_messages(fields: Fields) -> list[Fields]:
    """The messages of a request, at least one. Raises Refused."""
    messages = fields.objects("messages")
    if not messages:
        raise fields.wrong("messages", "a list of at least one message")
    return messages


def has_calls(messages: Sequence[Fields]) -> bool:
    """Whether the assistant has called tools."""
    return any(one.get("tool_calls") for one in messages)


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    """Declarations of tools, as chat templates take them."""
    return [_tool(one) for one in fields.objects("tools")]


def _tool(given: Fields) -> dict[str, Any]:
    if given.text("type", "function") != "function":
        raise given.refuse("type", "tools of a server are not served: there are tools of type function")
    function = given.object("function")
    if not function.text("name"):
        raise function.wrong("name", "a name")
    function.object("parameters").object("properties")  # as templates and grammars read it
    parameters = function.object("parameters").values or {"type": "object", "properties": {}}
    described: dict[str, Any] = {
        "name": function.text("name"),
        "description": function.text("description"),
        "parameters": parameters,
    }
    return {"type": "function", "function": described}


def is_strict(fields: Fields) -> bool:
    """Whether any tool asks that calls keep to its schema."""
    return any([one.object("function").flag("strict") for one in fields.objects("tools")])  # noqa: C419  # checks all


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the parameters of each tool, in order."""
    return {one["function"]["name"]: list(one["function"]["parameters"].get("properties", {})) for one in tools}
