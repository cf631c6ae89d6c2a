"""Every way in which a program's text can reach a terminal or the server's log: nothing of it is obeyed there."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import unicodedata
from dataclasses import asdict
from pathlib import Path

import pytest

from pie_control.cli.commands.listing import COLUMNS, _row
from pie_control.cli.commands.run import Printer
from pie_control.cli.tables import format_table
from pie_control.cli.terminal import HarmlessFormatter, write_line
from pie_control.errors import PieError
from pie_control.inferlets.events import Ended, Event
from pie_control.registry.entry import InferletInfo
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import started

RUDE = "a\x1b]0;owned\x07b\x9b2Jc\rd\u202ee"
BODIES = {
    "messages": "await args.send(RUDE)",
    "pieces": "[await args.send(each) for each in RUDE]",
    "a log line": "args.log(RUDE)",
    "print": "print(RUDE)",
    "stderr": "print(RUDE, file=sys.stderr)",
    "a result": "traits.set_result(RUDE)",
    "what it returns": "return [RUDE]",
    "an error": "raise ValueError(RUDE)",
    "its exit": "sys.exit(RUDE)",
    "a name in a traceback": "exec(compile('1/0', RUDE, 'exec'))",
    "a deadlock": "await asyncio.create_task(asyncio.Event().wait(), name=RUDE)",
    "a model": "Context(RUDE)",
    "a topic": "await broadcast(RUDE * 100, RUDE)",
    "an export": "await Context.open(RUDE)",
    "a blob": "traits.open_blob(RUDE)",
    "an adapter": "await Context(args.model, adapter=RUDE).fill('x').flush()",
    "a URL": "await http_get('http://example.org/' + RUDE)",
    "a header": "await http_get('http://example.org', headers={RUDE: RUDE})",
    "a method": "await traits.http_request(RUDE, 'http://example.org')",
    "a grammar": "await traits.open_matcher(traits.create_queue(args.model), 'regex', RUDE + '(')",
    "a program": "await launch(RUDE)",
    "a child's error": "await launch('raises', word=RUDE)",
    "an option": "bindings.fused.create_sampler(json.dumps({RUDE: 1}))",
}
SILENT = {"a URL"}
"""What is refused without being repeated."""
HEAD = f"""
import asyncio, json, sys
from inferlet_sdk import Context, bindings, broadcast, http_get, launch, traits
RUDE = {RUDE!a}
async def main(args):
    """


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def obeyed(text: str) -> list[str]:
    """Characters in it that a terminal takes for commands, or that turn the order of text around."""
    return [each for each in text if unicodedata.category(each) in ("Cc", "Cf") and each not in "\n\t"]


async def outcome(server: ServerApi, source: str) -> tuple[list[Event], InferletInfo]:
    """What a program says, and its row in the list."""
    events: list[Event] = []
    ended = asyncio.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, Ended):
            ended.set()

    program = await server.upload(source.encode(), "rude")
    entry = await server.launch(program.program, listener=listen)
    await ended.wait()
    return events, entry.info()


def test_a_terminal_obeys_no_program(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(HarmlessFormatter("pie: %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])

    async def run_all() -> dict[str, tuple[list[Event], InferletInfo]]:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, http_allow="example.org") as server, asyncio.timeout(HANG_SECONDS):
            await server.upload(b"async def main(args, word):\n    raise ValueError(word)", "raises")
            return {way: await outcome(server, HEAD + body) for way, body in BODIES.items()}

    outcomes, silent = asyncio.run(run_all()), set[str]()
    for way, (events, info) in outcomes.items():
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        printer = Printer()
        for event in events:
            printer.show(event)
        shown = terminal.getvalue() + format_table(COLUMNS, [_row(asdict(info))])
        assert obeyed(shown) == [], way
        if "owned" not in shown and way != "pieces":
            silent.add(way)
    assert silent == SILENT
    assert obeyed(log.getvalue()) == []


def test_what_an_upload_is_refused_for_is_harmless(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refusals() -> list[str]:
        found = []
        async with started(guest_cache, InProcessClient(FakeModel())) as server, asyncio.timeout(HANG_SECONDS):
            for source, name in ((f"x = '{RUDE}", "rude"), ("def main(:\n  \x1b[2J", "rude"), ("x = 1", RUDE)):
                with pytest.raises(PieError) as caught:
                    await server.upload(source.encode(), name)
                found.append(str(caught.value))
        return found

    terminal = Terminal()
    for refusal in asyncio.run(refusals()):
        write_line(f"pie: {refusal}", terminal)
    assert obeyed(terminal.getvalue()) == []
