"""Says which trace something belongs to, as W3C's header `traceparent` says it."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import replace

from .request import HttpRequest

HEADER = "traceparent"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The header of the request or session in whose context something happens; "": it has none."""


def checked(text: str) -> str:
    """The value of a header, or "" if it is not of the form of version 00."""
    return text if FORM.fullmatch(text) else ""


def in_trace(request: HttpRequest, traceparent: str) -> HttpRequest:
    """The request as a part of the trace, unless its program has said of which it is."""
    if not checked(traceparent) or any(name.lower() == HEADER for name, _ in request.headers):
        return request
    return replace(request, headers=(*request.headers, (HEADER, traceparent)))
