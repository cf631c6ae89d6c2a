"""Tools of a server that speaks MCP, and of servers that do not quite."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from inferlet_sdk import NotAllowed, RequestFailed, SchemaMismatch, Tools, gather
from inferlet_sdk.event_loop import run
from inferlet_sdk.tools.events import Call
from inferlet_sdk.tools.mcp import LARGEST_ANSWER, MOST_ASKED, MOST_TOOLS
from pie_control.errors import NotAllowed as Refused
from tests.helpers.native_host import NativeHost
from tests.helpers.outside import Page

URL = "https://tools.example.com/mcp"
JSON = {"content-type": "application/json; charset=utf-8"}
EVENTS = {"content-type": "text/event-stream"}
ADD_TAKES: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD = {"name": "add", "description": "adds two numbers", "inputSchema": ADD_TAKES}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}

Params = Mapping[str, Any]


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


class Server:
    """A server of one tool, parts of which a test replaces. `results`: by method; a Page is the response itself."""

    def __init__(self, host: NativeHost, **results: Any) -> None:
        self.methods: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.results: dict[str, Any] = {
            "initialize": HELLO,
            "tools/list": {"tools": [ADD]},
            "tools/call": lambda params: said(str(params["arguments"]["a"] + params["arguments"]["b"])),
            **{name.replace("_", "/"): result for name, result in results.items()},
        }
        self.wrap: Callable[[dict[str, Any]], Page] = lambda message: (200, JSON, json.dumps(message).encode())
        host.web.answers = self.answer

    def answer(self, asked: dict[str, Any]) -> Page:
        message = json.loads(asked["body"])
        self.methods.append(message.get("method", "answer"))
        self.headers.append(dict(asked["headers"]))
        assert (asked["method"], asked["url"], message["jsonrpc"]) == ("POST", URL, "2.0")
        if "id" not in message or "method" not in message:
            return 202, {}, b""
        result = self.results[message["method"]]
        given = result(message.get("params", {})) if callable(result) else result
        if isinstance(given, tuple):
            return given
        return self.wrap({"jsonrpc": "2.0", "id": message["id"], **(given if "error" in given else {"result": given})})


def add(a: Any = 2, b: Any = 3) -> Any:
    """What the tool of the server gives."""

    async def main() -> Any:
        return await (await Tools.from_mcp(URL))["add"](a=a, b=b)

    return run(main())


def test_tools_are_declared_and_called(host: NativeHost) -> None:
    server = Server(host)

    async def main() -> Any:
        tools = await Tools.from_mcp(URL, headers={"Authorization": "Bearer x"}, timeout=7)
        called = await tools.run(Call(0, "add", {"a": 2, "b": 3}, ""))
        by_place = await tools.run(Call(1, "add", [4, 5], ""))
        return tools["add"], called, by_place, len(tools)

    add_tool, called, by_place, count = run(main())
    assert (called.text, called.value, called.error, by_place.text, count) == ("5", "5", None, "9", 1)
    told = add_tool.declaration["function"]
    assert (told["name"], told["description"]) == ("add", "adds two numbers")
    assert told["parameters"] == {**ADD_TAKES, "additionalProperties": False}
    assert server.methods == ["initialize", "notifications/initialized", "tools/list", "tools/call", "tools/call"]
    for headers in server.headers:
        assert headers["Accept"] == "application/json, text/event-stream"
        assert headers["Authorization"] == "Bearer x"
        assert "Mcp-Session-Id" not in headers
    assert [headers.get("MCP-Protocol-Version") for headers in server.headers] == [None, *["2025-06-18"] * 4]
    assert {asked["timeout"] for asked in host.web.asked} == {7.0}
    assert host.handles == [], "every body is closed"


def test_names_that_no_model_can_write_are_told_in_its_letters(host: NativeHost) -> None:
    names: list[str] = []
    tools = {"tools": [{**ADD, "name": name} for name in ("math.add/2", "math_add_2", "2 and 3", "", "é" * 70)]}

    def call(params: Any) -> Any:
        names.append(params["name"])
        return said("5")

    Server(host, tools_list=tools, tools_call=call)

    async def main() -> Any:
        found = await Tools.from_mcp(URL)
        for tool in found:
            await tool(a=2, b=3)
        return [tool.name for tool in found]

    assert run(main()) == ["math_add_2", "math_add_2_2", "_2_and_3", "_", "_" * 64]
    assert names == ["math.add/2", "math_add_2", "2 and 3", "", "é" * 70]


def test_wrong_arguments_ask_nobody(host: NativeHost) -> None:
    server = Server(host)

    async def main() -> Any:
        tools = await Tools.from_mcp(URL)
        with pytest.raises(SchemaMismatch, match=r"\$.b: expected an integer"):
            await tools["add"](a=1, b="2")
        return [
            (await tools.run(Call(0, "add", given, ""))).text
            for given in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, [1, 2, 3])
        ]

    assert run(main()) == [
        'Error: $: "b" is missing: expected an integer',
        "Error: $.c: no such key of add; there are a, b",
        "Error: $: add(a, b) takes 2 arguments, not 3",
    ]
    assert "tools/call" not in server.methods


def test_a_list_comes_in_pages(host: NativeHost) -> None:
    def listed(params: Params) -> Any:
        page = int(params.get("cursor", "0"))
        tools = [{**ADD, "name": f"add{page}-{n}"} for n in range(2)]
        return {"tools": tools, **({"nextCursor": str(page + 1)} if page < 2 else {})}

    Server(host, tools_list=listed)

    async def main() -> Any:
        some = await Tools.from_mcp(URL, only=["add2-1", "add0-0"])
        return [one.name for one in await Tools.from_mcp(URL)], [one.name for one in some]

    assert run(main()) == (["add0-0", "add0-1", "add1-0", "add1-1", "add2-0", "add2-1"], ["add0-0", "add2-1"])


def test_only_names_tools_that_there_are(host: NativeHost) -> None:
    Server(host)
    with pytest.raises(ValueError, match=f"only: {URL} has no tool 'subtract'"):
        run(Tools.from_mcp(URL, only=["subtract"]))
    with pytest.raises(TypeError, match="only: give a list of names of tools"):
        run(Tools.from_mcp(URL, only="add"))


def test_a_tool_that_is_not_asked_for_may_be_broken(host: NativeHost) -> None:
    Server(host, tools_list={"tools": [ADD, {"name": "a.b", "inputSchema": 7}]})
    assert [one.name for one in run(Tools.from_mcp(URL, only=["add"]))] == ["add"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_an_answer_may_be_a_stream_of_events(host: NativeHost, end: str, piece_bytes: int) -> None:
    server = Server(host)
    host.web.piece_bytes = piece_bytes

    def stream(message: dict[str, Any]) -> Page:
        asks = [{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}]
        asks += [{"jsonrpc": "2.0", "id": method, "method": method} for method in ("ping", "roots/list")]
        first, second = json.dumps(message, indent=1).split("\n", 1)
        lines = [": a comment", "", "id: 1"]
        for one in asks:
            lines += ["event: message", f"data: {json.dumps(one)}", ""]
        lines += [f"data:{first}", *(f"data: {line}" for line in second.split("\n")), "", "data: never read", ""]
        return 200, EVENTS, (end.join(lines) + end).encode()

    server.wrap = stream
    assert add() == "5"
    replies = [json.loads(asked["body"]) for asked in host.web.asked if '"method"' not in asked["body"]]
    assert replies[0] == {"jsonrpc": "2.0", "id": "ping", "result": {}}
    assert (replies[1]["id"], replies[1]["error"]["code"]) == ("roots/list", -32601)
    assert host.handles == []


def test_a_server_that_asks_without_an_end_is_refused(host: NativeHost) -> None:
    server = Server(host)
    ask = b"".join(b'data: {"jsonrpc": "2.0", "id": %d, "method": "ping"}\n\n' % n for n in range(1000))
    server.wrap = lambda message: (200, EVENTS, ask)
    with pytest.raises(RequestFailed, match=f"asks more than {MOST_ASKED} things before it answers initialize"):
        add()
    assert len(host.web.asked) <= MOST_ASKED + 1
    assert host.handles == []


def test_an_answer_may_be_in_a_list(host: NativeHost) -> None:
    server = Server(host, initialize={**HELLO, "protocolVersion": "2025-03-26"})
    server.wrap = lambda message: (200, JSON, json.dumps([message]).encode())
    assert add() == "5"
    assert server.headers[-1]["MCP-Protocol-Version"] == "2025-03-26"


def test_a_session_is_kept_and_begun_anew_once(host: NativeHost) -> None:
    server = Server(host)
    lost = {"one": False}
    server.wrap = lambda message: (
        200,
        {**JSON, "mcp-session-id": "two" if lost["one"] else "one"},
        json.dumps(message).encode(),
    )
    answer = server.answer

    def forgetful(asked: dict[str, Any]) -> Page:
        if lost["one"] and dict(asked["headers"]).get("Mcp-Session-Id") == "one":
            return 404, {}, b""
        return answer(asked)

    host.web.answers = forgetful

    async def main() -> Any:
        tools = await Tools.from_mcp(URL)
        lost["one"] = True
        return await gather(*(tools["add"](a=n, b=1) for n in range(3)))

    assert run(main()) == ["1", "2", "3"]
    assert server.methods.count("initialize") == 2
    assert [headers.get("Mcp-Session-Id") for headers in server.headers[:3]] == [None, "one", "one"]
    assert {headers.get("Mcp-Session-Id") for headers in server.headers[4:]} == {"two"}


def test_a_session_that_is_always_lost_is_an_error(host: NativeHost) -> None:
    server = Server(host, tools_call=(404, {}, b""))
    server.wrap = lambda message: (200, {**JSON, "mcp-session-id": "s"}, json.dumps(message).encode())
    with pytest.raises(RequestFailed, match="has ended the session"):
        add()


def test_a_failure_is_told_to_the_model(host: NativeHost) -> None:
    Server(host, tools_call=said("the oven is cold", isError=True))
    with pytest.raises(RequestFailed, match="add failed: the oven is cold"):
        add()

    async def main() -> Any:
        return await (await Tools.from_mcp(URL)).run(Call(0, "add", [1, 2], ""))

    result = run(main())
    assert result.text == "Error: RequestFailed: add failed: the oven is cold"
    assert isinstance(result.error, RequestFailed)


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (said("a"), "a"),
        ({"content": []}, ""),
        (said("half \ud800 of a pair, and \U0001f41d"), "half ? of a pair, and \U0001f41d"),
        ({"content": [], "structuredContent": {"sum": 5}}, {"sum": 5}),
        (said("5", structuredContent={"sum": 5}), "5"),
        (
            {
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                    {"type": "resource_link", "uri": "file:///a", "name": "a"},
                    {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
                    {"type": "resource", "resource": {"uri": "file:///c", "blob": "AA"}},
                    {},
                ]
            },
            "a\n[image image/png]\n[resource_link a file:///a]\nb\n[resource file:///c]\n[something]",
        ),
    ],
)
def test_what_a_tool_gives_is_text(host: NativeHost, result: Any, value: Any) -> None:
    Server(host, tools_call=result)
    assert add() == value


SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


WRONG_SERVERS: list[tuple[dict[str, Any], str]] = [
    # ---- the server as such
    (
        {"initialize": (None, {}, b"connection refused")},
        "no MCP server can be reached at .*: connection refused. St",
    ),
    ({"initialize": (404, {}, b"")}, "answers with status 404: is it the right path?"),
    ({"initialize": (405, {}, b"")}, "answers with status 405: is it the right path?"),
    ({"initialize": (500, {}, b"<h1>out\n of order</h1>")}, "answers with status 500: <h1>out of order</h1>"),
    ({"initialize": (500, {}, b"\xff")}, "answers with status 500: \ufffd"),
    ({"initialize": (500, {}, b"")}, "answers with status 500: it says no more"),
    (
        {"initialize": (400, JSON, b'{"error": {"code": -32600, "message": "no"}}')},
        r"status 400: no \(code -32600\)",
    ),
    (
        {"initialize": (200, {"content-type": "text/html"}, b"<html>")},
        "initialize with text/html, where MCP has JSON",
    ),
    ({"initialize": (202, {}, b"")}, "initialize with nothing, where MCP has JSON"),
    ({"initialize": {**HELLO, "protocolVersion": "1999-01-01"}}, 'speaks revision "1999-01-01" of MCP'),
    ({"initialize": {**HELLO, "protocolVersion": ["2025-06-18"]}}, "speaks revision"),
    ({"initialize": {**HELLO, "capabilities": {}}}, "has no tools"),
    ({"initialize": {"protocolVersion": "2025-06-18"}}, "has no tools"),
    (
        {"initialize": {"error": {"code": -32602, "message": "too old"}}},
        r"refuses initialize: too old \(code -32602",
    ),
    ({"initialize": {"error": "odd"}}, 'refuses initialize: "odd"'),
    ({"initialize": (200, {**JSON, "mcp-session-id": "a b"}, b"{}")}, 'names its session "a b"'),
    # ---- bodies
    ({"tools_call": (200, JSON, b"not JSON at all")}, "answers the tool add with what is no JSON"),
    ({"tools_call": (200, JSON, b"")}, "answers the tool add with what is no JSON"),
    ({"tools_call": (200, JSON, b"\xff\xfe\x00")}, r"what is no JSON \(not UTF-8"),
    ({"tools_call": (200, JSON, b"[" * 100_000)}, r"no JSON \(lists and objects are nested more than 64"),
    ({"tools_call": (200, JSON, b"7")}, "with 7, which is no message of MCP"),
    ({"tools_call": (200, JSON, b"[]")}, "ends its answer to the tool add before there is one"),
    ({"tools_call": (200, JSON, b'{"jsonrpc": "2.0", "id": 999, "result": {}}')}, "which is no answer to it"),
    ({"tools_call": (200, JSON, b'{"jsonrpc": "2.0", "id": 3, "result": 1}')}, "which has no result"),
    ({"tools_call": (200, JSON, b" " * (10 << 20))}, "answers the tool add with more than 1 MiB"),
    ({"tools_call": (200, EVENTS, b"data: " + b"x" * (10 << 20))}, "answers the tool add with more than 1 MiB"),
    ({"tools_call": (200, EVENTS, b": quiet\n\n" * 200_000)}, "answers the tool add with more than 1 MiB"),
    ({"tools_call": (200, EVENTS, b"data: {}")}, "ends its answer to the tool add before there is one"),
    ({"tools_call": (200, EVENTS, b"data: garbage\n\n")}, "answers the tool add with what is no JSON"),
    ({"tools_call": (503, {}, b" " * (10 << 20))}, "with more than 1 MiB"),
    # ---- the list
    ({"tools_list": {"tools": {}}}, "lists its tools as {}, which is no list"),
    ({"tools_list": {}}, "lists its tools as null"),
    ({"tools_list": {"tools": [1]}}, "lists a tool without a name, 1"),
    ({"tools_list": {"tools": [{"name": 1}]}}, "lists a tool without a name"),
    ({"tools_list": {"tools": [ADD, ADD]}}, 'lists the tool "add" twice'),
    ({"tools_list": {"tools": [{**ADD, "description": 1}]}}, 'describes the tool "add" as 1'),
    ({"tools_list": {"tools": [ADD], "nextCursor": "again"}}, 'lists the tool "add" twice'),
    ({"tools_list": {"tools": [], "nextCursor": "again"}}, "lists tools without an end"),
    ({"tools_list": {"tools": [], "nextCursor": 1}}, "lists tools without an end"),
    # ---- schemas
    ({"tools_list": {"tools": [{"name": "add"}]}}, '"add" an inputSchema that cannot be used: .*must be "object"'),
    ({"tools_list": {"tools": [{**ADD, "inputSchema": "yes"}]}}, "an inputSchema that cannot be used"),
    (
        {"tools_list": {"tools": [{**ADD, "inputSchema": {"type": "object", "properties": {"a": {"type": "int"}}}}]}},
        r'inputSchema that cannot be used: \$.properties.a.type: "int" is no type.*only=\[...\]',
    ),
    (
        {"tools_list": {"tools": [{**ADD, "inputSchema": {"type": "object", "required": ["z"]}}]}},
        '"z" is required, and is none of the properties',
    ),
    ({"tools_list": {"tools": [{**ADD, "outputSchema": {"type": 1}}]}}, "an outputSchema that cannot be used"),
    # ---- results
    ({"tools_call": {"error": {"code": -32602, "message": "Unknown tool"}}}, "refuses the tool add: Unknown tool"),
    ({"tools_call": {"error": {}}}, "refuses the tool add: it does not say why"),
    ({"tools_call": {"content": "text"}}, 'answers the tool add with the content "text"'),
    ({"tools_call": {"content": ["text"]}}, "answers the tool add with the content"),
    ({"tools_call": {"content": [], "isError": True}}, "add failed: it does not say why"),
    ({"tools_list": {"tools": [{**ADD, "outputSchema": SUM}]}}, "promises structured content of the tool add"),
    (
        {
            "tools_list": {"tools": [{**ADD, "outputSchema": SUM}]},
            "tools_call": said("5", structuredContent={"sum": "5"}),
        },
        r'what its own outputSchema excludes: \$.sum: expected an integer, got "5"',
    ),
]
"""What a server answers, and what is told of it, in Python and in Rust."""


@pytest.mark.parametrize(("results", "told"), WRONG_SERVERS)
def test_a_server_that_is_wrong_is_refused_by_a_sentence(host: NativeHost, results: Any, told: str) -> None:
    Server(host, **results)
    host.web.piece_bytes = 1 << 16
    with pytest.raises(RequestFailed, match=told) as caught:
        add()
    assert URL in str(caught.value) or str(caught.value).startswith("add failed")
    assert len(str(caught.value)) < 3000
    assert host.handles == [], "every body is closed"


def test_a_list_has_an_end(host: NativeHost) -> None:
    cursors = iter(range(10_000))
    server = Server(host, tools_list=lambda _: {"tools": [], "nextCursor": str(next(cursors))})
    with pytest.raises(RequestFailed, match="lists tools without an end"):
        add()
    assert len(server.methods) <= MOST_TOOLS + 4


def test_an_answer_of_the_largest_size_is_read(host: NativeHost) -> None:
    host.web.piece_bytes = 1 << 16
    server = Server(host, tools_call=said("x" * (LARGEST_ANSWER - 200)))
    assert len(add()) == LARGEST_ANSWER - 200
    assert server.methods[-1] == "tools/call"


def test_what_the_operator_refuses_stays_what_it_is(host: NativeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise Refused("tools.example.com is not allowed: --http-allow tools.example.com")

    monkeypatch.setattr(host.web, "send", refuse)
    with pytest.raises(NotAllowed, match="--http-allow"):
        run(Tools.from_mcp(URL))


def test_more_calls_at_once_than_requests_may_be_open_wait_for_their_turn(host: NativeHost) -> None:
    Server(host)

    async def check() -> list[Any]:
        tools = await Tools.from_mcp(URL)
        return list(await gather(*(tools["add"](a=n, b=1) for n in range(20))))

    assert run(check()) == [str(n + 1) for n in range(20)]
