"""Tools in Rust: what is told of servers that speak MCP, and of servers that do not quite, is what Python tells."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pie_control.testing.in_process import InProcessClient
from pie_inference.testing.byte_tokenizer import CHAT_TEMPLATE
from tests.examples.test_rust_programs import features, result
from tests.helpers import chat_templates
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.outside import Page
from tests.helpers.scripted_model import STOP, ScriptedModel, State
from tests.helpers.servers import Listener, started
from tests.helpers.web import Asked, answer, serving
from tests.sdk.tools.test_mcp import ADD, EVENTS, HELLO, JSON, URL, WRONG_SERVERS, Server, said

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
IN_RUST = {
    # The schema itself is not looked at, as far as it is an object of properties.
    r'inputSchema that cannot be used: \$.properties.a.type: "int" is no type.*only=\[...\]': (
        "no such key of add; there are a$"
    ),
    '"z" is required, and is none of the properties': '"z" is missing: expected anything',
    "an outputSchema that cannot be used": "promises structured content of the tool add",
    '"add" an inputSchema that cannot be used: .*must be "object"': '"add" an inputSchema that cannot be used: null',
    r"no JSON \(lists and objects are nested more than 64": r"no JSON \(JSON is nested deeper than",
    "no MCP server can be reached at .*: connection refused. St": "no MCP server can be reached at .* Start it, or",
}
"""What is told of a server in other words than in Python."""


def server(**results: Any) -> Server:
    """A server that is asked over a connection."""
    web: Any = SimpleNamespace(web=SimpleNamespace())
    return Server(web, **results)


async def told(
    cache: Path, servers: Sequence[Server], text: str = CALL, is_over: Callable[[], bool] = lambda: True
) -> list[list[str]]:
    """What a model that writes this text, and then on until `is_over`, is told by the tools of each server; last stands
    what it says itself."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        one = servers[int(asked.path.strip("/"))]
        headers = [[name.title(), value] for name, value in asked.headers.items()]
        status, given, body = one.answer(
            {"method": asked.method, "url": URL, "headers": headers, "body": asked.body.decode()}
        )
        if status is None:
            return
        lines = [f"{name}: {value}" for name, value in given.items()]
        if "x-stays-open" in given:  # until the client has seen enough
            writer.write("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + body)
            await asyncio.Event().wait()
        writer.write(answer(body, f"{status} said", *lines))

    def next_token(state: State) -> int:
        tokens = [token for token, _ in state]
        done = tokens[::-1].index(ord("\n"))
        return ord(text[done]) if done < len(text) else STOP if is_over() else ord("x")

    model = ScriptedModel(next_token, name="toy", page_size=16, num_pages=4000, max_context=8192)
    async with serving(handle) as web:
        options = {"warm_pool": 0, "http_allow": f"127.0.0.1:{web.port}"}
        async with started(cache, InProcessClient(model), **options) as host:
            info, listener = await host.upload(*features()), Listener()
            urls = json.dumps([web.url(f"/{number}") for number in range(len(servers))])
            await host.launch(info.program, ["what=mcp", f"urls={urls}"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                found: list[list[str]] = result(await listener.ended)
    return found


def test_servers_that_are_wrong_are_refused_by_the_sentences_that_python_has(guest_cache: Path) -> None:
    servers = [server(**results) for results, _ in WRONG_SERVERS]
    for (results, expected), (first, *_) in zip(WRONG_SERVERS, asyncio.run(told(guest_cache, servers)), strict=True):
        assert re.search(IN_RUST.get(expected, expected), first.removeprefix("Error: request-failed: ")), results
        assert len(first) < 3000


def test_what_a_tool_gives_and_how_it_comes(guest_cache: Path) -> None:
    parts = [
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "AA"}},
        {},
    ]
    cursors = iter(("1", "2"))
    gives = [
        server(tools_call={"content": parts}),
        server(tools_call={"content": [], "structuredContent": {"sum": 5}}),
        server(tools_call=said("x" * 30_000)),
        server(tools_call=said("y" * 30_000, isError=True)),
        server(tools_list=lambda _: {"tools": [{**ADD, "name": f"add{next(cursors)}"}]}),
        server(initialize={**HELLO, "protocolVersion": "2025-03-26"}),
        *(server() for _ in range(3)),
    ]
    gives[5].wrap = lambda message: (200, JSON, json.dumps([message]).encode())
    for one, end in zip(gives[6:], ("\n", "\r", "\r\n"), strict=True):
        one.wrap = open_stream(end)
    found = [first for first, *_ in asyncio.run(told(guest_cache, gives))]
    assert found[:2] == ["[image image/png]\nb\n[resource file:///c]\n[something]", '{"sum": 5}']
    assert found[2] == "x" * 20_000 + "... (10000 more characters)"
    assert found[3] == "Error: request-failed: add failed: " + "y" * 1965 + "... (35 more characters)"
    assert found[4] == 'Error: there is no tool "add"; there are: add1'
    assert found[5:] == ["5"] * 4
    assert {headers["Authorization"] for one in gives for headers in one.headers} == {"Bearer x"}
    assert all(one.methods.count("answer") == 6 for one in gives[6:]), "two things are asked before each answer"


def test_a_name_that_no_model_can_write_is_told_in_its_letters(guest_cache: Path) -> None:
    names = ("2.add", "math.add/2", "2 and 3", "", "é" * 70, "2 add", "á" * 70)
    one = server(
        tools_list={"tools": [{**ADD, "name": name} for name in names]},
        tools_call=lambda params: said(params["name"]),
    )
    told_as = ("_2_add", "math_add_2", "_2_and_3", "_", "_" * 64, "_2_add_6", "_" * 56 + "_7")
    *given, _ = asyncio.run(told(guest_cache, [one], "".join(CALL.replace("add", name) for name in told_as)))[0]
    assert given == list(names)


def open_stream(end: str) -> Any:
    """A stream that goes on behind the answer, in front of which the server asks something. Lines end so."""

    def stream(message: dict[str, Any]) -> Page:
        asks = [{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}]
        asks += [{"jsonrpc": "2.0", "id": method, "method": method} for method in ("ping", "roots/list")]
        lines = [": a comment", "", *(line for one in asks for line in (f"data: {json.dumps(one)}", ""))]
        lines += [f"data:{line}" for line in json.dumps(message, indent=1).split("\n")]
        lines += ["", "data: never read", "", ""]
        return 200, {**EVENTS, "x-stays-open": "1"}, end.join(lines).encode()

    return stream


def test_a_lost_session_is_begun_anew_once_and_many_calls_wait_for_their_turn(guest_cache: Path) -> None:
    one, always = server(), server(tools_call=(404, {}, b""))
    lost, answered = {"one": False}, one.answer

    def wrap(message: dict[str, Any]) -> Page:
        return 200, {**JSON, "mcp-session-id": "two" if lost["one"] else "one"}, json.dumps(message).encode()

    one.wrap = wrap
    always.wrap = lambda message: (200, {**JSON, "mcp-session-id": "s"}, json.dumps(message).encode())

    def forgetful(asked: dict[str, Any]) -> Page:
        lost["one"] = lost["one"] or "tools/call" in asked["body"]
        if dict(asked["headers"]).get("Mcp-Session-Id") == "one" and lost["one"]:
            return 404, {}, b""
        return answered(asked)

    one.answer = forgetful  # type: ignore[method-assign]
    *given, text = asyncio.run(told(guest_cache, [one], "So: " + CALL * 20))[0]
    assert (given, text) == (["5"] * 20, "So: ")
    assert one.methods.count("initialize") == 2
    assert "has ended the session: begin anew" in asyncio.run(told(guest_cache, [always]))[0][0]


def test_a_call_runs_while_the_model_writes_on(guest_cache: Path) -> None:
    one = server()
    ((given, text),) = asyncio.run(told(guest_cache, [one], CALL, lambda: "tools/call" in one.methods))
    assert given == "5"
    assert set(text) <= {"x"}
    assert len(text) < 2000 - len(CALL), "the model was not stopped by the most tokens of a turn"


def test_calls_that_cannot_be_read_are_told_to_the_model(guest_cache: Path) -> None:
    call, end = '<tool_call>{"name": "add", "arguments": %s}</tool_call>', "</tool_call>"
    wrong = [call % one for one in ('"text"', "[1, 2]", '{"a": 1}', '{"a": 1, "b": "2"}', '{"a": 1, "b": 2, "c": 3}')]
    wrong += [f"<tool_call>{end}", "<tool_call>add(1)" + end, f"<tool_call>{{}}{end}", call[:30]]
    one = server()
    *given, _ = asyncio.run(told(guest_cache, [one], " ".join(wrong)))[0]
    for text, words in zip(
        given,
        (
            '^Error: .*: the call cannot be read: "arguments": not JSON',
            '^Error: .*: the call cannot be read: "arguments" is no object',
            r'^Error: \$: "b" is missing: expected an integer$',
            r'^Error: \$.b: expected an integer, got "2"$',
            r"^Error: \$.c: no such key of add; there are a, b$",
            "no JSON object .* follows <tool_call>",
            "no JSON object .* follows <tool_call>",
            'the call has no "name"',
            "the text ends within the call",
        ),
        strict=True,
    ):
        assert re.search(words, text), text
    assert "tools/call" not in one.methods


def toolbox(cache: Path, names: list[str], **options: Any) -> Any:
    """What a chat with tools of these names gives where the model calls the first one again and again, how many calls
    were run, and what came to the client; `seen`: to be filled with all that the model has seen in the end."""
    seen = options.pop("seen", [])
    text = f"So<tool_call>{json.dumps({'name': names[0], 'arguments': {}})}</tool_call>: "

    def next_token(state: State) -> int:
        tokens = [token for token, _ in state]
        done = tokens[::-1].index(ord("\n"))
        seen[:] = [bytes(token for token in tokens if token < 256).decode()]
        return ord(text[done]) if done < len(text) else STOP

    model = ScriptedModel(next_token, name="toy", page_size=16, num_pages=400, max_context=1024, **options)

    async def run() -> Any:
        async with started(cache, InProcessClient(model), warm_pool=0) as host:
            info, listener = await host.upload(*features()), Listener()
            await host.launch(info.program, ["what=toolbox", f"names={json.dumps(names)}"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                return [*result(await listener.ended), "".join(listener.messages)]

    return asyncio.run(run())


def test_a_chat_has_an_end_and_names_are_checked(guest_cache: Path) -> None:
    wanted = "after all rounds, with 2 calls, the model wants to call add again: raise `rounds`, or tell it when to "
    wanted += "answer"
    assert toolbox(guest_cache, ["add"]) == [wanted, 2, "So: So: So"]
    for name in ("", "1a", "a b", "é", "a" * 65):
        told, ran, _ = toolbox(guest_cache, [name])
        assert told.startswith(f'invalid-argument: "{name}" cannot be a tool\'s name'), told
        assert ran == 0
    assert toolbox(guest_cache, ["a", "b", "a"]) == [
        "invalid-argument: two tools are named a: give one another name",
        0,
        "",
    ]


def test_each_call_of_a_conversation_has_a_number_of_its_own(guest_cache: Path) -> None:
    seen = list[str]()
    template = CHAT_TEMPLATE.replace("{{ message['content'] }}", "{{ message.tool_call_id }}{{ message['content'] }}")
    toolbox(guest_cache, ["add"], template=template, seen=seen)
    assert re.findall(r"call\d{5}", seen[0]) == ["call00001", "call00002"]


def test_a_template_of_another_form_is_refused(guest_cache: Path) -> None:
    told, ran, _ = toolbox(guest_cache, ["add"], template=chat_templates.UNKNOWN)
    assert told.startswith("unsupported: the model's chat template writes calls of tools in a form")
    assert ran == 0


def test_a_request_leaves_at_once_and_its_url_is_quoted(guest_cache: Path) -> None:
    """`/late` is answered when the request before it is there, of which the program has awaited nothing yet."""
    came = asyncio.Event()

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/late":
            await came.wait()
        else:
            came.set()
        writer.write(answer(asked.path.encode()))

    async def run() -> tuple[Any, str]:
        model = ScriptedModel(lambda _: STOP, name="toy", page_size=16, num_pages=400)
        async with serving(handle) as web:
            options = {"warm_pool": 0, "http_allow": f"127.0.0.1:{web.port}"}
            async with started(guest_cache, InProcessClient(model), **options) as host:
                info, listener = await host.upload(*features()), Listener()
                await host.launch(info.program, ["what=sent", f"url={web.url('')}"], listener=listener)
                async with asyncio.timeout(HANG_SECONDS):
                    return result(await listener.ended), web.url("")

    (url, text), where = asyncio.run(run())
    assert text == "/%C3%A9%20b?c=%20%7C"
    assert url == where + text
