"""Tools of a server that speaks the Model Context Protocol over HTTP (MCP, revision 2025-06-18, "Streamable HTTP").

Each message is a POST of its own; the answer is one JSON object, or a stream of events that holds it. The server is a
stranger: what it answers is bounded and checked, and whatever is wrong is a RequestFailed that says what to do.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping
from itertools import chain, count
from typing import Any

from inferlet_sdk.errors import RequestFailed, TimedOut
from inferlet_sdk.schemas.foreign import foreign_record, foreign_shape
from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch, UnsupportedType
from inferlet_sdk.schemas.mismatch import told as shown
from inferlet_sdk.schemas.shapes import Shape
from inferlet_sdk.texts import mended
from inferlet_sdk.tools.tool import Tool
from inferlet_sdk.traits.outside.http import Response, http_post

VERSIONS = ("2025-06-18", "2025-03-26")
"""Revisions that are understood, the latest first."""
LARGEST_ANSWER = 1 << 20
"""Bytes of one answer, with all that a stream says before it."""
MOST_TOOLS = 512
MOST_ASKED = 64
"""Requests of a server before it answers one of ours; each costs a request to answer."""
MOST_TOLD = 2000
"""Characters of what a server says of an error."""
MOST_AT_ONCE = 8
"""Requests to a server; others wait, for an inferlet has a bound on them."""

_NO_METHOD = -32601
_SESSION = re.compile(r"[!-~]{1,1024}")


class _SessionIsGone(RequestFailed):
    """The server has ended the session, or was started again."""


class McpServer:
    """A server, as one client sees it. `url` is the one at which it takes messages."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, timeout: float | None = None) -> None:
        """`headers` go with every request, `timeout` is for each, in seconds."""
        self.url = url
        self._given = dict(headers or {})
        self._timeout = timeout
        self._version = ""
        self._session = ""
        self._count = 0
        self._starting = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def start(self) -> None:
        """Begins a session: client and server agree on a revision of the protocol."""
        about = {"protocolVersion": VERSIONS[0], "capabilities": {}, "clientInfo": {"name": "pie", "version": "1"}}
        told = await self._ask("initialize", about)
        version = told.get("protocolVersion")
        if version not in VERSIONS:
            raise self._wrong(
                f"speaks revision {shown(version)} of MCP: one that speaks {' or '.join(VERSIONS)} will do"
            )
        capabilities = told.get("capabilities")
        if not isinstance(capabilities, dict) or "tools" not in capabilities:
            raise self._wrong("has no tools: take the address of one that has")
        self._version = version
        (await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})).close()

    async def tools(self, only: Collection[str] | None = None) -> list[Tool[..., Any]]:
        """Its tools, or those of these names."""
        found, taken = dict[str, Tool[..., Any]](), set[str]()
        cursors: list[str] = []
        while True:
            told = await self.request("tools/list", {"cursor": cursors[-1]} if cursors else {})
            listed = told.get("tools")
            if not isinstance(listed, list):
                raise self._wrong(f"lists its tools as {shown(listed)}, which is no list: tell who runs it")
            for one in listed:
                name = one.get("name") if isinstance(one, dict) else None
                if not isinstance(name, str):
                    raise self._wrong(f"lists a tool without a name, {shown(one)}: tell who runs it")
                if only is not None and name not in only:
                    continue
                if name in found:
                    raise self._wrong(f"lists the tool {shown(name)} twice: tell who runs it")
                found[name] = self._tool(name, one, taken)
                taken.add(found[name].name)
            cursor = told.get("nextCursor")
            if cursor is None:
                break
            if not isinstance(cursor, str) or cursor in cursors or max(len(found), len(cursors)) >= MOST_TOOLS:
                raise self._wrong(f"lists tools without an end (more than {MOST_TOOLS}, or again): tell who runs it")
            cursors.append(cursor)
        missing = [name for name in only or () if name not in found]
        if missing:
            raise ValueError(f"only: {self.url} has no tool {missing[0]!r}; look at what it lists without `only`")
        return list(found.values())

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request; in a new session, if the server has forgotten this one."""
        async with self._turns:
            session = self._session
            try:
                return await self._ask(method, params)
            except _SessionIsGone:
                async with self._starting:  # several calls hear of it, one begins anew
                    if self._session == session:
                        await self.start()
                return await self._ask(method, params)

    # ---- one tool ----

    def _tool(self, name: str, told: Mapping[str, Any], taken: Collection[str]) -> Tool[..., Any]:
        description = told.get("description") or told.get("title") or ""
        if not isinstance(description, str):
            raise self._wrong(f"describes the tool {shown(name)} as {shown(description)}: tell who runs it")
        which = "inputSchema"
        try:
            parameters = foreign_record(name, told.get("inputSchema"))
            which = "outputSchema"
            output = None if told.get(which) is None else foreign_shape(told[which])
        except UnsupportedType as error:
            raise self._wrong(
                f"gives the tool {shown(name)} an {which} that cannot be used: {error}. Tell who runs it, or name the "
                "tools that you need: `only=[...]`"
            ) from None

        async def call(**arguments: Any) -> Any:
            return await self._call(name, parameters.read(arguments, ()), output)

        return Tool(call, _name_of(name, taken), description, parameters)

    async def _call(self, name: str, arguments: Mapping[str, Any], output: Shape | None) -> Any:
        """What a tool gives: its text, or, where it says none, its structured content."""
        result = await self.request("tools/call", {"name": name, "arguments": arguments})
        content, structured = result.get("content", []), result.get("structuredContent")
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise self._wrong(f"answers the tool {name} with the content {shown(content)}: tell who runs it")
        text = "\n".join(map(_text_of, content))
        if result.get("isError"):
            raise RequestFailed(f"{name} failed: {text[:MOST_TOLD] or 'it does not say why'}")
        if output is not None:
            if structured is None:
                raise self._wrong(f"promises structured content of the tool {name}, and gives none: tell who runs it")
            try:
                output.read(structured, ())
            except SchemaMismatch as error:
                raise self._wrong(
                    f"gives for the tool {name} what its own outputSchema excludes: {error}. Tell who runs it"
                ) from None
        return text if text or structured is None else structured

    # ---- messages ----

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._count += 1
        number, what, asked = self._count, _what(method, params), 0
        response = await self._post({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        async with response:
            if method == "initialize":
                self._session = self._checked_session(response.headers.get("mcp-session-id", ""))
            async for message in self._messages(response, what):
                if "method" in message:
                    asked += "id" in message
                    if asked > MOST_ASKED:
                        raise self._wrong(
                            f"asks more than {MOST_ASKED} things before it answers {what}: tell who runs it"
                        )
                    await self._reply(message)
                elif message.get("id") == number:
                    return self._result(message, what)
                else:
                    raise self._wrong(f"answers {what} with {shown(message)}, which is no answer to it")
        raise self._wrong(f"ends its answer to {what} before there is one: try again")

    async def _reply(self, message: Mapping[str, Any]) -> None:
        """Answers what the server asks meanwhile: it may see whether the client is there. Notifications need none."""
        if "id" not in message:
            return
        answer: dict[str, Any] = {"result": {}}
        if message["method"] != "ping":
            answer = {"error": {"code": _NO_METHOD, "message": "this client offers nothing but ping"}}
        (await self._post({"jsonrpc": "2.0", "id": message["id"], **answer})).close()

    def _result(self, message: Mapping[str, Any], what: str) -> dict[str, Any]:
        if message.get("error") is not None:
            raise RequestFailed(f"{self.url} refuses {what}: {_error_text(message['error'])}")
        result = message.get("result")
        if not isinstance(result, dict):
            raise self._wrong(f"answers {what} with {shown(message)}, which has no result")
        return result

    async def _post(self, message: Mapping[str, Any]) -> Response:
        """The response to a message, whose status is one of success."""
        headers = {**self._given, "Accept": "application/json, text/event-stream"}
        session = "" if message.get("method") == "initialize" else self._session
        headers |= {"Mcp-Session-Id": session} if session else {}
        headers |= {"MCP-Protocol-Version": self._version} if self._version else {}
        try:
            response: Response = await http_post(self.url, json=message, headers=headers, timeout=self._timeout)
        except TimedOut as error:
            raise TimedOut(f"the MCP server {self.url} does not answer: {error}") from None
        except RequestFailed as error:
            raise RequestFailed(
                f"no MCP server can be reached at {self.url}: {error}. Start it, or mend the address"
            ) from None
        if response.ok:
            return response
        async with response:
            if response.status == 404 and session:
                raise _SessionIsGone(f"{self.url} has ended the session: begin anew")
            if response.status in (404, 405):
                raise self._wrong(f"answers with status {response.status}: is it the right path? It often ends in /mcp")
            body = (await self._read(response, _what(str(message.get("method", "")), {}))).decode("utf-8", "replace")
        raise RequestFailed(f"{self.url} answers with status {response.status}: {_said(body)}")

    def _checked_session(self, session: str) -> str:
        if session and _SESSION.fullmatch(session) is None:
            raise self._wrong(f"names its session {shown(session)}, which no header can hold: tell who runs it")
        return session

    # ---- bodies ----

    async def _messages(self, response: Response, what: str) -> AsyncIterator[dict[str, Any]]:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            async for data in _events(self._pieces(response, what)):
                for message in self._parse(data, what):
                    yield message
        elif kind == "application/json":
            for message in self._parse(await self._read(response, what), what):
                yield message
        else:
            raise self._wrong(
                f"answers {what} with {kind or 'nothing'}, where MCP has JSON or a stream of events: is it the right "
                "path? It often ends in /mcp"
            )

    async def _read(self, response: Response, what: str) -> bytes:
        return b"".join([piece async for piece in self._pieces(response, what)])

    async def _pieces(self, response: Response, what: str) -> AsyncIterator[bytes]:
        """The body, as far as it may go."""
        size = 0
        async for piece in response:
            size += len(piece)
            if size > LARGEST_ANSWER:
                response.close()
                raise self._wrong(
                    f"answers {what} with more than {LARGEST_ANSWER >> 20} MiB, which is not read: ask it for less"
                )
            yield piece

    def _parse(self, data: bytes, what: str) -> list[dict[str, Any]]:
        """The messages of a body or an event: one, or a list of them as older revisions have it."""
        try:
            value = parse_json(data.decode())
        except (SchemaMismatch, UnicodeDecodeError) as error:
            reason = error.reason if isinstance(error, SchemaMismatch) else f"not UTF-8: {error.reason}"
            raise self._wrong(f"answers {what} with what is no JSON ({reason}): tell who runs it") from None
        if b"\\ud" in data.lower():  # half of a surrogate pair may be written so
            value = json.loads(mended(json.dumps(value, ensure_ascii=False)))
        messages = value if isinstance(value, list) else [value]
        for one in messages:
            if not isinstance(one, dict):
                raise self._wrong(f"answers {what} with {shown(one)}, which is no message of MCP: tell who runs it")
        return messages

    def _wrong(self, what: str) -> RequestFailed:
        return RequestFailed(f"the MCP server {self.url} {what}")


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event of a stream (HTML, section 9.2.6)."""
    data: list[bytes] = []
    async for line in _lines(pieces):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines that end with LF, CR or both. A long one that comes in many pieces is put together once."""
    begun: list[bytes] = []
    after_cr = False
    async for piece in pieces:
        if after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # its CR has ended the line
            after_cr = False
        if not piece:
            continue
        after_cr = piece.endswith(b"\r")
        *ended, rest = re.split(rb"\r\n|\r|\n", piece)
        for line in ended:
            yield b"".join((*begun, line))
            begun = []
        begun.append(rest)


def _what(method: str, params: Mapping[str, Any]) -> str:
    """A request, for messages."""
    return f"the tool {params['name']}" if method == "tools/call" and "name" in params else method or "a message"


def _name_of(name: str, taken: Collection[str]) -> str:
    """What a model calls a tool: at most 64 letters, digits, - and _. Servers have other signs in names, too. A number
    is behind it where another tool has the name."""
    found = re.sub(r"^(?![A-Za-z_])|[^\w-]", "_", name, flags=re.ASCII)[:64]
    numbered = (f"{found[:56]}_{n}" for n in count(len(taken) + 1))
    return next(one for one in chain([found], numbered) if one not in taken)


def _text_of(part: Mapping[str, Any]) -> str:
    """A part of a result, as a model reads it. Pictures and sounds are only named."""
    resource = part.get("resource")
    for found in (part, resource):
        if isinstance(found, dict) and isinstance(found.get("text"), str):
            text: str = found["text"]
            return text
    about = resource if isinstance(resource, dict) else part
    named = [about[key] for key in ("name", "uri", "mimeType") if isinstance(about.get(key), str)]
    return f"[{' '.join([str(part.get('type', 'something')), *named])}]"


def _said(body: str) -> str:
    """What a server says of an error, in a message of MCP or by itself."""
    try:
        value = parse_json(body)
    except SchemaMismatch:
        value = None
    if isinstance(value, dict) and value.get("error") is not None:
        return _error_text(value["error"])
    return " ".join(body[:MOST_TOLD].split()) or "it says no more"


def _error_text(error: object) -> str:
    if not isinstance(error, dict):
        return shown(error)
    code = f" (code {error['code']})" if isinstance(error.get("code"), int) else ""
    return f"{str(error.get('message') or 'it does not say why')[:MOST_TOLD]}{code}"
