"""Conversations by OpenAI's routes, with this server or any other that has them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pie_control.errors import BadRequest, PieError

from .connection import ServerUnavailable, address_of, authorization, certificates

if TYPE_CHECKING:
    import httpx

DATA = "data:"
DONE = "[DONE]"
TOO_LONG = "context_length_exceeded"
"""The code of OpenAI's API."""
BETWEEN_PIECES = 300.0
"""Seconds after which a server that sends nothing is given up."""


class Piece(NamedTuple):
    """Part of an answer. Either text may be empty; `reasoning` comes before the answer itself."""

    text: str
    reasoning: str = ""


class ConversationTooLong(BadRequest):
    """The messages have more tokens than the model takes."""


class ChatClient:
    """A server with `/v1/models` and `/v1/chat/completions`.

    Methods raise BadRequest with the server's message where it refuses, and ServerUnavailable where none answers or an
    answer breaks off.
    """

    def __init__(self, server: str, token: str | None = None) -> None:
        self.server = address_of(server)
        self.was_cut = False
        """Whether the last answer ended as it had as many tokens as it may, or as the model takes."""
        self._headers = authorization(token)

    async def models(self) -> list[str]:
        """The names by which requests can name a model."""
        async with self._response("GET", "/v1/models") as response:
            content = await response.aread()
        try:
            return [str(model["id"]) for model in json.loads(content)["data"]]
        except (ValueError, LookupError, TypeError):
            raise ServerUnavailable(f"{self.server}/v1/models is no list of models: is it a server?") from None

    async def answer(self, request: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of the answer as they come; whoever closes this stops the generation. `request` has the
        fields of the route, without `stream`. Raises ConversationTooLong, too."""
        self.was_cut = False
        async with self._response("POST", "/v1/chat/completions", json={**request, "stream": True}) as response:
            async for line in _lines(response):
                data = line.removeprefix(DATA).strip()
                if not line.startswith(DATA) or not data:
                    continue
                if data == DONE:
                    return
                piece, finish = _piece(data)
                self.was_cut |= finish == "length"
                yield piece
            raise ServerUnavailable(f"the answer of {self.server} broke off")

    @contextlib.asynccontextmanager
    async def _response(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        import httpx  # takes 0.1 s

        timeout = httpx.Timeout(10.0, read=BETWEEN_PIECES)
        verify = certificates(self.server)
        try:
            async with (
                httpx.AsyncClient(headers=self._headers, trust_env=False, timeout=timeout, verify=verify) as http,
                http.stream(method, f"{self.server}{path}", **options) as response,
            ):
                if response.is_error:
                    raise _refusal(await response.aread(), response.status_code, path)
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or repr(error)
            raise ServerUnavailable(
                f"no answer from {self.server}{path} ({why}): start a server by `pie serve`"
            ) from None


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """httpx would also end a line at characters that a text may have, such as U+2028."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _piece(data: str) -> tuple[Piece, str]:
    """What one event has, and why the answer ends with it; "" where it does not."""
    try:
        event = json.loads(data)
        if "error" not in event:
            choices = event["choices"]
            deltas = [choice["delta"] for choice in choices]
            text = "".join(delta.get("content") or "" for delta in deltas)
            reasoning = "".join(delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas)
            return Piece(text, reasoning), "".join(choice.get("finish_reason") or "" for choice in choices)
        message = str(event["error"]["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        message = f"this is no piece of a chat completion, as the route has to stream: {data[:200]}"
    raise PieError(message)


def _refusal(content: bytes, status: int, path: str) -> BadRequest:
    try:
        error = json.loads(content)["error"]
        kind = ConversationTooLong if error.get("code") == TOO_LONG else BadRequest
        return kind(str(error["message"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return BadRequest(f"the server answered with status {status}: does it have {path}?")
