"""A host without inferlets, for tests of its process: it echoes what is posted, or does what it says."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from pie_control.application.links import ControlLink
from pie_control.application.messages import Post, Said, ToHost, Welcome
from pie_control.config import InferletLimits
from pie_control.programs.warm_pool import WarmPool

SMALL_HOST = "tests.helpers.small_host:SmallHost"
REFUSING_HOST = "tests.helpers.small_host:RefusingHost"
SILENT_MODULE = "tests.helpers.small_host:NoSuchHost"
WELCOME = Welcome(3, InferletLimits(), 0, WarmPool(), "")


class SmallHost:
    """`Post(n, text)` is answered by `Said`, unless the text is one of `DEEDS`."""

    is_idle = True

    def __init__(self, welcome: Welcome, link: ControlLink) -> None:
        self.link = link
        self.number = welcome.host
        link.on_messages = self.take

    def take(self, messages: Sequence[ToHost]) -> None:
        posted = [message for message in messages if isinstance(message, Post)]
        for message in posted:
            if message.text in DEEDS:
                DEEDS[message.text](self)
        self.link.send([self.says(one.number, one.text) for one in posted])

    def says(self, number: int, text: str) -> Said:
        return Said([number], [text])


class RefusingHost:
    def __init__(self, welcome: Welcome, link: ControlLink) -> None:
        raise RuntimeError(f"host {welcome.host} cannot serve here")


def _eat(_: SmallHost) -> None:
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))
        time.sleep(0.001)


def _say_garbage(host: SmallHost) -> None:
    vars(host.link)["_stream"].send(b"garbage")


def _announce_too_much(host: SmallHost) -> None:
    vars(vars(host.link)["_stream"])["_socket"].send(b"\xff\xff\xff\xff")


def _close(host: SmallHost) -> None:
    """Closes the connection and lives on."""
    vars(vars(host.link)["_stream"])["_socket"].shutdown(socket.SHUT_WR)
    time.sleep(1000)


def _die_with_last_words(host: SmallHost) -> None:
    host.link.send([host.says(0, "before")])
    print("cannot go on", file=sys.stderr, flush=True)
    os._exit(7)


def _raise(_: SmallHost) -> None:
    raise RuntimeError("a bug")


def _say_what_cannot_be_encoded(host: SmallHost) -> None:
    """In a turn of its own, as rounds are."""

    def say() -> None:
        host.link.send([host.says(1 << 64, "lost")])
        host.link.send([host.says(0, "behind it")])

    asyncio.get_running_loop().call_soon(say)


DEEDS: dict[str, Callable[[SmallHost], object]] = {
    "hang": lambda host: time.sleep(1000),
    "stop": lambda host: os.kill(os.getpid(), signal.SIGSTOP),
    "abort": lambda host: os.abort(),
    "segfault": lambda host: ctypes.string_at(0),
    "garbage": _say_garbage,
    "too much": _announce_too_much,
    "eat": _eat,
    "close": _close,
    "exit": _die_with_last_words,
    "raise": _raise,
    "too large": _say_what_cannot_be_encoded,
}
