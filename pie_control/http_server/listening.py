"""The listening socket, opened before the server imports or starts anything slow: a bad address fails early."""

from __future__ import annotations

import socket

from pie_control.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError if the address is invalid or in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol given, asyncio disables Nagle's algorithm on accepted connections: tokens must not wait.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from None
    listener.setblocking(False)
    return listener
