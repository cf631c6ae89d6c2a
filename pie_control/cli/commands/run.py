"""`pie run`: one inferlet, its messages on stdout."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from pie_control.errors import ConfigError, PieError
from pie_inference.options import flag

from ..blobs import add_blobs, blobs_of
from ..server_options import (
    add_server,
    add_settings,
    config_of,
    given_settings,
    running_server,
    server_of,
    token_of,
)
from ..tables import standing
from ..terminal import log_to_stderr, write, write_line

if TYPE_CHECKING:
    from pie_control.client.running import Running
    from pie_control.inferlets.events import Event

    from ..targets import Launch

NAME = "run"
HELP = "run one inferlet; its messages go to stdout, its log to stderr"
EXAMPLES = """  pie run hello                               a bundled example on the demo model
  pie run story.py -- --about "a small boat"  options of the inferlet after --
  pie run story.py -- --help                  what the inferlet takes
  pie run -i chat                             lines of stdin are sent to the inferlet
  pie run --result story.py | jq .            the result alone on stdout, messages on stderr
  pie run --blob photo=cat.png describe.py    a file that the inferlet opens by its name
  pie run --model ~/models/llama story.py     or the name of a model of the server
  pie run --native story.py                   outside of the sandbox: breakpoint() works; for code that you trust
  pie run --native --pdb story.py             and pdb opens at the line where it fails

The command uses the server of --server or $PIE_SERVER, else a server at the default address that has the model; else it
starts a server itself and stops it at the end. At the end of stdin, `-i` sends one empty message."""

PLACE_SECONDS = 0.5
"""After Ctrl-C, the inferlet has this time to say where its tasks are."""
WAITS_SECONDS = 1.0
"""Where nobody sends messages, so often is looked whether the inferlet waits for one."""
MESSAGE_OF_CLIENT = "a message of its client"
"""What an inferlet says that it waits for."""
OWN_SERVER_SETTINGS = (
    "host",
    "port",
    "allowed_hosts",
    "insecure",
    "drain_seconds",
    "tenants",
    "state",
    "state_days",
    "state_bytes",
    "metrics",
    "log_format",
    "traces",
    "max_connections",
    "max_connections_per_client",
    "max_inferlets_per_client",
    "hosts",
    "host_timeout",
    "warm_pool",
)
"""Settings of no use to a server inside this command, which launches one inferlet, here, and has no network."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "program",
        metavar="FILE|FOLDER|NAME",
        help="a Python file, a folder or zip with main.py, a component, a folder with Cargo.toml, a program of the "
        "server, or an example",
    )
    parser.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT", help="arguments of the inferlet; options after --"
    )
    parser.add_argument("-i", "--interactive", action="store_true", help="send the lines of stdin to the inferlet")
    parser.add_argument(
        "--result", action="store_true", help="print the result alone to stdout, as JSON, and messages to stderr"
    )
    parser.add_argument(
        "--native", action="store_true", help="run in this process, outside of the sandbox: for trusted code only"
    )
    parser.add_argument(
        "--pdb", action="store_true", help="with --native: open pdb at the line where the program fails"
    )
    add_blobs(parser)
    add_server(parser)
    add_settings(parser, without=OWN_SERVER_SETTINGS, shown=("model",))


def execute(options: argparse.Namespace) -> int:
    """Runs the inferlet; returns 0 if it finished, else 1."""
    log_to_stderr(logging.WARNING)  # the server may be in this process
    if options.pdb and not options.native:
        raise ConfigError("--pdb cannot look into the sandbox: add --native, for code that you trust")
    if options.native:
        return _run_native(options)
    from ..interrupts import run_until_signal

    return run_until_signal(_run(options))


async def _run(options: argparse.Namespace) -> int:
    async with _target(options) as launch:
        running = await launch(options.program_arguments, blobs_of(options))
        printer = Printer(options.result)
        try:
            return await follow(running, printer, options.interactive)
        except asyncio.CancelledError as interrupt:
            if interrupt.args == (signal.SIGINT,):
                await _show_place(running, printer)
            raise


NO_SANDBOX = "pie: --native runs the program outside of the sandbox, with all your rights: only for code that you trust"


def _run_native(options: argparse.Namespace) -> int:
    """Runs the program on this thread, outside of the sandbox: its stdin, stdout and stderr are ours."""
    if server_of(options) is not None:
        raise ConfigError("--native runs the program in this process: leave out --server, or unset $PIE_SERVER")
    from pie_control.authoring.native.debugging import stop_at
    from pie_control.authoring.native.program import source_of
    from pie_control.authoring.native.server import native_server

    from ..interrupts import interrupted_by_sigterm
    from ..programs import find_program
    from ..stdin import start_reader

    source = source_of(Path(find_program(options.program, ()).program))
    write_line(NO_SANDBOX, sys.stderr)
    printer = Printer(options.result)
    with interrupted_by_sigterm(), native_server(config_of(options)) as server:

        def began(inferlet: str) -> None:
            if options.interactive:
                start_reader(lambda line: server.send(inferlet, line).result())

        blobs = blobs_of(options)
        failed = stop_at if options.pdb else None
        server.run(source, options.program_arguments, tell=printer.show, began=began, blobs=blobs, failed=failed)
    return printer.code


@contextlib.asynccontextmanager
async def _target(options: argparse.Namespace) -> AsyncIterator[Launch]:
    """Opens the server that will run the inferlet; closes it at the end."""
    own = given_settings(options)
    model, *more = getattr(options, "model", None) or [""]
    chooses = own.keys() <= {"model"} and not more
    if server_of(options) is not None and not chooses:
        option = flag(next((name for name in own if name != "model"), "model"))
        raise ConfigError(
            f"{option} is for a server that `pie run` starts: leave it out or unset --server and $PIE_SERVER"
        )
    server = await running_server(options, model) if chooses else None
    from .. import targets

    if server is None:
        opened = targets.own_server(config_of(options), options.program)
    else:
        opened = targets.server(server, options.program, token_of(options), model)
    async with opened as target:
        yield target


async def follow(running: Running, printer: Printer, interactive: bool) -> int:
    """Prints events until the inferlet ends. `interactive`: it is sent the lines of stdin."""
    async with contextlib.AsyncExitStack() as stack:
        if interactive:
            from ..stdin import sending_lines

            await stack.enter_async_context(sending_lines(running))
        else:
            hint = asyncio.create_task(_say_that_it_waits(running))
            stack.callback(hint.cancel)
        async for event in running.events():
            printer.show(event)
    return printer.code


async def _say_that_it_waits(running: Running) -> None:
    """Says once that the inferlet waits for a message, where nobody sends one."""
    with contextlib.suppress(PieError):
        waits_for = None
        while waits_for != MESSAGE_OF_CLIENT:
            await asyncio.sleep(WAITS_SECONDS)
            waits_for = (await running.info())["waits_for"]
        write_line("pie: it waits for a message: with -i, it is sent the lines of stdin", sys.stderr)


async def _show_place(running: Running, printer: Printer) -> None:
    """Prints what the inferlet waits for, and where its tasks are if it says so in time."""
    from pie_control.inferlets.events import WHERE, Ended, LogLine

    with contextlib.suppress(PieError, TimeoutError):
        async with asyncio.timeout(PLACE_SECONDS):
            info = await running.info(stack=True)
            write_line(f"pie: {standing(info)}", sys.stderr)
            if not info["waits_for"]:
                return
            async for event in running.events():
                if isinstance(event, Ended):
                    return
                printer.show(event)
                if isinstance(event, LogLine) and event.text.startswith(WHERE):
                    return


class Printer:
    """Writes messages to stdout and log lines to stderr.

    A result goes to stdout where nothing was sent, else apart from the messages, to a stderr that is a terminal. With
    `result_alone` it goes to stdout, and messages to stderr.
    """

    def __init__(self, result_alone: bool = False) -> None:
        self.code = 0
        self.is_silent = True
        """Whether there was nothing to show: no message, no line, no result and no error."""
        self._messages = sys.stderr if result_alone else sys.stdout
        self._result_alone = result_alone
        self._last = ""

    def show(self, event: Event) -> None:
        from pie_control.inferlets.events import Ended, LogLine, Message

        self.is_silent &= isinstance(event, Ended) and event.status == "finished" and event.result in (None, "null")
        match event:
            case Message(text):
                self._write(text)
            case LogLine(_, _, text):
                write_line(text, sys.stderr)
            case Ended(status, result, error):
                self._finish(status, result, error)

    def _write(self, text: str) -> None:
        write(text, self._messages)
        self._last = text or self._last

    def _finish(self, status: str, result: str | None, error: str | None) -> None:
        if self._last and not self._last.endswith("\n"):
            self._write("\n")
        if result is not None and (self._result_alone or (not self._last and result != "null")):
            write_line(result)
        elif result not in (None, "null") and sys.stderr.isatty():
            write_line(f"result: {result}", sys.stderr)
        if status != "finished":
            write_line(f"pie: the inferlet {status}{f': {error}' if error else ''}", sys.stderr)
            self.code = 1
