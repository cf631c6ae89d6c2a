"""One answer of the model as it is written: text, reasoning, calls of tools, and why it ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

from inferlet_sdk.chat import TextReader
from inferlet_sdk.context import Context
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.stopping import IgnoreStopTokens, StopCondition, StopTokens
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.served.requests.chat import ToolUse
from inferlet_sdk.served.requests.wanted import Wanted
from inferlet_sdk.served.writing.reasoning import ReasoningParser, Thinking
from inferlet_sdk.tools.events import Call, Event, Malformed, Text, Written
from inferlet_sdk.traits.runs import TokenLogprobs

FORBIDDEN = -1000.0
"""A bias that no token outweighs."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class Part:
    """What has come of an answer since the part before."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()


class Answer:
    """Iterate over `parts`, once; `whole` is all of them in one. Then `finish_reason` says why it ended: "stop",
    "length" or "tool_calls"."""

    def __init__(self, ctx: Context, wanted: Wanted, number: int, tools: ToolUse | None = None) -> None:
        """`ctx` has the prompt. `number` is that of the answer, of those to one request."""
        self.number = number
        self.finish_reason: str = ""
        self.tokens: list[int] = []
        self.calls = 0
        self.ctx = ctx
        self.wanted = wanted
        self._tools = tools
        self._queues = queues_of(ctx.model.name)
        self._parser = tools.dialect.format.parser() if tools is not None else None
        self._thinking = Thinking.of_model(self._queues)
        self._reasoning = ReasoningParser(self._thinking.is_open(ctx.tokens)) if self._thinking is not None else None
        self._shown = {
            **(tools.dialect.shown if tools is not None else {}),
            **(self._thinking.shown if self._thinking is not None else {}),
        }

    async def whole(self) -> Part:
        """All of it at once: the program sleeps while it is written, if nothing has to look at it."""
        all_of_it = Part(tokens=[], logprobs=[])
        async for part in self.parts(at_once=True):
            all_of_it.text += part.text
            all_of_it.reasoning += part.reasoning
            all_of_it.calls += part.calls
            all_of_it.tokens = [*all_of_it.tokens, *part.tokens]
            all_of_it.logprobs = [*all_of_it.logprobs, *part.logprobs]
        return all_of_it

    async def parts(self, at_once: bool = False) -> AsyncIterator[Part]:
        """What has come, again and again; `at_once`: as few parts as can be."""
        grammar: Grammar | Matcher | None = self.wanted.grammar
        first, last = self._phases()
        if first is not None and isinstance(grammar, Grammar):
            grammar = await grammar.matcher(self.ctx.model.name)  # goes on from phase to phase
        for phase in (first, last):
            if phase is None or self.finish_reason:
                continue
            async for part in self._phase(phase, grammar, at_once):
                yield part
            if phase is first and self._has_room:
                self.finish_reason = ""
        rest = self._end()
        if rest is not None:
            yield rest
        if self.calls:
            self.finish_reason = "tool_calls"

    # ---- generating ----

    def _phases(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """What `generate` is told: for the tokens that have to come, and for those after them."""
        wanted, ctx = self.wanted, self.ctx
        sampler = replace(wanted.sampler, since=0 if wanted.sampler.repetition_penalty != 1 else len(ctx))
        if sampler.seed is not None:
            sampler = replace(sampler, seed=(sampler.seed + self.number) % 2**64)
        stop: list[StopCondition] = [*wanted.stop]
        if wanted.stop_tokens:
            stop.append(StopTokens(*wanted.stop_tokens))
        if wanted.ignore_eos:
            stop.append(IgnoreStopTokens())
        last = {"sampler": sampler, "stop": stop, "include_stop": wanted.include_stop}
        if not wanted.min_tokens:
            return None, last
        ends = {*wanted.stop_tokens, *(() if wanted.ignore_eos else ctx.model.stop_tokens)}
        bias = {**(sampler.logit_bias or {}), **dict.fromkeys(ends, FORBIDDEN)}
        return {"sampler": replace(sampler, logit_bias=bias), "stop": [IgnoreStopTokens()]}, last

    @property
    def _has_room(self) -> bool:
        """Whether the text goes on behind the tokens that had to come."""
        return self.finish_reason == "length" and self.wanted.max_tokens != len(self.tokens)

    async def _phase(
        self, options: Mapping[str, Any], grammar: Grammar | Matcher | None, at_once: bool
    ) -> AsyncIterator[Part]:
        wanted, before = self.wanted, len(self.tokens)
        limit = None if wanted.max_tokens is None else wanted.max_tokens - before
        if wanted.min_tokens > before:
            limit = wanted.min_tokens - before
        generation = self.ctx.generate(limit, grammar=grammar, logprobs=wanted.logprobs, **options)
        reader, seen = TextReader(generation, self._queues, self._shown), 0
        try:
            if at_once and not self._ends_at_call:
                part, seen = self._part(generation, reader.read(await generation.whole()), seen)
                yield part
            async for piece in generation:
                part, seen = self._part(generation, reader.read(piece), seen)
                yield part
                if self.calls and self._ends_at_call:
                    break
            part, seen = self._part(generation, reader.read(""), seen)
            self.finish_reason = generation.stop_reason or "stop"
            yield part
        finally:
            reader.close()
            generation.end()
            self.tokens += generation.tokens

    def _part(self, generation: Generation, text: str, seen: int) -> tuple[Part, int]:
        """What has come of a generation, of which `seen` tokens belong to parts before."""
        part = self._parsed(text)
        if self.wanted.logprobs is None and not self.wanted.token_ids:
            return part, seen
        end = generation.released
        part.tokens, part.logprobs = generation.tokens[seen:end], generation.logprobs[seen:end]
        return part, end

    # ---- parsing ----

    @property
    def _ends_at_call(self) -> bool:
        return self._tools is not None and not self._tools.parallel

    def _parsed(self, text: str) -> Part:
        reasoning = ""
        if self._reasoning is not None and text:
            reasoning, text = self._reasoning.feed(text)
        part = Part(text, reasoning)
        if self._parser is not None and text:
            part.text = ""
            self._take(self._parser.feed(text), part)
        return part

    def _end(self) -> Part | None:
        """What was held back until the text was over."""
        part = Part()
        if self._reasoning is not None:
            part.reasoning, part.text = self._reasoning.finish()
        if self._parser is not None:
            text, part.text = part.text, ""
            self._take([*self._parser.feed(text), *self._parser.finish()], part)
        return part if part.text or part.reasoning or part.calls else None

    def _take(self, events: Sequence[Event], part: Part) -> None:
        assert self._tools is not None
        for event in events:
            if self.calls and self._ends_at_call:
                return
            if isinstance(event, Text | Malformed):
                part.text += event.text if event.text.strip() or not self.calls else ""
            elif isinstance(event, Call):
                self.calls += 1
                part.calls.append(ToolCall(f"call_{token_hex(12)}", event.name, _arguments(event, self._tools)))


def _arguments(call: Call, tools: ToolUse) -> str:
    """The arguments of a call by name, as JSON text."""
    schemas = [one["function"]["parameters"] for one in tools.declared if one["function"]["name"] == call.name]
    properties: Mapping[str, Any] = schemas[0].get("properties", {}) if schemas else {}
    named = call.arguments
    if isinstance(named, list):
        named = dict(zip(properties, named, strict=False))
    return json.dumps({name: _typed(value, properties.get(name)) for name, value in named.items()}, ensure_ascii=False)


def _typed(value: Any, schema: Any) -> Any:
    """The value of an argument that was written as text, by the type of its parameter."""
    kind = schema.get("type", "string") if isinstance(schema, Mapping) else "string"
    if not isinstance(value, Written) or kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
