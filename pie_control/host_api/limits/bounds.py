"""How much a guest may pass in one call, where that is not what `sandbox.functions` says.

A list or text is refused before it is converted, so that no call keeps everybody else waiting for long.
"""

from __future__ import annotations

from collections.abc import Mapping

from pie_inference.grammars.sources import MOST_TEXT

from ...calls import CALLS
from ...calls.tokens import MOST_OF_CONTEXT
from ...services.http.request import MAX_OPTIONS, MAX_URL

MOST_READ = 256 << 10
"""Bytes that one call reads of a blob or of a body."""
MAX_NAME_BYTES = 1024
"""Most bytes of the name of a model."""
MAX_WATCH_OPTIONS = 16 << 10
"""Most bytes of the options of `watch-run`: a few stop strings."""
MAX_AWAITED = 1 << 16
"""Futures that one call waits for."""

MAX_HEADERS_TEXT = 64 << 10
"""Most bytes of the headers of a request, as JSON; what is in them is bounded by `services.http.request`."""

_OF_ALL = {"model": MAX_NAME_BYTES}
_OF_ONE: dict[tuple[str, str], dict[str, int]] = {
    ("core", "wait"): {"futures": MAX_AWAITED},
    ("core", "span"): dict.fromkeys(("operation", "name", "error"), MAX_NAME_BYTES),
    ("tokenize", "detokenize"): {"tokens": MOST_OF_CONTEXT},
    ("tokenize", "push_tokens"): {"tokens": MOST_OF_CONTEXT},
    ("fused", "watch_run"): {"options": MAX_WATCH_OPTIONS},
    ("grammar", "open_matcher"): {"kind": MAX_NAME_BYTES, "text": 4 * MOST_TEXT, "options": MAX_WATCH_OPTIONS},
    ("grammar", "advance_matcher"): {"tokens": MOST_OF_CONTEXT},
    ("http", "http_request"): {"method": 32, "url": MAX_URL, "headers": MAX_HEADERS_TEXT, "options": MAX_OPTIONS},
}


def bounds_of(interface: str, name: str) -> Mapping[str, int]:
    """Items or bytes that parameters of a function may have, by the name of the parameter."""
    own = CALLS[name].most if name in CALLS else _OF_ONE.get((interface, name), {})
    return {**_OF_ALL, **own}
