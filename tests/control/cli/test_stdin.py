"""Lines of stdin go to an inferlet, however slowly it reads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import pytest

from pie_control.cli import stdin
from pie_control.client.running import Content, Running
from pie_control.errors import BadRequest, Conflict, Overloaded, PieError
from tests.helpers.guard import HANG_SECONDS


class Link:
    """What `Running` talks to; refuses messages by `errors`, the first one first."""

    def __init__(self, *errors: PieError) -> None:
        self.errors = list(errors)
        self.got: list[str] = []
        self.ended = asyncio.Event()

    async def send(self, inferlet: str, text: str, blobs: Mapping[str, Content]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.got.append(text)
        if text == stdin.END:
            self.ended.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines = [str(number) for number in range(3 * stdin.MOST_AHEAD)]
    reader, writer = os.pipe()
    os.write(writer, "\n".join(lines).encode())
    os.close(writer)
    monkeypatch.setattr(stdin, "STDIN", reader)
    monkeypatch.setattr(stdin, "FULL_SECONDS", 0.0)
    return lines


def test_lines_wait_while_the_inferlet_does_not_keep_up(lines: list[str]) -> None:
    async def test() -> None:
        link: Any = Link(Overloaded("full"), Overloaded("full"))
        async with stdin.sending_lines(Running("i1", link)):
            await asyncio.wait_for(link.ended.wait(), HANG_SECONDS)
        assert link.got == [*lines, stdin.END]

    asyncio.run(test())


def test_what_cannot_be_sent_ends_the_command(lines: list[str]) -> None:
    async def test() -> None:
        link: Any = Link(BadRequest("too long"))
        running = Running("i1", link)
        async with stdin.sending_lines(running):
            with pytest.raises(BadRequest, match="too long"):
                await asyncio.wait_for(running.receive(), HANG_SECONDS)
        assert link.got == []

    asyncio.run(test())


def test_an_inferlet_that_has_ended_gets_no_more(lines: list[str]) -> None:
    async def test() -> None:
        link: Any = Link(Conflict("has ended"))
        async with stdin.sending_lines(Running("i1", link)):
            while link.errors:
                await asyncio.sleep(0)
        assert link.got == []

    asyncio.run(test())
