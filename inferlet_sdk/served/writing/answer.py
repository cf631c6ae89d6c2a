"""One answer of the model as it is written: text, reasoning, calls of tools, and why it ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

from inferlet_sdk.chat import TextReader
from inferlet_sdk.context import Context
from inferlet_sdk.errors import InvalidArgument
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import Sampler
from inferlet_sdk.generation.stopping import IgnoreStopTokens, StopCondition, StopTokens
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.schemas.foreign import foreign_shape, properties_of
from inferlet_sdk.schemas.mismatch import UnsupportedType
from inferlet_sdk.schemas.shapes import Anything, Shape
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.served.errors import Refused
from inferlet_sdk.served.requests.chat import ToolUse
from inferlet_sdk.served.requests.wanted import Wanted
from inferlet_sdk.served.writing.reasoning import END, ReasoningParser, Thinking
from inferlet_sdk.tools.events import Call, Event, Malformed, Text
from inferlet_sdk.tools.tool import typed_value
from inferlet_sdk.traits.runs import TokenLogprobs

FORBIDDEN = -1000.0
"""A bias that no token outweighs."""


Frame = tuple[str, str]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class Part:
    """What has come of an answer since the part before. `sent`: text that its client has got already."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    sent: str = ""


class Answer:
    """Iterate over `parts`, once; `whole` is all of them in one. Then `finish_reason` says why it ended: "stop",
    "length" or "tool_calls"."""

    def __init__(self, ctx: Context, wanted: Wanted, number: int, tools: ToolUse | None = None) -> None:
        """`ctx` has the prompt. `number` is that of the answer, of those to one request."""
        self.number = number
        self.finish_reason: str = ""
        self.tokens: list[int] = []
        self.stop_string: str | None = None
        self.calls = 0
        self._is_cut = False  # within a call
        asked = bool(wanted.pinned_seconds) and number % wanted.n == 0
        self.pins = [(len(ctx), wanted.pinned_seconds)] if asked else []  # first tokens, and for how many seconds
        self.pinned = 0  # tokens of them that are pinned, in the end
        self._frame: Frame | None = None
        self._generation: Generation | None = None  # that runs
        self._cut_short = 0  # tokens of reasoning that its budget has ended
        self.ctx = ctx
        self.wanted = wanted
        self._tools = tools
        sampler, self._queues = wanted.sampler, queues_of(ctx.model.name)
        if sampler.seed is not None:
            sampler = replace(sampler, seed=(sampler.seed + number) % 2**64)
        self._sampler = replace(sampler, since=0 if sampler.repetition_penalty != 1 else len(ctx))
        self._parser = tools.dialect.format.parser() if tools is not None else None
        self._thinking = Thinking.of_model(self._queues)
        self._open = self._thinking.state(ctx.tokens) if self._thinking is not None else False
        if self._open is None and wanted.thinking_budget is not None and self._thinking is not None:
            ctx.fill([self._thinking.begin])
            self._open = True
        self._reasoning = ReasoningParser(self._open is True) if self._thinking is not None else None
        self._shown = {
            **(tools.dialect.shown if tools is not None else {}),
            **(self._thinking.shown if self._thinking is not None else {}),
        }

    @property
    def reasoning_tokens(self) -> int:
        """How many of `tokens` are reasoning, the end mark included."""
        if self._thinking is None or self._reasoning is None:
            return 0
        if self._reasoning.is_open:
            return len(self.tokens)
        return self.tokens.index(self._thinking.end) + 1 if self._thinking.end in self.tokens else self._cut_short

    @property
    def written(self) -> int:
        """Tokens that have come so far."""
        return len(self.tokens) + (self._generation.released if self._generation is not None else 0)

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

    async def parts(self, at_once: bool = False, frame: Frame | None = None) -> AsyncIterator[Part]:
        """What has come, again and again; `at_once`: as few parts as can be. `frame`: two texts, between which the host
        itself sends the text that follows the first part, as the inside of a JSON text, where nothing else has to look
        at it. So the program sleeps while it streams, and what was sent is the `sent` of a part."""
        self._frame = frame if self._is_plain else None
        if self._open and (self.wanted.thinking_budget is not None or self.wanted.grammar is not None):
            async for part in self._think(at_once):
                yield part
        if not self.finish_reason:
            async for part in self._write(at_once):
                yield part
        rest = self._end()
        if rest is not None:
            yield rest
        if self.calls and not (self._is_cut and self.finish_reason == "length"):
            self.finish_reason = "tool_calls"
        self.ctx.keep()
        for count, seconds in self.pins:
            self.pinned = max(self.pinned, await self.ctx.pin(seconds, count))

    # ---- generating ----

    async def _think(self, at_once: bool) -> AsyncIterator[Part]:
        """Reasoning up to its end, which comes after `thinking_budget` tokens in any case. No grammar keeps it."""
        assert self._thinking is not None
        budget, most = self.wanted.thinking_budget, self.wanted.max_tokens
        stop: list[StopCondition] = [*self._stop, StopTokens(self._thinking.end)]
        options = {"sampler": self._sampler, "stop": stop, "include_stop": True}
        limit = most if budget is None else budget if most is None else min(budget, most)
        async for part in self._phase(options, limit, None, at_once):
            yield part
        if self.tokens[-1:] == [self._thinking.end]:
            self.finish_reason = ""
        elif self.finish_reason == "length" and len(self.tokens) == budget != most:
            self.finish_reason, self._cut_short = "", len(self.tokens)
            self.ctx.fill([self._thinking.end]).fill("\n\n")
            yield self._parsed(END)

    async def _write(self, at_once: bool) -> AsyncIterator[Part]:
        """The text: first the tokens that have to come, then those after them."""
        wanted, grammar = self.wanted, self.wanted.grammar
        kept: Grammar | Matcher | None = grammar
        options = {"sampler": self._sampler, "stop": self._stop, "include_stop": wanted.include_stop}
        least = wanted.min_tokens - len(self.tokens)
        if least > 0:
            if grammar is not None:
                kept = await grammar.matcher(self.ctx.model.name)  # it goes on from phase to phase
            forced = {"sampler": self._without_end, "stop": [IgnoreStopTokens()]}
            async for part in self._phase(forced, least, kept, at_once):
                yield part
            if self.finish_reason != "length" or len(self.tokens) == wanted.max_tokens:
                return
        limit = None if wanted.max_tokens is None else wanted.max_tokens - len(self.tokens)
        async for part in self._phase(options, limit, kept, at_once):
            yield part

    @property
    def _stop(self) -> list[StopCondition]:
        stop: list[StopCondition] = [*self.wanted.stop]
        if self.wanted.stop_tokens:
            stop.append(StopTokens(*self.wanted.stop_tokens))
        if self.wanted.ignore_eos:
            stop.append(IgnoreStopTokens())
        return stop

    @property
    def _without_end(self) -> Sampler:
        """The sampler, with which no token comes that ends the answer."""
        ends = {*self.wanted.stop_tokens, *(() if self.wanted.ignore_eos else self.ctx.model.stop_tokens)}
        bias = {**(self._sampler.logit_bias or {}), **dict.fromkeys(ends, FORBIDDEN)}
        return replace(self._sampler, logit_bias=bias)

    async def _phase(
        self, options: Mapping[str, Any], limit: int | None, grammar: Grammar | Matcher | None, at_once: bool
    ) -> AsyncIterator[Part]:
        generation = self.ctx.generate(limit, grammar=grammar, logprobs=self.wanted.logprobs, **options)
        self._generation = generation
        reader, seen = TextReader(generation, self._queues, self._shown), 0
        try:
            if at_once and not self._ends_at_call:
                part, seen = self._part(generation, reader.read(await generation.whole()), seen)
                yield part
            elif self._frame is not None:
                yield Part(await anext(generation, ""))
                yield Part(sent=await generation.whole(send=True, frame=self._frame))
            async for piece in generation:
                part, seen = self._part(generation, reader.read(piece), seen)
                yield part
                if self.calls and self._ends_at_call:
                    break
            part, seen = self._part(generation, reader.read(""), seen)
            self.finish_reason, self.stop_string = generation.stop_reason or "stop", generation.stop_string
            yield part
        except InvalidArgument as error:
            if grammar is None:
                raise
            param = self.wanted.kept_by  # the host reads a grammar when a generation begins
            raise Refused(f"{param}: {error.message}", param) from None
        finally:
            reader.close()
            generation.end()
            self._generation = None
            self.tokens += generation.tokens

    def _part(self, generation: Generation, text: str, seen: int) -> tuple[Part, int]:
        """What has come of a generation, of which `seen` tokens belong to parts before."""
        part = self._parsed(text)
        if self.wanted.logprobs is None and not self.wanted.token_ids:
            return part, seen
        part.tokens, part.logprobs = generation.behind(seen)
        return part, seen + len(part.tokens)

    # ---- parsing ----

    @property
    def _is_plain(self) -> bool:
        """Whether its text is all that there is to it."""
        wanted = self.wanted
        looked_at = wanted.logprobs is not None or wanted.token_ids or wanted.grammar is not None
        looked_at = looked_at or wanted.continuous_usage
        return self._thinking is None and self._tools is None and not looked_at

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
                self._is_cut |= isinstance(event, Malformed) and event.cut_off
                part.text += event.text if event.text.strip() or not self.calls else ""
            elif isinstance(event, Call):
                self.calls += 1
                part.calls.append(ToolCall(f"call_{token_hex(12)}", event.name, _arguments(event, self._tools)))


def _arguments(call: Call, tools: ToolUse) -> str:
    """The arguments of a call by name, as JSON text."""
    schemas = [one["function"]["parameters"] for one in tools.declared if one["function"]["name"] == call.name]
    schema = schemas[0] if schemas else {}
    properties, further = properties_of(schema), schema.get("additionalProperties")
    named = call.arguments
    if isinstance(named, list):
        named = dict(zip(properties, named, strict=False))
    typed = {name: typed_value(_shape(properties.get(name, further)), value) for name, value in named.items()}
    return json.dumps(typed, ensure_ascii=False)


def _shape(schema: object) -> Shape:
    """What the parameter takes; anything, if nobody knows."""
    try:
        return foreign_shape(schema or {})
    except UnsupportedType:
        return Anything()
