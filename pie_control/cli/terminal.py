"""Writes what guests and servers say to a terminal, which must not take it for commands.

A terminal obeys control characters: they can rename its window, hide or rewrite lines, or type for the user. On a
terminal they are shown as escapes (`\\x1b`); a file or a pipe gets the text as it is.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from typing import TextIO

CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
CLEAR = "\x1b[2J\x1b[H"
"""Two commands of a terminal: clear everything, go to the first line."""
REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that show text in another order than it has."""


def _shown(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_ESCAPES = {code: _shown(code) for code in (*CONTROLS, *REORDERING)}
_ESCAPES_OF_TEXT = {code: shown for code, shown in _ESCAPES.items() if chr(code) not in "\n\t"}


def one_line(text: str) -> str:
    """The text without any control character: for a cell of a table."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def harmless(text: str) -> str:
    """The text with all control characters but newline and tab as escapes."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_ESCAPES_OF_TEXT)


def prepare_streams() -> None:
    """A stream that was closed before the start (`pie list >&-`) leads nowhere from now on. Characters that the
    encoding of stdout lacks become escapes; text that is no UTF-8 stays an error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def write(text: str, stream: TextIO | None = None) -> None:
    """Writes to a stream (default: stdout) and flushes it; harmlessly if that is a terminal."""
    stream = stream or sys.stdout
    stream.write(harmless(text) if stream.isatty() else text)
    stream.flush()


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Writes a text and a newline."""
    write(text + "\n", stream)


def clear_terminal() -> None:
    """Clears the terminal at stdout, and goes to its first line."""
    sys.stdout.write(CLEAR)


def this_command() -> str:
    """What the user types for `pie`: its path, where the environment that has it is not active."""
    return "pie" if shutil.which("pie") else sys.argv[0]


def log_to_stderr(level: int, formatter: logging.Formatter | None = None) -> None:
    """What is logged in this process goes to stderr from now on, unless it goes somewhere already. `formatter`: None
    makes lines for people."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter or HarmlessFormatter("pie: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class HarmlessFormatter(logging.Formatter):
    """For the server's log, which people read with all kinds of tools."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))
