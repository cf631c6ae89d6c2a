"""Messages as Anthropic's clients read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from inferlet_sdk.context import Context
from inferlet_sdk.served.dialects.openai import TEXT_PLACE, frame_of
from inferlet_sdk.served.requests.wanted import Wanted
from inferlet_sdk.served.writing.answer import Answer, Part, ToolCall

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class MessageReply:
    """One message: whole, or as events, whose `type` is the name of each."""

    def __init__(self, wanted: Wanted, ctx: Context, answer: Answer, marked: int = 0) -> None:
        """`marked`: so many first tokens of the prompt are kept because the request asks for it."""
        self._head = {"id": f"msg_{wanted.request_id}", "type": "message", "role": "assistant", "model": wanted.name}
        self._ctx = ctx
        self._prompt = len(ctx)
        self._marked = marked
        self._answer = answer
        self._open = ""  # the kind of the block that is open
        self._index = -1

    def whole(self, part: Part) -> dict[str, Any]:
        """The body of the answer."""
        content: list[dict[str, Any]] = []
        if part.reasoning:
            content.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
        text = part.text.strip() if part.calls else part.text
        if text or not part.calls:
            content.append({"type": "text", "text": text})
        content += [{**_block(one), "input": json.loads(one.arguments)} for one in part.calls]
        return {**self._head, "content": content, **self._end(), "usage": self._usage()}

    def start(self) -> Iterator[str]:
        """What comes before all parts."""
        message: dict[str, Any] = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {**self._usage(), "output_tokens": 0}
        yield json.dumps({"type": "message_start", "message": message})

    def frame(self) -> tuple[str, str]:
        """The event around each further piece, for an answer that is nothing but text: it has one block."""
        delta = {"type": "text_delta", "text": TEXT_PLACE}
        return frame_of(json.dumps({"type": "content_block_delta", "index": 0, "delta": delta}))

    def events(self, part: Part) -> Iterator[str]:
        """What tells of a part: each change of kind ends a block and begins another one."""
        if part.reasoning:
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": part.reasoning})
        if part.text:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": part.text})
        for call in part.calls:
            yield from self._begin(call.id, {**_block(call), "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def finish(self) -> Iterator[str]:
        """What comes behind all parts."""
        if self._index < 0:
            yield from self._begin("text", {"type": "text", "text": ""})
        yield from self._close()
        yield json.dumps({"type": "message_delta", "delta": self._end(), "usage": self._usage()})
        yield json.dumps({"type": "message_stop"})

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[str]:
        if kind == self._open:
            return
        yield from self._close()
        self._open, self._index = kind, self._index + 1
        yield json.dumps({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> Iterator[str]:
        if self._open:
            self._open = ""
            yield json.dumps({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> str:
        return json.dumps({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _end(self) -> dict[str, Any]:
        stopped = self._answer.stop_string if self._answer.finish_reason == "stop" else None
        reason = "stop_sequence" if stopped else _REASONS[self._answer.finish_reason]
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _usage(self) -> dict[str, int]:
        """Tokens of the prompt that were not computed, that were computed before the last mark, and others, apart."""
        found = self._ctx.found
        kept = max(self._marked - found, 0)
        return {
            "input_tokens": self._prompt - found - kept,
            "cache_read_input_tokens": found,
            "cache_creation_input_tokens": kept,
            **({"cache_pinned_input_tokens": self._answer.pinned} if self._answer.pins else {}),
            "output_tokens": len(self._answer.tokens),
        }


def _block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_", 1), "name": call.name}
