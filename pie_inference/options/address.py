"""Addresses of workers on other machines, and how each side notices that it is cut off from the other."""

from __future__ import annotations

import ipaddress
import re

from .secret import SOURCES

ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[\w.*-]+):(\d{1,5})")
LOCALHOST = "localhost"
ANY = "*"

HEARTBEAT_MS = 1000
"""Each side asks the other as often for a sign of life. Threads of ZeroMQ answer, however long a wave takes."""
HEARTBEAT_TIMEOUT_MS = 5000
"""A side that gives none for this time is cut off."""


class AddressError(ValueError):
    """An address that is none, or that needs a secret. The message says what to do."""


def check_address(address: str, secret: str | None) -> None:
    """Raises AddressError for what is no tcp://HOST:PORT, and without a secret for all but addresses that only
    processes of the same machine reach."""
    found = ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 0xFFFF:
        raise AddressError(f"the address of a worker is tcp://HOST:PORT, as tcp://10.0.0.2:8012, not {address!r}")
    if secret is None and not _is_loopback(found[1]):
        raise AddressError(
            f"{address} can be reached from other machines, so a worker there needs a secret: give both sides the same "
            f"one by {SOURCES}. Without one, only addresses such as tcp://127.0.0.1:{found[2]} are allowed"
        )


def check_listening_address(address: str, secret: str | None) -> None:
    """Checks an address to listen at, which cannot be a name. Raises as `check_address`."""
    check_address(address, secret)
    host = ADDRESS.fullmatch(address)[1]  # type: ignore[index]  # it has been checked
    if host != ANY and _numeric(host) is None:
        raise AddressError(
            f"--listen takes a numeric address of this machine, as tcp://127.0.0.1:8012, not {address!r}"
        )


def is_ipv6(address: str) -> bool:
    """Whether an address is one of version 6."""
    return address.startswith("tcp://[")


def _is_loopback(host: str) -> bool:
    found = _numeric(host)
    return host == LOCALHOST if found is None else found.is_loopback


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
