"""`pie chat`: a conversation with a model."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from pie_control.errors import PieError

from ...interrupts import run_until_signal, until_interrupt
from ...server_options import add_server, running_server, token_of
from ...terminal import log_to_stderr, write, write_line

if TYPE_CHECKING:
    from pie_control.client.chat import ChatClient

NAME = "chat"
HELP = "talk to a model; Ctrl-C stops an answer, Ctrl-D ends the conversation"
EXAMPLES = """  pie chat                                   the server's model; without a server, the demo model
  pie chat "What is 3 plus 4?"               one answer
  pie chat --model demo+my_agent             a program of yours answers
  pie chat --model ~/models/llama --system "Be brief."

Without --server and $PIE_SERVER, it talks to a server at the default address that has the model, or starts one."""

PROMPT = "> "
COMMANDS = """/again         another answer to the last message
/clear         begin anew
/model NAME    talk to another model of the server
/system TEXT   what the model is told before the conversation
/quit          leave, as Ctrl-D does"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("message", nargs="*", help="answer this alone; without one, each line of stdin is answered")
    parser.add_argument("--model", default="", help="name that the server knows, or folder or id of a checkpoint")
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="of one answer (default: 512)")
    parser.add_argument("--temperature", type=float, help="0: always the likeliest token (default: the server's)")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Talks until stdin ends; 1 if the last answer failed."""
    log_to_stderr(logging.WARNING)  # the server may be in this process
    return run_until_signal(_talk(options))


async def _talk(options: argparse.Namespace) -> int:
    from pie_control.client.chat import ChatClient

    running = await running_server(options, options.model)
    named = options.model if running else ""
    async with _server(running, options.model) as url:
        client = ChatClient(url, token_of(options))
        chat = _Conversation(client, options, named or (await client.models())[0])
        if options.message:
            return 0 if await chat.answer(" ".join(options.message)) else 1
        with _same_terminal():
            return await _converse(chat)


async def _converse(chat: _Conversation) -> int:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    asking = sys.stdin.isatty() and sys.stdout.isatty()
    if asking:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  keys and history of `input`
        write_line(f"{chat.model} at {chat.client.server}; /help shows what else there is")
    well = True
    while True:
        try:
            line = await asyncio.to_thread(input, PROMPT if asking else "")
        except EOFError:
            return 0 if well else 1
        if line == "/quit":
            return 0
        if line.startswith("/"):
            await chat.command(*line[1:].split(maxsplit=1))
        elif line.strip():
            well = await chat.answer(line)


class _Conversation:
    """What was said, and how it goes on."""

    def __init__(self, client: ChatClient, options: argparse.Namespace, model: str) -> None:
        self.client, self.model = client, model
        self._system = options.system
        self._options = {"max_tokens": options.max_tokens}
        if options.temperature is not None:
            self._options["temperature"] = options.temperature
        self._said: list[dict[str, str]] = []

    async def command(self, name: str = "", argument: str = "") -> None:
        """Does what a line that begins with / says."""
        match name:
            case "again" if self._said:
                said = self._said
                self._said = said[:-2]
                if not await self.answer(said[-2]["content"]):
                    self._said = said
            case "clear":
                self._said = []
            case "model" if argument:
                self.model = argument
            case "system":
                self._system = argument
            case _:
                write_line(COMMANDS)

    async def answer(self, message: str) -> bool:
        """Prints the answer as it comes. One that fails leaves the conversation as it was."""
        said = [*self._said, {"role": "user", "content": message}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        request: dict[str, Any] = {"model": self.model, "messages": [*system, *said], **self._options}
        pieces: list[str] = []
        try:
            whole = await until_interrupt(self._show(request, pieces))
        except PieError as error:
            if pieces:
                write_line("")
            write_line(f"pie: {error}{self._way_out(error)}", sys.stderr)
            return False
        write_line("" if whole else " ... (stopped)")
        if whole and self.client.was_cut:
            write_line(f"pie: the answer was cut off: {self._room}", sys.stderr)
        self._said = [*said, {"role": "assistant", "content": "".join(pieces)}]
        return True

    async def _show(self, request: dict[str, Any], pieces: list[str]) -> None:
        """Prints what comes, and adds it to `pieces`. Reasoning is in parentheses, on stderr."""
        reasons = False
        async with contextlib.aclosing(self.client.answer(request)) as coming:
            try:
                async for piece in coming:
                    if piece.reasoning:
                        write(piece.reasoning if reasons else f"({piece.reasoning}", sys.stderr)
                        reasons = True
                    if piece.text:
                        write(")\n" * reasons, sys.stderr)
                        reasons = False
                        pieces.append(piece.text)
                        write(piece.text)
            finally:
                write(")\n" * reasons, sys.stderr)

    def _way_out(self, error: PieError) -> str:
        from pie_control.client.chat import ConversationTooLong

        if not isinstance(error, ConversationTooLong):
            return ""
        return ": /clear begins anew" if self._said else ": say it in fewer words"

    @property
    def _room(self) -> str:
        most = f"--max-tokens {self._options['max_tokens']}"
        return f"{most}, or the model's context is full (/clear begins anew)"


@contextlib.asynccontextmanager
async def _server(running: str | None, model: str) -> AsyncIterator[str]:
    """The address of a server: of the one that runs, or of one in this process until the block ends."""
    if running:
        yield running
        return
    from pie_control.config import DEFAULT_HOST, build_config

    from ..serve import open_server

    given = {
        "host": DEFAULT_HOST,
        "port": 0,
        "hosts": 0,
        "state": "none",
        "tenants": "",
        "warm_pool": 1,
        "model": [model] if model else None,
    }
    async with open_server(build_config(given, os.environ).resolved()) as server:
        yield server.url


@contextlib.contextmanager
def _same_terminal() -> Iterator[None]:
    """Leaves the terminal as it was: a signal in the middle of `input` would leave it without an echo."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # it may be gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
