"""What the events of a stream, its end and errors look like in the API of a route."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse

from ..failures import MESSAGES, answer_of, anthropic, error_body, status_of, told
from ..messages import encode

TYPE = re.compile(r'\{"type": ?"([\w.]{1,64})"')
"""How an event begins that has a name."""


LAST = re.compile(r'\{"type": ?"response\.(?:completed|incomplete|failed)"')
"""How the event begins by which a client hears that a response is there."""
NUMBER = '"sequence_number": -1}'
"""How an event ends that wants to have its number there."""


class OpenAi:
    """Chat completions and completions: events without names, and a mark at the end."""

    end = b"data: [DONE]\n\n"

    def event(self, text: str, number: int = 0) -> bytes:
        """What a program has sent, as an event. `number`: how many came before it."""
        return b"data: " + text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\ndata: ").encode() + b"\n\n"

    def is_last(self, text: str) -> bool:
        """Whether what a program has sent tells that its answer is there."""
        return LAST.match(text) is not None

    def error(self, error: Exception) -> Any:
        """The JSON of an error."""
        return {"error": told(status_of(error), error_body(error))}

    def answer(self, error: Exception) -> JSONResponse:
        """The answer that an error is."""
        return answer_of(error)


class Responses(OpenAi):
    """Responses: events have the name that their `type` is, and numbers."""

    end = b""

    def event(self, text: str, number: int = 0) -> bytes:
        if text.endswith(NUMBER):
            text = f"{text[: -len(NUMBER)]}{NUMBER[:-3]}{number}}}"
        found = TYPE.match(text)
        return (b"event: " + found[1].encode() + b"\n" if found else b"") + super().event(text)


class Anthropic(Responses):
    """Messages: named events, and errors of a form of their own."""

    def error(self, error: Exception) -> Any:
        status = status_of(error)
        return anthropic(status, told(status, error_body(error)))


OPENAI, RESPONSES, ANTHROPIC = OpenAi(), Responses(), Anthropic()


def dialect_of(route: str) -> OpenAi:
    """The API of a route."""
    if route.startswith(MESSAGES):
        return ANTHROPIC
    return RESPONSES if route == "/v1/responses" else OPENAI


def error_event(dialect: OpenAi, error: Exception) -> bytes:
    """An error within a stream."""
    return dialect.event(encode(dialect.error(error)).decode())
