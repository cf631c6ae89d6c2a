"""The world's side of MCP over HTTP (revision 2025-06-18): each message is a POST, each answer one JSON object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from examples.world.tools import ToolFailed
from inferlet_sdk.schemas.mismatch import SchemaMismatch
from inferlet_sdk.tools.tool import Tool, as_text

REVISION = "2025-06-18"
"""What is spoken here, whatever a client would like."""
NO_METHOD, WRONG_PARAMETERS, WRONG_MESSAGE = -32601, -32602, -32600
LIAR = "liar"

Tools = Mapping[str, Tool[..., Any]]
Caller = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def answer(call: Caller, tools: Tools, message: dict[str, Any], revision: str = REVISION) -> Response:
    """The response to a message; `revision`: what its header says."""
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if revision != REVISION and method != "initialize":
        return _error(None, WRONG_MESSAGE, f"revision {revision[:40]!r} is not spoken here: take {REVISION}", 400)
    if message.get("jsonrpc") != "2.0" or isinstance(number, bool) or not isinstance(number, str | int | None):
        return _error(None, WRONG_MESSAGE, 'a message has "jsonrpc": "2.0", and a text or a whole number as id', 400)
    if number is None or (method is None and message.keys() & {"result", "error"}):
        return Response(status_code=202)  # a notification, or a response: the world asks nothing
    if not isinstance(method, str) or not isinstance(params, dict):
        return _error(number, WRONG_MESSAGE, "a message has a method, and an object as params")
    if method == "initialize":
        about = {"name": "village", "version": "1"}
        return _result(number, {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": about})
    if method == "ping":
        return _result(number, {})
    if method == "tools/list":
        return _result(number, {"tools": [_listed(tool) for tool in tools.values()]})
    if method == "tools/call":
        return await _called(call, number, params)
    return _error(number, NO_METHOD, f"the world has no method {method[:40]!r}: it has tools/list and tools/call")


async def _called(call: Caller, number: Any, params: dict[str, Any]) -> Response:
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _error(number, WRONG_PARAMETERS, "tools/call takes a name, and an object as arguments")
    try:
        value = await call(name, arguments)
    except LookupError as error:
        return _error(number, WRONG_PARAMETERS, error.args[0])
    except (SchemaMismatch, ToolFailed) as error:
        return _result(number, {"content": [_text(str(error))], "isError": True})
    if isinstance(value, bytes) and not value.isascii():
        return PlainTextResponse(value, media_type="application/json")
    text = value.decode() if isinstance(value, bytes) else as_text(value)
    structured = {"structuredContent": {"number": "seven"}} if name == LIAR else {}
    return _result(number, {"content": [_text(text)], **structured})


def _listed(tool: Tool[..., Any]) -> dict[str, Any]:
    told = tool.declaration["function"]
    promised = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    output = {"outputSchema": promised} if tool.name == LIAR else {}
    return {"name": tool.name, "description": tool.description, "inputSchema": told["parameters"], **output}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _result(number: Any, result: dict[str, Any]) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": number, "result": result})


def _error(number: Any, code: int, message: str, status: int = 200) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}, status)
