"""Where inferlets may send requests to. Pure.

Theory. Two things are asked of every request, and again at every redirect. *May this server be named?* An entry of the
operator's list must name the host of the URL with its port. *May this address be reached?* The name was resolved, and
each address that it has must be a public one; an address of the machine itself or of a private network only if an
entry names that address, or a network that it is in. The connection goes to the address that was asked about, so what
a name resolves to afterwards changes nothing.

An entry is `api.example.com`, `*.example.org` (all names below it, not itself), `*` (all names and public addresses),
`10.1.2.3`, `10.0.0.0/8`, `::1` or `fd00::/8`; behind it may stand a port (`name:8080`, `[::1]:8080`), or `:*` for all.
Without a port it means 80 for http and 443 for https.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from ipaddress import IPv4Network as Network4
from typing import Any

from ...errors import ConfigError, NotAllowed, Unsupported

Address = IPv4Address | IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}
ANY_PORT = 0
EXAMPLES = "api.example.com, *.example.org, name:8080, 127.0.0.1:8000, 10.0.0.0/8 or *"
_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?|\*")
_PARTS = re.compile(r"(?:\[([^\]]*)\](?:/(\d+))?|([^:]*)|([^:]*:[^:]*:.*?))(?::(\d{1,5}|\*))?")

_SPECIAL_4 = {
    "0.0.0.0/8": "an address of this machine",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "an address of a carrier's network",
    "127.0.0.0/8": "an address of this machine",
    "168.63.129.16/32": "a service of the cloud's host",
    "169.254.0.0/16": "a link-local address",  # also metadata of clouds
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "a reserved address",
    "192.0.2.0/24": "an address for documentation",
    "192.88.99.0/24": "a relay to IPv6",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "an address for benchmarks",
    "198.51.100.0/24": "an address for documentation",
    "203.0.113.0/24": "an address for documentation",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
}
"""IANA's registry of special-purpose addresses, and what clouds have beside it."""
_SPECIAL_6 = {
    "::1/128": "an address of this machine",
    "::/128": "an address of this machine",
    "::ffff:0:0/96": "an IPv4 address in the form of IPv6",
    "64:ff9b::/96": "an IPv4 address behind a translator",
    "64:ff9b:1::/48": "an IPv4 address behind a translator",
    "fc00::/7": "a private address",
    "fe80::/10": "a link-local address",
    "ff00::/8": "a multicast address",
    "2001::/23": "a reserved address",  # with Teredo, which carries IPv4 addresses
    "2001:db8::/32": "an address for documentation",
    "2002::/16": "an IPv4 address behind a relay",
    "3fff::/20": "an address for documentation",
}
_PUBLIC_6 = IPv6Network("2000::/3")
"""All that was given out so far; the rest is reserved."""
_NOT_PUBLIC = [(ip_network(network), why) for network, why in (*_SPECIAL_4.items(), *_SPECIAL_6.items())]


def why_not_public(address: Address) -> str | None:
    """What an address is that programs must not reach unless it is named; None: a public one."""
    for network, why in _NOT_PUBLIC:
        if address in network:
            return why
    return "a reserved address" if address.version == 6 and address not in _PUBLIC_6 else None


def try_address(host: str) -> Address | None:
    """The address that a host of a URL is written as; None: it is a name, or no form that we read."""
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """`port` None: that of the scheme."""

    name: str  # "": an entry for a network
    network: Network4 | IPv6Network | None
    port: int | None

    def has_port(self, port: int) -> bool:
        return self.port == ANY_PORT or port in ((self.port,) if self.port else DEFAULT_PORTS.values())

    def names(self, host: str) -> bool:
        if self.name.startswith("*"):
            return host.endswith(self.name[1:])
        return host == self.name

    def holds(self, address: Address) -> bool:
        return self.network is not None and address in self.network


class AllowList:
    """The servers that programs may reach. `tenant`: whose list it is in the file of tenants, for messages."""

    def __init__(self, entries: Sequence[str], tenant: str = "") -> None:
        """Raises ConfigError."""
        self._entries = [_parse(entry) for entry in entries]
        self._tenant = tenant

    def check_host(self, host: str, port: int) -> None:
        """Whether a URL may name this host (lower case, without brackets). Raises Unsupported, NotAllowed."""
        if not self._entries:
            raise Unsupported(
                "this server makes no outgoing HTTP requests: its operator can allow them by name, "
                f"as in {self._setting(host, port)}"
            )
        address = try_address(host)
        for entry in self._entries:
            if entry.has_port(port) and (
                entry.names(host.removesuffix(".")) or (address is not None and entry.holds(address))
            ):
                return
        raise NotAllowed(
            f"requests to {_written(host, port)} are not allowed here: the operator can allow them "
            f"with {self._setting(host, port)}"
        )

    def _setting(self, host: str, port: int) -> str:
        """What allows the server, as the operator writes it."""
        server = _written(host, port)
        return f'http_allow = ["{server}"] of tenant {self._tenant}' if self._tenant else f"--http-allow {server}"

    def check_address(self, host: str, address: Address, port: int) -> None:
        """Whether the address of an allowed host may be reached. Raises NotAllowed."""
        why = why_not_public(address)
        if why is None or any(entry.has_port(port) and entry.holds(address) for entry in self._entries):
            return
        found = "is" if host == str(address) else f"is at {address}, which is"
        raise NotAllowed(
            f"{host} {found} {why}: requests to it are allowed only if the operator names the address itself, "
            f"with {self._setting(str(address), port)}"
        )


class NoServers(AllowList):
    """What inferlets may reach that were launched by a key without `http`."""

    def __init__(self) -> None:
        super().__init__(())

    def check_host(self, host: str, port: int) -> None:
        raise NotAllowed("the key that launched this inferlet allows no outgoing requests: use one that may http")


def _written(host: str, port: int) -> str:
    """A host as an entry names it."""
    if port in DEFAULT_PORTS.values():
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse(entry: str) -> _Entry:
    """Raises ConfigError."""
    host, port = _split(entry)
    network: Any = _try_network(host)
    if network is not None:
        return _Entry("", network, port)
    if not _NAME.fullmatch(host) or host.replace(".", "").isdecimal() or "/" in host:
        raise _wrong(entry)
    return _Entry(host.removesuffix("."), None, port)


def _split(entry: str) -> tuple[str, int | None]:
    """Host and port. A colon in an address without brackets is no port."""
    if _try_network(entry) is not None:
        return entry, None
    match = _PARTS.fullmatch(entry.strip().lower())
    if match is None:
        raise _wrong(entry)
    bracketed, bits, plain, _, port = match.groups()
    host = plain if bracketed is None else bracketed + (f"/{bits}" if bits else "")
    if (
        host is None
        or (bracketed is not None and _try_network(host) is None)
        or (port not in (None, "*") and not 1 <= int(port) <= 65535)
    ):
        raise _wrong(entry)
    return host, None if port is None else ANY_PORT if port == "*" else int(port)


def _try_network(text: str) -> Any:
    try:
        return ip_network(text.strip("[]"))
    except ValueError:
        return None


def _wrong(entry: str) -> ConfigError:
    return ConfigError(f"http_allow: {entry!r} is no server that can be allowed; give {EXAMPLES}")
