"""Names of exports, as calls are given them."""

from __future__ import annotations

from pie_control.errors import InvalidArgument

MOST_BYTES = 256
COPIES = "prefix:"
"""How names begin whose exports the SDK makes again where it does not find them (inferlet_sdk/sharing/prefixes.py)."""


def check_name(name: str) -> None:
    """Raises InvalidArgument unless it is short, and can be printed."""
    size = len(name.encode())
    if not 0 < size <= MOST_BYTES:
        raise InvalidArgument(f"the name of an export has 1 to {MOST_BYTES} bytes, not {size}: take a hash of it")
    if not name.isprintable():
        raise InvalidArgument(f"the name of an export must be printable, {name!r} is not")
