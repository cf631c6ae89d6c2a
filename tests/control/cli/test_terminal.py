"""What guests write reaches a terminal without its escapes, and a pipe as it is."""

from __future__ import annotations

import ast
import importlib
import io
import logging
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.cli import interrupts
from pie_control.cli.commands import run as run_command
from pie_control.cli.commands import serve
from pie_control.cli.main import main
from pie_control.cli.terminal import HarmlessFormatter, harmless, one_line, prepare_streams, write
from pie_control.client import SyncClient
from pie_control.durable.database import default_state_dir
from pie_control.errors import UnknownName
from pie_control.inferlets.events import Ended, Message
from pie_control.processes.status_line import CLEAR, StatusLine
from pie_control.registry.entry import InferletInfo
from tests.helpers.fake_inferlets import RUDE, FakeInferlet
from tests.helpers.fake_server_api import FakeServerApi, serving_thread
from tests.helpers.tree import ROOT

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


def test_results_are_shown_harmlessly(out: Callable[[], str]) -> None:
    printer = run_command.Printer()
    printer.show(Ended("finished", RUDE, None, inferlet="i1"))
    assert (out(), printer.code) == (SHOWN + "\n", 0)


HOW_RESULTS_SHOW = [
    # messages, result, stderr is a terminal, --result: stdout, stderr
    ([], "3", True, False, "3\n", ""),
    (["a", "b"], '{"n": 3}', True, False, "ab\n", 'result: {"n": 3}\n'),
    (["a\n"], "3", False, False, "a\n", ""),
    (["a"], None, True, False, "a\n", ""),
    (["a"], "3", False, True, "3\n", "a\n"),
    ([], None, False, True, "", ""),
]


@pytest.mark.parametrize(("messages", "result", "terminal", "alone", "stdout", "stderr"), HOW_RESULTS_SHOW)
def test_results_are_shown_apart_from_messages(
    messages: list[str],
    result: str | None,
    terminal: bool,
    alone: bool,
    stdout: str,
    stderr: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = io.StringIO(), Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    printer = run_command.Printer(alone)
    for text in messages:
        printer.show(Message(text, inferlet="i1"))
    printer.show(Ended("finished", result, None, inferlet="i1"))
    assert [stream.getvalue() for stream in streams] == [stdout, stderr]


def test_outages_are_shown_harmlessly(url: str, out: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They tell the last words of a process, which may have repeated what a guest said."""
    monkeypatch.setattr(SyncClient, "statistics", lambda _: {"outages": [f"a host does not serve: {RUDE}"]})
    assert main(["list", "--server", url]) == 0
    shown = out()
    assert f"a host does not serve: {SHOWN}\n" in shown
    assert "\x1b" not in shown


def test_mistakes_that_are_found_are_shown_harmlessly(tmp_path: Path, out: Callable[[], str]) -> None:
    program = tmp_path / "ru\x1bde.py"
    program.write_text("from inferlet_sdk import Context\ndef main(args):\n    Context().fil('\x1b]0;x\x07')\n")
    assert main(["check", str(program)]) == 1
    shown = out()
    assert "ru\\x1bde.py" in shown
    assert "\\x1b]0;x\\x07" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("command", [serve, run_command])
def test_a_server_in_any_command_logs_harmlessly(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pie run` may start one, too."""
    stderr, root = Terminal(), logging.getLogger()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(interrupts, "run_until_signal", lambda work: work.close() or 0)
    assert main([command.NAME, *(["story.py"] if command is run_command else [])]) == 0
    logging.getLogger("pie.host").warning("application host 0: %s", RUDE)
    try:
        raise ValueError(RUDE)
    except ValueError:
        logging.getLogger("pie_control.inferlets.manager").warning("inferlet %s", RUDE, exc_info=True)
    logged = stderr.getvalue()
    assert logged.count(SHOWN) == 3
    assert "\x1b" not in logged


def test_progress_of_another_process_is_shown_harmlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    StatusLine(logging.getLogger("pie.worker")).show(RUDE)
    assert stderr.getvalue() == f"{CLEAR}a?]0;owned?b?2Jc?d?e?f"


def test_nothing_in_the_command_line_prints_in_another_way() -> None:
    """What a guest may have said is everywhere; so all output goes through one module."""
    others = [path for path in (ROOT / "pie_control" / "cli").rglob("*.py") if path.name != "terminal.py"]
    calls = [
        f"{path}:{node.lineno}"
        for path in others
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert len(others) > 20
    assert calls == []


def test_the_servers_log_is_harmless() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "of %s", (RUDE,), None)
    assert HarmlessFormatter("pie: %(message)s").format(record) == f"pie: of {SHOWN}"


# ---- streams and folders that are missing ----------------------------------------------------------------------------


def pie(script: str, tmp_path: Path) -> tuple[int, str]:
    """The exit code of a shell script, in which $PIE is the command, and what it says on stderr."""
    environment = {**os.environ, "PIE": f"{sys.executable} -m pie_control.cli", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_streams_that_are_closed_lead_nowhere(tmp_path: Path) -> None:
    assert pie("$PIE completion fish <&- >&-", tmp_path) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_output_that_the_disk_does_not_take_is_told(tmp_path: Path) -> None:
    code, said = pie("$PIE completion fish > /dev/full", tmp_path)
    assert code == 2
    assert re.fullmatch(r"pie: the system refuses this: .*No space left on device\n", said)


def test_a_folder_that_was_removed_is_told(tmp_path: Path) -> None:
    code, said = pie("mkdir gone; cd gone; rmdir ../gone; $PIE list", tmp_path)
    assert code == 2
    assert said.startswith("pie: the folder that you are in was removed")


def test_a_package_that_is_not_installed_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "numpy.of_a_server"
    monkeypatch.setattr("pie_control.cli.main.parse", lambda _: importlib.import_module(module))
    assert main(["serve"]) == 2
    assert f"needs the package {module}, which is not installed here" in capsys.readouterr().err
    module = "pie_control.gone"
    with pytest.raises(ModuleNotFoundError):  # a defect, whose place matters
        main(["serve"])


def test_an_unknown_home_folder_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["serve", "--model", "~no_such_user/model"]) == 2
    assert "home folder" in capsys.readouterr().err
    monkeypatch.setattr(Path, "expanduser", lambda self: pytest.fail(f"{self} is not needed"))
    default_state_dir()


def test_characters_that_a_terminal_lacks_are_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), "ascii"))
    prepare_streams()
    write("Gr\u00fc\u00dfe")
    assert written.getvalue() == rb"Gr\xfc\xdfe"
