"""The part of WASI that a sandboxed program needs, and nothing else: clocks, random numbers, output to its own log, an
empty environment and file system, exit. Sleeping suspends the fiber. Every other WASI function traps with its name.

This replaces wasmtime's own WASI. Its async form needs a Tokio reactor, which the C API lacks, and ends the process
when a guest sleeps; its sync form blocks the control loop for as long as the guest sleeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from .fibers import SUSPEND, Owner
from .functions import HostFunction, trap
from .values import OwnedResource, Result

RESOURCES = {
    "pollable": 1,
    "input-stream": 2,
    "output-stream": 3,
    "error": 4,
    "network": 5,
    "descriptor": 6,
    "terminal-input": 7,
    "terminal-output": 8,
}
"""Host type number of each resource."""

STDIN, STDOUT, STDERR = 0, 1, 2
READY = 0
"""The pollable that is always ready; others are numbers of `WasiState.deadlines`."""
MAX_TIMERS = 4096
MAX_RANDOM_BYTES = 65536
WRITE_BUDGET = 1024
"""Bytes that a guest is told it may write in one call; CPython splits longer output. Each may be a line of the log."""
MAX_WRITE = 4096
"""Bytes that it may write without asking, as WASI says."""
MAX_POLLED = 1024
"""Pollables of one call of `poll`."""
ACCESS_DENIED = "access-denied"
"""One of the error codes of wasi:sockets."""


class WasiState:
    """The timers of one inferlet."""

    __slots__ = ("deadlines", "next_timer")

    def __init__(self) -> None:
        self.deadlines: dict[int, int] = {}
        self.next_timer = 1


class WasiOwner(Owner, Protocol):
    """What WASI functions need of an inferlet."""

    wasi: WasiState

    def write_output(self, stream: str, data: bytes) -> None:
        """Takes bytes that the guest wrote to stdout or stderr."""

    def sleep_until(self, deadline_ns: int, value: object) -> None:
        """Resumes the guest with `value` at `deadline_ns` of the monotonic clock."""


def _pollable(owner: WasiOwner, deadline: int) -> OwnedResource:
    state = owner.wasi
    if len(state.deadlines) >= MAX_TIMERS:
        trap(f"more than {MAX_TIMERS} timers at once")
    number = state.next_timer
    state.next_timer += 1
    state.deadlines[number] = deadline
    return OwnedResource(owner.instance.context, number, RESOURCES["pollable"])


def _subscribe_stream(owner: WasiOwner, _stream: int) -> OwnedResource:
    return OwnedResource(owner.instance.context, READY, RESOURCES["pollable"])


def _block(owner: WasiOwner, pollable: int) -> Any:
    deadline = owner.wasi.deadlines.get(pollable, 0)
    if deadline <= time.monotonic_ns():
        return None
    owner.sleep_until(deadline, None)
    return SUSPEND


def _poll(owner: WasiOwner, pollables: Sequence[int]) -> Any:
    """Indices of the pollables that are ready. If none is, the guest sleeps until the first one is."""
    if not pollables:
        trap("poll of no pollables")
    deadlines = [owner.wasi.deadlines.get(number, 0) for number in pollables]
    now = time.monotonic_ns()
    ready = [i for i, deadline in enumerate(deadlines) if deadline <= now]
    if ready:
        return ready
    first = min(deadlines)
    owner.sleep_until(first, [deadlines.index(first)])
    return SUSPEND


def drop_resource(owner: WasiOwner, resource_type: int, number: int) -> None:
    """Frees a resource that a guest dropped."""
    if resource_type == RESOURCES["pollable"]:
        owner.wasi.deadlines.pop(number, None)


def _random_bytes(_owner: WasiOwner, count: int) -> bytes:
    if count > MAX_RANDOM_BYTES:
        trap(f"more than {MAX_RANDOM_BYTES} random bytes in one call")
    return os.urandom(count)


def _stream(number: int, kind: str) -> Any:
    return lambda owner: OwnedResource(owner.instance.context, number, RESOURCES[kind])


def _write(owner: WasiOwner, stream: int, data: bytes) -> Result:
    owner.write_output("stderr" if stream == STDERR else "stdout", data)
    return Result(True, None)


def _exit(_owner: WasiOwner, status: Result) -> None:
    trap("exited with code 0" if status.is_ok else "exited with code 1")


_CLOSED = Result(False, ("closed", None))
_DONE = Result(True, None)
_DENIED = Result(False, ACCESS_DENIED)

_STREAM_ERROR = "variant{last-operation-failed: owntype, closed: _}"
_READ = f"func(borrowtype, u64) -> result<list<u8>, {_STREAM_ERROR}>"
_WRITE = f"func(borrowtype, list<u8>) -> result<_, {_STREAM_ERROR}>"
_FLUSH = f"func(borrowtype) -> result<_, {_STREAM_ERROR}>"
_SOCKET_ERROR = (
    "enum{unknown, access-denied, not-supported, invalid-argument, out-of-memory, timeout, concurrency-conflict, "
    "not-in-progress, would-block, invalid-state, new-socket-limit, address-not-bindable, address-in-use, "
    "remote-unreachable, connection-refused, connection-reset, connection-aborted, datagram-too-large, "
    "name-unresolvable, temporary-resolver-failure, permanent-resolver-failure}"
)
_RESOLVE = f"func(borrowtype, string) -> result<owntype, {_SOCKET_ERROR}>"
_SOCKET = f"func(enum{{ipv4, ipv6}}) -> result<owntype, {_SOCKET_ERROR}>"
_TIME = "func() -> record{seconds: u64, nanoseconds: u32}"
_U64, _BYTES = "func() -> u64", "func(u64) -> list<u8>"

_PLAIN: dict[tuple[str, str, str], Any] = {
    ("wasi:clocks/monotonic-clock", "now", _U64): lambda _: time.monotonic_ns(),
    ("wasi:clocks/monotonic-clock", "resolution", _U64): lambda _: 1,
    ("wasi:clocks/monotonic-clock", "subscribe-instant", "func(u64) -> owntype"): _pollable,
    ("wasi:clocks/monotonic-clock", "subscribe-duration", "func(u64) -> owntype"): lambda owner, duration: _pollable(
        owner, time.monotonic_ns() + duration
    ),
    ("wasi:clocks/wall-clock", "now", _TIME): lambda _: divmod(time.time_ns(), 1_000_000_000),
    ("wasi:clocks/wall-clock", "resolution", _TIME): lambda _: (0, 1),
    ("wasi:random/random", "get-random-bytes", _BYTES): _random_bytes,
    ("wasi:random/random", "get-random-u64", _U64): lambda _: int.from_bytes(os.urandom(8), "little"),
    ("wasi:random/insecure", "get-insecure-random-bytes", _BYTES): _random_bytes,
    ("wasi:random/insecure", "get-insecure-random-u64", _U64): lambda _: int.from_bytes(os.urandom(8), "little"),
    ("wasi:random/insecure-seed", "insecure-seed", "func() -> tuple<u64, u64>"): lambda _: (
        int.from_bytes(os.urandom(8), "little"),
        int.from_bytes(os.urandom(8), "little"),
    ),
    ("wasi:cli/environment", "get-environment", "func() -> list<tuple<string, string>>"): lambda _: [],
    ("wasi:cli/environment", "get-arguments", "func() -> list<string>"): lambda _: [],
    ("wasi:cli/environment", "initial-cwd", "func() -> option<string>"): lambda _: None,
    ("wasi:cli/exit", "exit", "func(result<_, _>) -> _"): _exit,
    ("wasi:cli/stdin", "get-stdin", "func() -> owntype"): _stream(STDIN, "input-stream"),
    ("wasi:cli/stdout", "get-stdout", "func() -> owntype"): _stream(STDOUT, "output-stream"),
    ("wasi:cli/stderr", "get-stderr", "func() -> owntype"): _stream(STDERR, "output-stream"),
    ("wasi:cli/terminal-stdin", "get-terminal-stdin", "func() -> option<owntype>"): lambda _: None,
    ("wasi:cli/terminal-stdout", "get-terminal-stdout", "func() -> option<owntype>"): lambda _: None,
    ("wasi:cli/terminal-stderr", "get-terminal-stderr", "func() -> option<owntype>"): lambda _: None,
    ("wasi:io/streams", "[method]input-stream.read", _READ): lambda *_: _CLOSED,
    ("wasi:io/streams", "[method]input-stream.blocking-read", _READ): lambda *_: _CLOSED,
    ("wasi:io/streams", "[method]input-stream.subscribe", "func(borrowtype) -> owntype"): _subscribe_stream,
    (
        "wasi:io/streams",
        "[method]output-stream.check-write",
        f"func(borrowtype) -> result<u64, {_STREAM_ERROR}>",
    ): lambda *_: Result(True, WRITE_BUDGET),
    ("wasi:io/streams", "[method]output-stream.write", _WRITE): _write,
    ("wasi:io/streams", "[method]output-stream.blocking-write-and-flush", _WRITE): _write,
    ("wasi:io/streams", "[method]output-stream.flush", _FLUSH): lambda *_: _DONE,
    ("wasi:io/streams", "[method]output-stream.blocking-flush", _FLUSH): lambda *_: _DONE,
    ("wasi:io/streams", "[method]output-stream.subscribe", "func(borrowtype) -> owntype"): _subscribe_stream,
    ("wasi:filesystem/preopens", "get-directories", "func() -> list<tuple<owntype, string>>"): lambda _: [],
    ("wasi:sockets/instance-network", "instance-network", "func() -> owntype"): _stream(0, "network"),
    ("wasi:sockets/ip-name-lookup", "resolve-addresses", _RESOLVE): lambda *_: _DENIED,
    ("wasi:sockets/tcp-create-socket", "create-tcp-socket", _SOCKET): lambda *_: _DENIED,
    ("wasi:sockets/udp-create-socket", "create-udp-socket", _SOCKET): lambda *_: _DENIED,
}
"""By interface, name, and type (`components.signature`), on which `native.c` relies."""

_NATIVE = {
    ("wasi:clocks/monotonic-clock", "now"): "monotonic_now",
    ("wasi:random/random", "get-random-bytes"): "random_bytes",
    ("wasi:random/insecure", "get-insecure-random-bytes"): "random_bytes",
}
"""Functions of compiled/native.c."""
_MOST = {"contents": MAX_WRITE, "len": MAX_RANDOM_BYTES}

FUNCTIONS: dict[tuple[str, str], HostFunction] = {
    **{
        (interface, name): HostFunction(call, False, _MOST, _NATIVE.get((interface, name), ""), signature)
        for (interface, name, signature), call in _PLAIN.items()
    },
    ("wasi:io/poll", "[method]pollable.block"): HostFunction(_block, True, signature="func(borrowtype) -> _"),
    ("wasi:io/poll", "poll"): HostFunction(
        _poll, True, {"in": MAX_POLLED}, signature="func(list<borrowtype>) -> list<u32>"
    ),
}
