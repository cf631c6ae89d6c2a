"""Responses as OpenAI's clients read them: items, whole or as events, whose `type` is the name of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from inferlet_sdk.context import Context
from inferlet_sdk.served.dialects.openai import TEXT_PLACE, frame_of, pinned_of
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.served.requests.responses import text_format
from inferlet_sdk.served.requests.wanted import Wanted
from inferlet_sdk.served.writing.answer import Answer, Part, ToolCall

_ECHOED = ("instructions", "max_output_tokens", "metadata", "reasoning", "user", "prompt_cache_key")
MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"


class ResponseReply:
    """One response. `events` of its parts, and `finish`, make its items; `whole` has them all."""

    def __init__(self, fields: Fields, wanted: Wanted, ctx: Context, answer: Answer) -> None:
        """`fields`: of the request, some of which the response repeats."""
        self._id = wanted.request_id
        self._ctx = ctx
        self._prompt = len(ctx)
        self._answer = answer
        self._output: list[dict[str, Any]] = []
        self._text = ""  # of the item that is open
        self._open = ""
        self._head = {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": wanted.name,
            "error": None,
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "temperature": wanted.sampler.temperature,
            "top_p": wanted.sampler.top_p,
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": [{"strict": False, **one} for one in fields.get("tools") or []],
            "store": fields.flag("store", True),
            "background": fields.flag("background"),
            "previous_response_id": fields.get("previous_response_id"),
            "truncation": "disabled",
            "instructions": None,
            "metadata": {},
            "text": {"format": text_format(fields)},
            **{name: fields.get(name) for name in _ECHOED if fields.get(name) is not None},
        }

    def whole(self, part: Part) -> dict[str, Any]:
        """The body of the answer."""
        for _ in (*self.events(part), *self._close()):
            pass
        return self.response()

    def begun(self) -> dict[str, Any]:
        """The response before anything of it is there."""
        return {**self._head, "status": "in_progress", "output": [], "incomplete_details": None}

    def start(self) -> Iterator[str]:
        """What comes before all parts."""
        yield self._event("response.created", response=self.begun())
        yield self._event("response.in_progress", response=self.begun())

    def frame(self) -> tuple[str, str]:
        """The event around each further piece, for an answer that is nothing but text: it has one item."""
        place = {"item_id": f"msg_{self._id}_0", "output_index": 0}
        return frame_of(self._delta("output_text", TEXT_PLACE, {**place, "logprobs": []}))

    def events(self, part: Part) -> Iterator[str]:
        """What tells of a part: each change of kind ends an item and begins another one."""
        self._text += part.sent
        if part.reasoning:
            yield from self._add(REASONING, "reasoning_text", part.reasoning)
        if part.text and (part.text.strip() or self._open == MESSAGE or not part.calls):
            yield from self._add(MESSAGE, "output_text", part.text)
        for call in part.calls:
            yield from self._call(call)

    def finish(self) -> Iterator[str]:
        """What comes behind all parts."""
        yield from self._close()
        response = self.response()
        yield self._event(f"response.{response['status']}", response=response)

    # ---- items ----

    def _add(self, kind: str, part: str, text: str) -> Iterator[str]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind)
        self._text += text
        more: dict[str, Any] = {"logprobs": []} if kind == MESSAGE else {}
        yield self._delta(part, text, {**self._place(), **more})

    def _begin(self, kind: str) -> Iterator[str]:
        self._open, self._text = kind, ""
        prefix = "msg" if kind == MESSAGE else "rs"
        item: dict[str, Any] = {"id": f"{prefix}_{self._id}_{len(self._output)}", "type": kind, "status": "in_progress"}
        item |= {"role": "assistant", "content": []} if kind == MESSAGE else {"summary": [], "content": []}
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        if kind == MESSAGE:
            yield self._event("response.content_part.added", content_index=0, part=_text_part(""), **self._place())

    def _close(self) -> Iterator[str]:
        kind, self._open = self._open, ""
        if not kind:
            return
        item, text = self._output[-1], self._text
        if kind == MESSAGE:
            part = _text_part(text)
            yield self._event("response.output_text.done", content_index=0, text=text, logprobs=[], **self._place())
            yield self._event("response.content_part.done", content_index=0, part=part, **self._place())
        else:
            part = {"type": "reasoning_text", "text": text}
            yield self._event("response.reasoning_text.done", content_index=0, text=text, **self._place())
        item |= {"content": [part], "status": "completed"}
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _call(self, call: ToolCall) -> Iterator[str]:
        yield from self._close()
        item = {"id": f"fc_{self._id}_{len(self._output)}", "type": CALL, "call_id": call.id, "name": call.name}
        self._output.append({**item, "arguments": "", "status": "in_progress"})
        place = {"output_index": len(self._output) - 1}
        yield self._event("response.output_item.added", item=self._output[-1], **place)
        yield self._event("response.function_call_arguments.delta", delta=call.arguments, **self._place())
        yield self._event(
            "response.function_call_arguments.done", arguments=call.arguments, name=call.name, **self._place()
        )
        self._output[-1] = {**item, "arguments": call.arguments, "status": "completed"}
        yield self._event("response.output_item.done", item=self._output[-1], **place)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _delta(self, part: str, text: str, more: dict[str, Any]) -> str:
        return self._event(f"response.{part}.delta", content_index=0, delta=text, **more)

    def _event(self, kind: str, **values: Any) -> str:
        return json.dumps({"type": kind, **values, "sequence_number": -1})  # in its place the server puts the number

    def response(self) -> dict[str, Any]:
        """All of it, when its parts have come."""
        answer, written, found = self._answer, len(self._answer.tokens), self._ctx.found
        is_cut = answer.finish_reason == "length"
        return {
            **self._head,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": self._prompt,
                "input_tokens_details": {"cached_tokens": found, "cache_write_tokens": 0, **pinned_of([answer])},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
                "total_tokens": self._prompt + written,
            },
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
