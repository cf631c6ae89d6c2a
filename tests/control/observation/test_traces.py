"""`--traces`: an agent with a child and an outgoing request is one trace at a collector."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import INVALID_SPAN

from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.observation.traces import MOST_TOLD, SECOND, _Agent
from pie_control.services.http.trace_context import checked
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import started
from tests.helpers.web import Asked, answer, serving

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
AGENT = """
import asyncio
from inferlet_sdk import Context, IgnoreStopTokens, Tools, http_get, launch, span
from inferlet_sdk.tools.events import Call

URL = []

async def sleepy():
    await asyncio.sleep(0.01)
    with span("asks"):
        await http_get(URL[0])
    try:
        await launch("agent").result()
    except Exception:
        pass

def broken():
    raise KeyError("x")

async def main(args, url=""):
    if not url:
        await Context(args.model).fill("hello").generate_until(max_tokens=3, stop=IgnoreStopTokens())
        raise ValueError("a child that fails")
    URL.append(url)
    await http_get(url)
    with span("looks around"):
        await Tools(sleepy).run(Call(0, "sleepy", {}, ""))
        await Tools(broken).run(Call(1, "broken", {}, ""))
    context = Context(args.model).fill("hello there")
    for count in (4, 5):
        await context.generate_until(max_tokens=count, stop=IgnoreStopTokens())
    try:
        await launch().result()
    except Exception:
        return "done"
"""


def test_only_a_header_of_the_right_form_is_passed_on() -> None:
    good = f"00-{TRACE}-{SPAN}-01"
    assert checked(good) == good
    for bad in ("", "00-x", good + "\r\nx: y", good.upper(), good.replace("00-", "01-", 1)):
        assert checked(bad) == ""


def test_an_agent_is_one_trace(guest_cache: Path) -> None:
    collected: list[bytes] = []
    parents: list[str] = []

    async def serve(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/v1/traces":
            collected.append(asked.body)
        else:
            parents.append(asked.headers["traceparent"])
        writer.write(answer(b""))

    async def test() -> None:
        async with serving(serve) as web:
            url = f"http://127.0.0.1:{web.port}"
            settings = {"traces": f"{url}/v1/traces", "http_allow": [f"127.0.0.1:{web.port}"]}
            async with started(guest_cache, InProcessClient(FakeModel()), **settings) as api:
                server = HttpServer(api, bind("127.0.0.1", 0), api.config)
                await server.start()
                headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
                async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=HANG_SECONDS) as client:
                    await client.post("/v1/programs", params={"name": "agent"}, content=AGENT.encode())
                    body = {"program": "agent", "environment": {"kwargs": json.dumps({"url": url + "/asked"})}}
                    ran = await client.post("/v1/inferlets", params={"stream": "true"}, json=body)
                    assert "done" in ran.text
                    assert (await client.get("/metrics")).status_code == 404
                await server.close()

    asyncio.run(test())
    spans = [span for body in collected for span in spans_of(body)]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    spans.sort(key=lambda one: int(one.start_time_unix_nano))
    agent, of_tool, child = (one for one in spans if one.name == "invoke_agent agent")
    (around,) = (one for one in spans if one.name == "looks around")
    assert (agent.parent_span_id.hex(), child.parent_span_id) == (SPAN, agent.span_id)
    (sleepy,), (asks,) = ([one for one in spans if one.name == name] for name in ("execute_tool sleepy", "asks"))
    assert asks.parent_span_id == of_tool.parent_span_id == sleepy.span_id
    assert sleepy.parent_span_id == around.span_id
    assert parents == [f"00-{TRACE}-{one.span_id.hex()}-01" for one in (agent, asks)]
    chats = [one for one in spans if one.name == "chat fake"]
    assert [one.parent_span_id for one in chats] == [of_tool.span_id, agent.span_id, agent.span_id, child.span_id]
    assert [attributes(one)["gen_ai.usage.output_tokens"] for one in chats] == [3, 4, 5, 3]
    (broken,) = (one for one in spans if one.name == "execute_tool broken")
    assert (around.parent_span_id, broken.parent_span_id) == (agent.span_id, around.span_id)
    assert sleepy.end_time_unix_nano - sleepy.start_time_unix_nano >= 10_000_000
    assert attributes(sleepy) == {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "sleepy"}
    assert attributes(broken)["error.type"] == "KeyError"
    assert not attributes(around)
    assert all(one.start_time_unix_nano <= one.end_time_unix_nano for one in spans)
    assert attributes(agent)["gen_ai.usage.output_tokens"] == 9
    assert attributes(agent)["gen_ai.operation.name"] == "invoke_agent"
    assert "error.type" not in attributes(agent)
    assert attributes(child)["error.type"] == "failed"


def test_of_what_an_inferlet_tells_in_a_second_a_part_is_taken() -> None:
    agent, second = _Agent(INVALID_SPAN), 7 * SECOND
    assert sum(agent.has_room(second + number) for number in range(300)) == MOST_TOLD
    assert agent.has_room(second + SECOND)


def spans_of(body: bytes) -> list[Any]:
    given = ExportTraceServiceRequest.FromString(body)
    return [span for resource in given.resource_spans for scope in resource.scope_spans for span in scope.spans]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
