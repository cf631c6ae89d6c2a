"""What a program tells of itself to whoever traces the server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import text as checked_text

__all__ = ["span"]

SPAN_NAME = 256
"""Characters of the name of a span that are told."""
_SPAN: ContextVar[str] = ContextVar("traceparent", default="")
_TRACEPARENT, _ID = 55, slice(36, 52)
"""Characters of W3C's header `traceparent`, and where in it the id of the span stands."""


def span(name: str, operation: str = "") -> AbstractContextManager[None]:
    """What runs within is a span of this inferlet in the traces of the server, if it has any: `with span("search"):`.
    `operation`: `execute_tool`, where `name` is that of a tool. What is raised goes on, and the span has its class."""
    return _span(checked_text(name, "name")[:SPAN_NAME], checked_text(operation, "operation")[:SPAN_NAME])


def traceparent() -> str:
    """The innermost span around this, as W3C's header says it; "": there is none, or nothing is traced."""
    return _SPAN.get()


@contextmanager
def _span(name: str, operation: str) -> Iterator[None]:
    before, began, error = _SPAN.get(), time.monotonic_ns(), ""
    outer = before or dict(call(bindings.core.get_env)).get("traceparent", "")
    if len(outer) == _TRACEPARENT:
        own = os.urandom(8).hex()
        _SPAN.set(outer[: _ID.start] + own + outer[_ID.stop :])
        operation = f"{operation} {own} {outer[_ID]}"
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        _SPAN.set(before)
        call(bindings.core.span, operation, name, (time.monotonic_ns() - began) // 1000, error[:SPAN_NAME])
