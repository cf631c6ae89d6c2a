"""Launches a bundled program as the server does for a request: outside of the sandbox, on the demo model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import pie_control.programs
from pie_control.authoring.native.program import source_of
from pie_control.authoring.native.server import NativeServer
from pie_control.gateway.images import images_of
from pie_control.gateway.stored.marks import read_mark
from pie_control.inferlets.events import Message
from pie_inference.protocol.conversation import ModelDescription
from pie_inference.testing import byte_tokenizer

BUNDLED = Path(pie_control.programs.__file__).parent / "bundled"


@dataclass
class Served:
    """What a program has answered: the result, and the events of its stream; `marks`: what it has said to the server
    before."""

    body: Any
    events: list[Any]
    marks: list[Any] = field(default_factory=list)

    @property
    def error(self) -> Any:
        """What it has refused; fails if it has not."""
        return self.body["served_error"]

    @property
    def text(self) -> str:
        """The text of the first choice, streamed or not."""
        if self.events:
            return "".join(_text(one) for event in self.events for one in event["choices"] if one["index"] == 0)
        return _text(self.body["choices"][0])

    @property
    def finish_reason(self) -> Any:
        """Of the first choice, streamed or not."""
        choices = [one for event in self.events or [self.body] for one in event["choices"] if one["index"] == 0]
        return choices[-1]["finish_reason"]


def _text(choice: Any) -> str:
    message = choice.get("message") or choice.get("delta") or choice
    return str(message.get("content") or message.get("text") or "")


Ask = Callable[..., Served]


def asking(server: NativeServer, program: str, **environment: str) -> Ask:
    """A function that launches a program with the fields of a request."""
    source = source_of(BUNDLED / program / f"{program}.py")

    def ask(body: bytes | None = None, **fields: Any) -> Served:
        heard: list[Any] = []
        told = {"answer_id": "r1", "model": "demo", "adapter": "", **environment}
        request = json.dumps(fields).encode() if body is None else body
        ended = server.run(source, (), told, heard.append, blobs={"request": request, **images_of(request)})
        assert ended.status == "finished", ended.error
        messages = [one.text for one in heard if isinstance(one, Message)]
        marks = [one for text in messages if (one := read_mark(text)) is not None]
        events = [json.loads(text) for text in messages[len(marks) :]]
        return Served(None if ended.result is None else json.loads(ended.result), events, marks)

    return ask


def marked(model: ModelDescription, marks: Mapping[str, int], template: str) -> ModelDescription:
    """A model without weights whose tokenizer has special tokens in place of bytes that no text in UTF-8 has."""
    tokenizer = json.loads(model.tokenizer)
    vocabulary = tokenizer["model"]["vocab"].items()
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [{"id": number, "content": text, "special": True, **plain} for text, number in marks.items()]
    tokenizer["model"]["vocab"] = {text: one for text, one in vocabulary if one not in marks.values()} | dict(marks)
    tokenizer["added_tokens"] = sorted([*tokenizer["added_tokens"], *tokens], key=lambda token: token["id"])
    config = {**byte_tokenizer.tokenizer_config(), "chat_template": template}
    return msgspec.structs.replace(model, tokenizer=json.dumps(tokenizer).encode(), tokenizer_config=config)
