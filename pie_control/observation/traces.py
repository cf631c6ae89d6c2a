"""Traces of agents by OpenTelemetry, in the words of its conventions for generative AI (docs/metrics.md).

Theory of operation. An inferlet is a span `invoke_agent`, a child's inside that of its parent; who launches the first
one may give its own by the header `traceparent`. A decode run is a span `chat` inside that of its inferlet: from the
first wave with a forward of the inferlet since its run before this one began, to the run's last token. What else an
inferlet does, such as a tool that it runs (`execute_tool`), it tells when that has ended. A program in Python chooses
the id of such a span when it begins, and tells it behind the operation, with that of the span around it: what it asks
for meanwhile, requests and children, names it as `traceparent`. Spans go to a collector in batches, on a thread of
their own; where they come too fast, some are dropped.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pie_control.ids import Owner
from pie_control.inferlets.events import Span as WorkSpan
from pie_control.inferlets.lifecycle import Status
from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.turn import RunTokens
from pie_control.services.http.trace_context import HEADER, TRACEPARENT

EXPORT_SECONDS = 5.0
"""Until a batch that the collector has not taken is dropped."""
MOST_CHATS = 256
"""Decode runs of an inferlet that are followed at a time: nobody tells when one is cancelled."""
MOST_TOLD = 100
"""Spans of what an inferlet did, in one second: a program may tell of more than anybody reads."""
SECOND = 1_000_000_000
TOLD = re.compile(r"(.*) ([0-9a-f]{16}) ([0-9a-f]{16})", re.ASCII | re.DOTALL)
"""The operation of a span, its id, and that of the span around it."""
SPAN_OF = re.compile(r"(?<=-)[0-9a-f]{16}(?=-)", re.ASCII)
"""In a `traceparent`: the id of the span."""
PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Chat:
    span: Span
    last: int  # when its last token came, in nanoseconds since the epoch
    tokens: int = 0


@dataclass(slots=True)
class _Agent:
    """An inferlet. By model: when the first forward ran since the first token of its last run, and the input tokens of
    forwards since then."""

    span: Span
    since: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    chats: dict[tuple[str, int], _Chat] = field(default_factory=dict)  # by model and future
    input_tokens: int = 0
    output_tokens: int = 0
    began: int = field(default_factory=time.time_ns)
    second: int = 0  # the one in which it has told last of what it did
    told: int = 0  # in that second

    def has_room(self, now: int) -> bool:
        """Whether one more span of its own is taken."""
        if self.second != now // SECOND:
            self.second, self.told = now // SECOND, 0
        self.told += 1
        return self.told <= MOST_TOLD


class _Ids(RandomIdGenerator):
    """`next`: the id of the next span, which its inferlet has chosen; 0: any."""

    next = 0

    def generate_span_id(self) -> int:
        chosen, self.next = self.next, 0
        return chosen or super().generate_span_id()


def _inside(agent: Span, span: str) -> Context:
    """Within a span of an agent, by its id in hexadecimal digits; that is told when it ends."""
    own = agent.get_span_context()
    around = SpanContext(own.trace_id, int(span, 16), is_remote=True, trace_flags=own.trace_flags)
    return trace.set_span_in_context(NonRecordingSpan(around))


class Traces:
    """Belongs to the thread of the control loop."""

    def __init__(self, registry: Registry, url: str) -> None:
        """`url`: where a collector takes traces by OTLP over HTTP."""
        self._ids = _Ids()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "pie"}), id_generator=self._ids)
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pie")
        self._agents: dict[Owner, _Agent] = {}
        registry.on_launch.append(self._launched)
        registry.on_end.append(self._ended)
        registry.on_span.append(self._did)

    def close(self) -> None:
        """Sends what is left, for some seconds at most. Idempotent."""
        self._provider.shutdown()

    # ---- inferlets ----

    def _launched(self, entry: Entry) -> None:
        name = entry.program.title
        parent = self._agents.get(int(entry.parent[1:])) if entry.parent else None
        if parent is None:
            context = PROPAGATOR.extract({HEADER: TRACEPARENT.get()})
        elif found := SPAN_OF.search(entry.traceparent):
            context = _inside(parent.span, found[0])
        else:
            context = trace.set_span_in_context(parent.span)
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "pie",
            "gen_ai.agent.name": name,
            "gen_ai.conversation.id": entry.id,
            "pie.program": entry.program.hash,
            "pie.tenant": entry.standing.tenant.name,
        }
        span = self._tracer.start_span(f"invoke_agent {name}", context, SpanKind.SERVER, about)
        self._agents[entry.number] = _Agent(span)
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
        entry.traceparent = carrier.get(HEADER, "")

    def _ended(self, entry: Entry) -> None:
        agent = self._agents.pop(entry.number, None)
        if agent is None:
            return
        for chat in agent.chats.values():  # runs that were cancelled, or cut off by the end
            self._end_chat(chat)
        agent.span.set_attribute("gen_ai.usage.input_tokens", agent.input_tokens)
        agent.span.set_attribute("gen_ai.usage.output_tokens", agent.output_tokens)
        if entry.status is not Status.FINISHED:
            agent.span.set_attribute("error.type", str(entry.status))
            agent.span.set_status(StatusCode.ERROR)
        agent.span.end()

    def _did(self, entry: Entry, span: WorkSpan) -> None:
        """An inferlet has done something that has just ended."""
        agent, now = self._agents.get(entry.number), time.time_ns()
        if agent is None or not agent.has_room(now):
            return
        operation, context = span.operation, trace.set_span_in_context(agent.span)
        if found := TOLD.fullmatch(operation):
            operation, context = found[1], _inside(agent.span, found[3])
            self._ids.next = int(found[2], 16)
        about = {"gen_ai.operation.name": operation, "gen_ai.tool.name": span.name} if operation else {}
        title = f"{operation} {span.name}".strip()
        began = max(agent.began, now - 1000 * span.microseconds)
        told = self._tracer.start_span(title, context, SpanKind.INTERNAL, about, start_time=began)
        if span.error:
            told.set_attribute("error.type", span.error)
            told.set_status(StatusCode.ERROR)
        told.end(now)

    # ---- generations ----

    def sent(self, model: str, wave: Wave) -> None:
        """A wave goes to a worker of a model."""
        now = time.time_ns()
        for batch in wave.batches:
            for command, size in zip(batch.commands, batch.sizes(), strict=False):
                if agent := self._agents.get(command.owner):
                    agent.since.setdefault(model, now)
                    agent.inputs[model] = agent.inputs.get(model, 0) + size
                    agent.input_tokens += size

    def tokens_came(self, model: str, runs: RunTokens) -> None:
        """A wave gave tokens of decode runs."""
        now = time.time_ns()
        for row, (owner, future, over) in enumerate(zip(runs.owners, runs.futures, runs.over, strict=True)):
            agent = self._agents.get(owner)
            if agent is None:
                continue
            chat = agent.chats.get((model, future)) or self._begin_chat(agent, model, future, now)
            chat.last = now
            if row in runs.errors:
                chat.span.set_attribute("error.type", runs.errors[row].code)
                chat.span.set_status(StatusCode.ERROR)
            else:
                chat.tokens += 1
                agent.output_tokens += 1
            if over:
                self._end_chat(agent.chats.pop((model, future)))

    def _begin_chat(self, agent: _Agent, model: str, future: int, now: int) -> _Chat:
        """Its first token has come."""
        about: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "pie",
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": agent.inputs.pop(model, 0),
        }
        context, began = trace.set_span_in_context(agent.span), agent.since.pop(model, now)
        span = self._tracer.start_span(f"chat {model}", context, SpanKind.INTERNAL, about, start_time=began)
        chat = agent.chats[model, future] = _Chat(span, now)
        if len(agent.chats) > MOST_CHATS:
            self._end_chat(agent.chats.pop(next(iter(agent.chats))))
        return chat

    def _end_chat(self, chat: _Chat) -> None:
        chat.span.set_attribute("gen_ai.usage.output_tokens", chat.tokens)
        chat.span.end(chat.last)
