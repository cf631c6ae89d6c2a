"""What guests write reaches a terminal without its escapes, and a pipe as it is."""

from __future__ import annotations

import io
import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.cli.main import main
from pie_control.cli.terminal import HarmlessFormatter, harmless, one_line, write
from pie_control.errors import UnknownName
from pie_control.registry.entry import InferletInfo
from tests.helpers.fake_server_api import RUDE, FakeInferlet, FakeServerApi, serving_thread

SHOWN = r"a\x1b]0;owned\x07b\x9b2Jc\x0dd\u202ee" + "\tf"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_thread() as url:
        yield url


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was written to a terminal so far: to stdout, then to stderr."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    return lambda: "".join(capsys.readouterr())


@given(st.text())
def test_no_text_has_anything_that_a_terminal_obeys(text: str) -> None:
    for shown, kept in ((harmless(text), "\n\t"), (one_line(text), "")):
        assert [char for char in shown if unicodedata.category(char) == "Cc" and char not in kept] == []
        assert harmless(shown) == shown
    if text.isprintable():
        assert harmless(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("Größe 世界 🎉\n\tx", "Größe 世界 🎉\n\tx"), ("a\r\nb", "a\nb"), ("a\rb", "a\\x0db"), (RUDE, SHOWN)],
)
def test_text_stays_readable(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_a_pipe_gets_the_text_as_it_is() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    write(RUDE, pipe)
    write(RUDE, terminal)
    assert (pipe.getvalue(), terminal.getvalue()) == (RUDE, SHOWN)


def test_run_shows_messages_log_lines_and_errors_harmlessly(url: str, out: Callable[[], str]) -> None:
    assert main(["run", "--server", url, "rude"]) == 1
    shown = out()
    assert shown.count(SHOWN) == 3
    assert "\x1b" not in shown


def test_run_pipes_messages_as_they_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server", url, "rude"]) == 1
    printed = capsys.readouterr()
    assert printed.out == RUDE + "\n"
    assert printed.err.count(RUDE) == 2


def test_logs_are_shown_harmlessly(url: str, out: Callable[[], str]) -> None:
    main(["launch", "--server", url, "rude"])
    assert main(["logs", "-f", "--server", url, out().strip()]) == 0
    assert out() == SHOWN + "\n"


def test_names_in_tables_are_shown_in_one_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = FakeInferlet.info

    def rude(inferlet: FakeInferlet) -> InferletInfo:
        return replace(info(inferlet), program_name=RUDE + "\nx")

    monkeypatch.setattr(FakeInferlet, "info", rude)
    main(["launch", "--server", url, "hello"])
    assert main(["list", "--server", url]) == 0
    assert f"  {SHOWN}".replace("\t", "\\x09") + "\\x0ax  " in capsys.readouterr().out


def test_errors_are_shown_harmlessly(url: str, out: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(api: FakeServerApi) -> None:
        raise UnknownName(RUDE)

    monkeypatch.setattr(FakeServerApi, "models", refuse)
    assert main(["models", "--server", url]) == 2
    assert out() == f"pie: {SHOWN}\n"


def test_the_servers_log_is_harmless() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "of %s", (RUDE,), None)
    assert HarmlessFormatter("pie: %(message)s").format(record) == f"pie: of {SHOWN}"
