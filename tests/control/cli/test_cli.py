"""The command line against a fake server, in this process where it can be."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import msgspec
import pytest

from pie_control import runtime
from pie_control.cli import interrupts, patience, server_options, stdin
from pie_control.cli.commands import all_commands, run
from pie_control.cli.commands.serve import open_server
from pie_control.cli.commands.watching import chat
from pie_control.cli.main import main
from pie_control.cli.programs import EXAMPLES, find_program
from pie_control.client import Client, SyncClient
from pie_control.config import ModelPath, ServerConfig, build_config, settings
from pie_control.errors import ConfigError, UnknownName
from pie_control.inferlets.events import LogLine
from pie_control.testing.fake_model import FakeModel
from tests.helpers.fake_server_api import FakeServerApi, serving_thread
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tree import ROOT


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_thread() as url:
        yield url


def pie(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pie_control.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class OwnServer(FakeServerApi):
    """Stands for the real server of an own server."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__()
        self.config = config

    async def start(self) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A model folder; commands that start an own server get a fake one."""
    monkeypatch.setattr("pie_control.runtime.build_server", OwnServer)
    monkeypatch.setattr(server_options, "is_listening", lambda: False)
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


# ---- usage -----------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, pie_control.cli.main as cli\ntry: cli.main(['--help'])\nfinally: print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "run one inferlet" in out
    heavy = {"fastapi", "httpx", "msgspec", "numpy", "torch", "uvicorn", "wasmtime", "websockets", "zmq"}
    assert heavy & set(out.splitlines()[-1].split()) == set()


def test_links_that_lead_in_a_circle_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    assert main(["serve", "--model", str(loop)]) == 2
    assert "loop: a folder with config.json" in capsys.readouterr().err


def test_ctrl_c_while_the_commands_load_prints_no_traceback() -> None:
    code = """
import importlib.abc, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "pie_control.cli.commands":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from pie_control.cli.main import main
sys.exit(main(["list"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_only_what_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "launch"):
        with pytest.raises(SystemExit):
            main([command])
        assert "required: FILE|FOLDER|NAME\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command.NAME for command in all_commands()])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"examples:\n  pie {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`pie demo` shows what this is about"),
        (["list", "--server", "http://127.0.0.1:1"], "pie serve"),
        (["run", "--server", "http://127.0.0.1:1", "--model", "x", "--model", "y", "hello"], "leave it out"),
        (["run", "--server", "http://127.0.0.1:1", "--max-pages", "5", "hello"], "pie: --max-pages is for a server"),
        (["run", "--native", "x" * 300], "is not a file, a program of the server or an example"),
        (["serve", "--model", "/nowhere"], "no model at"),
        (["serve", "--model", "/" + "x" * 300], "x: File name too long"),
        (["serve", "--adapter", "a=/" + "x" * 300], "pie: adapter a: no folder /x"),
        (["serve", "--adapter-dir", "/" + "x" * 300], "x: make it, or give another one"),
        (["serve", "--page-size", "many"], "--page-size must be a whole number"),
        (["serve", "--policy", "lazy"], "must be one of adaptive, eager"),
        (["serve", "--worker", "tcp://10.0.0.2:8012"], "so a worker there needs a secret"),
        (["serve", "--worker", "tcp://10.0.0.2"], "the address of a worker is tcp://HOST:PORT"),
        (["serve", "--worker", "tcp://127.0.0.1:1", "--secret-file", "/nowhere"], "cannot read the secret in /nowhere"),
        (["serve", "--adapter-dir", "/nowhere"], "pie: adapter-dir: no folder /nowhere: make it"),
        (["worker", "--listen", "tcp://10.0.0.2:8012"], "pie: tcp://10.0.0.2:8012 can be reached from other machines"),
        (["adapters", "load", "--server", "http://127.0.0.1:1", "x=y"], "no Pie server answers at http://127.0.0.1:1"),
        (["adapters", "--server", "http://127.0.0.1:1", "drop", "x"], "no Pie server answers at http://127.0.0.1:1"),
        (["upload", "--server", "http://127.0.0.1:1", "/nowhere"], "there is no file or folder /nowhere"),
        (["chat", "--server", "127.0.0.1:1", "hi"], "the address of a server begins with http://"),
        (["worker"], "say where servers find the worker: --listen tcp://ADDRESS:PORT"),
        (["worker", "--listen", "tcp://127.0.0.1:1", "--worker", "tcp://127.0.0.1:2"], "a worker has no workers"),
        (["worker", "--listen", "tcp://127.0.0.1:1", "--model", "demo", "--secret-file", "/nowhere"], "/nowhere"),
        (["worker", "--listen", "tcp://127.0.0.1:1", "--model", "/nowhere"], "no model at /nowhere"),
    ],
)
def test_wrong_use_is_told_with_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert re.fullmatch(r"pie \d\S*\n", capsys.readouterr().out)


def test_help_of_run_is_short_and_help_all_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["run", option])
        texts.append(set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)))
    short, whole = texts
    assert len(short) <= 10
    assert {"--model", "--help-all"} < short < whole
    assert {f"--{each.name.replace('_', '-')}" for each in settings()} - whole == {
        f"--{name.replace('_', '-')}" for name in run.OWN_SERVER_SETTINGS
    }


def test_help_names_the_unit_of_days(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert {"--state-days DAYS", "--response-days DAYS"} <= set(re.findall(r"--\w+-days \w+", capsys.readouterr().out))


def test_unknown_options_end_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["list", "--colour"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit, match="after `--`"):
        main(["list", "--", "x"])


@pytest.mark.parametrize("command", ["run", "launch"])
def test_an_option_of_the_inferlet_in_front_of_the_dashes_is_told(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (["--max-page", "3"], ["--ratio", "3"]):  # the first one begins like one of ours
        with pytest.raises(SystemExit) as caught:
            main([command, "story.py", "word", *given])
        assert caught.value.code == 2
        assert f"unrecognized arguments: {given[0]}" in (told := capsys.readouterr().err)
        assert f"options of the inferlet follow `--`: `pie {command} story.py -- {given[0]}" in told


def test_an_unknown_option_is_told_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["new", "story", "--language", "rust"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("usage: pie new [-h] [--lang {python,rust}] NAME")
    assert told.endswith(
        "pie new: error: unrecognized arguments: --language rust; do you mean --lang? see `pie new --help`\n"
    )
    for words, meant in (
        (["serve", "org/name"], "org/name; is it the model? `--model org/name`; see"),
        (["serve", "--modle=demo"], "--modle=demo; do you mean --model? see"),
        (["list", "x"], "x; see"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        told = capsys.readouterr().err
        assert f"unrecognized arguments: {meant} `pie {words[0]} --help`" in told
        assert ("usage: " in told) == (words[0] == "list"), "that of a server has dozens of lines"


# ---- against a server ------------------------------------------------------------------------------------------------


def test_run_streams_messages_to_stdout_and_log_lines_to_stderr(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server", url, "hello", "A", "--", "--b"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Hello, A! Hello, --b! \n"
    note, log = printed.err.splitlines()
    assert "not the example: `pie delete hello` brings that back" in note
    assert log == "greeting"


def test_run_prints_the_result_of_a_silent_inferlet(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "silent.py"
    program.write_text("x = 1\n")
    monkeypatch.setattr(FakeServerApi, "launch", _with_kwargs(FakeServerApi.launch))
    assert main(["run", "--server", url, str(program)]) == 0
    assert capsys.readouterr().out == '{"a": 1}\n'


def _with_kwargs(launch: Any) -> Any:
    async def launch_with(self: FakeServerApi, *arguments: Any, **options: Any) -> Any:
        return await launch(self, *arguments, **{**options, "environment": {"kwargs": '{"a": 1}'}})

    return launch_with


def test_an_address_may_have_what_clients_of_openai_want(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--server", f"{url}/v1/"]) == 0
    assert capsys.readouterr().out.startswith("ID ")


def test_arguments_may_follow_our_options(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello", "A", "--server", url, "B"]) == 0
    assert capsys.readouterr().out == "Hello, A! Hello, B! \n"


@pytest.mark.parametrize("command", ["run", "launch"])
def test_a_model_of_the_server_is_chosen_by_its_name(
    command: str, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    launch = FakeServerApi.launch

    async def noting(self: FakeServerApi, *arguments: Any, **options: Any) -> Any:
        told.append(options["environment"])
        return await launch(self, *arguments, **options)

    monkeypatch.setattr(FakeServerApi, "launch", noting)
    name = FakeServerApi().models()[0].name
    assert main([command, "--server", url, "--model", name, "hello"]) == 0
    assert told == [{"model": name}]
    assert main([command, "--server", url, "--model", "nope", "hello"]) == 2
    assert f"no model 'nope': this server has {name}" in capsys.readouterr().err


def test_run_of_a_failing_inferlet_shows_its_traceback(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server", url, "fail"]) == 1
    printed = capsys.readouterr()
    assert "about to fail\npie: the inferlet failed: Traceback" in printed.err
    assert "ValueError: no good" in printed.err


def test_run_sends_lines_of_stdin(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\nstop")
    with open(tmp_path / "lines", "rb") as file:
        monkeypatch.setattr(stdin, "STDIN", file.fileno())
        assert main(["run", "--server", url, "-i", "echo"]) == 0
        assert capsys.readouterr().out == "onetwo\n"


def test_run_says_once_that_a_message_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Running:
        waits = iter((None, "a time to pass", "a message of its client"))

        async def info(self) -> dict[str, Any]:
            return {"waits_for": next(self.waits)}

    monkeypatch.setattr(run, "WAITS_SECONDS", 0)
    running: Any = Running()
    asyncio.run(run._say_that_it_waits(running))
    assert capsys.readouterr().err == "pie: it waits for a message: with -i, it is sent the lines of stdin\n"


def test_programs_and_delete(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with SyncClient(url) as client:
        digest = client.upload(b"x = 'to be deleted'", "to delete")
    assert main(["programs", "--server", url]) == 0
    listed = re.sub(" {2,}", "  ", capsys.readouterr().out)
    assert re.search(rf"^{digest[:12]}  to delete  python  19  20\d\d-\d\d-\d\d \d\d:\d\d$", listed, re.MULTILINE)
    assert main(["delete", "--server", url, "to delete"]) == 0
    assert main(["programs", "--server", url, "--json"]) == 0
    assert digest not in {each["program"] for each in json.loads(capsys.readouterr().out)}
    assert main(["delete", "--server", url, "to delete"]) == 2
    assert "no program 'to delete'" in capsys.readouterr().err


def test_launch_list_logs_stop(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--server", url, "echo"]) == 0
    id = capsys.readouterr().out.strip()
    assert main(["list", "--server", url]) == 0
    assert any(line.split()[:3] == [id, "running", "echo"] for line in capsys.readouterr().out.splitlines())
    assert main(["launch", "--server", url, "wait"]) == 0
    waits = capsys.readouterr().out.strip()
    assert main(["list", "--server", url]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [waits]]
    assert re.search(r"a message of its client, \d+\.\d s$", line)
    assert main(["stop", "--server", url, id]) == 0
    assert main(["list", "--server", url, "--json"]) == 0
    listed = {info["id"]: info["status"] for info in json.loads(capsys.readouterr().out)}
    assert listed[id] == "terminated"
    assert main(["stop", "--server", url, "i999"]) == 2
    assert "no inferlet 'i999'" in capsys.readouterr().err
    assert main(["stop", "--server", url, "--all"]) == 0
    assert waits in capsys.readouterr().out.split()
    assert main(["list", "--server", url, "--json"]) == 0
    assert "running" not in {info["status"] for info in json.loads(capsys.readouterr().out)}
    assert main(["stop", "--server", url]) == 2
    assert "or all by --all" in capsys.readouterr().err


def test_list_tells_which_workers_do_not_serve(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeServerApi, "statistics", lambda _: {"outages": ["worker 1 of model fake: restarting"]})
    assert main(["list", "--server", url, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "worker 1 of model fake: restarting\n"
    assert isinstance(json.loads(printed.out), list)


def test_logs_are_printed_and_followed_to_the_end(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--server", url, "hello"]) == 0
    id = capsys.readouterr().out.strip()
    for follow in ([], ["-f"]):
        assert main(["logs", "--server", url, *follow, id]) == 0
        assert capsys.readouterr().out == "greeting\n"
    assert main(["logs", "--server", url]) == 0
    assert capsys.readouterr() == ("greeting\n", "")
    assert main(["launch", "--server", url, "wait"]) == 0
    silent = capsys.readouterr().out.strip()
    assert main(["logs", "--server", url, silent]) == 0
    assert f"{silent} has written no log; " in capsys.readouterr().err


def test_a_log_that_is_followed_is_read_on_and_not_anew(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, logs = list[int](), FakeServerApi.logs

    def note(self: FakeServerApi, id: str, after: int = 0, *, of_all: bool = False) -> tuple[LogLine, ...]:
        asked.append(after)
        if after == 0:
            self.inferlet(id).sender.log("log", "first")
        elif after == 1:
            self.inferlet(id).sender.log("log", "more")
            self.terminate(id, "it is enough")
        return logs(self, id, after, of_all=of_all)

    monkeypatch.setattr(FakeServerApi, "logs", note)
    assert main(["launch", "--server", url, "wait"]) == 0
    assert main(["logs", "--server", url, "-f"]) == 0
    assert asked == [0, 1, 2]
    assert capsys.readouterr().out.split()[-2:] == ["first", "more"]


def test_logs_are_printed_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--server", url, "hello"]) == 0
    capsys.readouterr()
    assert main(["logs", "--server", url, "--follow", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"time": ANY, "stream": "log", "text": "greeting"}


def test_logs_tell_where_the_tasks_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--server", url, "wait"]) == 0
    id = capsys.readouterr().out.strip()
    assert main(["logs", "--server", url, "--stack"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(id + r" waits for a message of its client, since \d+\.\d s", first)
    assert second == "  Task-1: main (line 4 of main.py)"
    assert main(["stop", "--server", url, id]) == 0
    assert main(["logs", "--server", url, "--stack", id]) == 0
    assert capsys.readouterr().out == f"{id} has ended (terminated)\n"


def test_models(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIE_SERVER", url)
    assert main(["models"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("fake  LlamaForCausalLM")
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["vocab_size"] == 256


def test_models_that_were_not_made_for_embeddings_are_starred(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = FakeModel("plain").describe()[0]
    made = msgspec.structs.replace(plain, name="made", pooling="last")
    monkeypatch.setattr(FakeServerApi, "models", lambda _: (plain, made))
    assert main(["models", "--server", url]) == 0
    _, first, second, note = capsys.readouterr().out.splitlines()
    assert ("Embedding*" in first, "Embedding*" in second, "Embedding" in second) == (True, False, True)
    assert note.startswith("* not made for embeddings")
    monkeypatch.setattr(FakeServerApi, "models", lambda _: (made,))
    assert main(["models", "--server", url]) == 0
    assert "*" not in capsys.readouterr().out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_run_and_its_inferlet(url: str, number: signal.Signals, code: int) -> None:
    before_it = signal.signal(number, signal.SIG_DFL)  # nohup ignores some, and so would the command
    try:
        _end_by(url, number, code)
    finally:
        signal.signal(number, before_it)


def _end_by(url: str, number: signal.Signals, code: int) -> None:
    with SyncClient(url) as client:
        before = {info["id"] for info in client.inferlets()}
        with pie("run", "--server", url, "echo") as process:
            while not (new := [info for info in client.inferlets() if info["id"] not in before]):
                assert process.poll() is None
                time.sleep(0.01)
            httpx.post(f"{url}/v1/inferlets/{new[0]['id']}/messages", json={"text": "x"}, trust_env=False)
            assert process.stdout is not None
            assert process.stdout.read(1) == "x"  # the command knows it, too
            process.send_signal(number)
            out, err = process.communicate(timeout=HANG_SECONDS)
        assert (process.returncode, out.strip()) == (code, "")
        if number == signal.SIGINT:
            id = re.escape(new[0]["id"])
            assert re.fullmatch(rf"pie: {id} waits for a message .*\ninfo: where its tasks are:\n  Task-1: .*\n", err)
        else:
            assert err == ""
        while client.inferlet(new[0]["id"])["status"] == "running":
            time.sleep(0.01)


def test_attach_reads_what_nobody_has_read_and_leaves_what_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--server", url, "hello"]) == 0
    assert main(["attach", "--server", url]) == 0
    assert capsys.readouterr().out.partition("\n")[2] == "Hello, world! \n"
    with SyncClient(url) as client:
        silent = client.launch(b"x = 1", environment={"kwargs": "null"}, detached=True).id
        assert main(["attach", "--server", url, silent]) == 0
        assert "has finished, and has nothing that was not read before" in capsys.readouterr().err
        id = client.launch("wait", detached=True).id
        with pie("attach", "--server", url, id) as process:
            assert process.stderr is not None
            assert "it waits for a message" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANG_SECONDS)
        assert (process.returncode, out) == (130, "")
        assert err.startswith(f"pie: {id} goes on: `pie attach {id}`")
        assert client.inferlet(id)["status"] == "running"
        client.terminate(id)


def test_nohup_keeps_a_command_from_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert list(interrupts._signals()) == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- without a server ------------------------------------------------------------------------------------------------


def test_run_starts_what_is_missing(
    own_server: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIE_TENANTS", "/of/another/server")
    assert main(["run", "--model", str(own_server), "hello"]) == 0
    assert capsys.readouterr().out == "Hello, world! \n"


def test_the_demo_runs_and_says_what_comes_next(
    own_server: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIE_MODEL", str(own_server))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["env/bin/pie", "demo"])
    assert main(["demo"]) == 1
    assert "next:" not in capsys.readouterr().out  # the fake's program wants arguments
    monkeypatch.setattr(FakeServerApi, "launch", _with_kwargs(FakeServerApi.launch))
    assert main(["demo"]) == 0
    assert capsys.readouterr().out.endswith("\nnext: `env/bin/pie new story`\n")


@pytest.mark.parametrize(
    ("says", "ours"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\nno such page", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"", False),
        (b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error":{"code":"overloaded"}}', True),
    ],
)
def test_another_program_at_the_default_address_is_no_server(
    says: bytes, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(server_options, "DEFAULT_PORT", listener.getsockname()[1])

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        assert server_options.is_listening() == ours


def test_a_server_at_the_default_address_is_found_also_while_it_starts(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_options, "DEFAULT_PORT", int(url.rpartition(":")[2]))
    assert server_options.is_listening()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(server_options, "DEFAULT_PORT", silent.getsockname()[1])
        assert server_options.is_listening()
    assert not server_options.is_listening()


def test_a_server_at_the_default_address_is_used_for_the_models_that_it_has(
    url: str, own_server: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = FakeServerApi().models()[0].name
    options = argparse.Namespace(server=None, token=None)
    assert asyncio.run(server_options.running_server(options, name)) is None, "nothing listens"
    monkeypatch.setattr(server_options, "DEFAULT_SERVER", url)
    monkeypatch.setattr(server_options, "is_listening", lambda: True)
    for model, found in (("", url), (name, url), ("x+program", url), (str(own_server), None)):
        assert asyncio.run(server_options.running_server(options, model)) == found
    assert main(["run", "--model", "nope", "hello"]) == 2
    assert f"no model at {Path.cwd()}/nope: " in (told := capsys.readouterr().err)
    assert told.endswith(f" The server at {url} has {name}\n")
    monkeypatch.setattr(runtime, "build_server", None)
    assert main(["run", "--model", name, "hello", "A"]) == 0
    assert "Hello, A!" in capsys.readouterr().out
    monkeypatch.setattr(runtime, "build_server", OwnServer)
    assert main(["run", "--model", str(own_server), "hello", "B"]) == 0


def test_the_own_server_of_a_chat_is_for_this_machine_and_anybody(
    own_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIE_HOST", "0.0.0.0")
    monkeypatch.setenv("PIE_INSECURE", "1")
    monkeypatch.setenv("PIE_TENANTS", "/nowhere")

    async def address() -> str:
        async with chat._server(None, str(own_server)) as found:
            return found

    assert asyncio.run(address()).startswith("http://127.0.0.1:")


def test_an_own_server_serves_and_closes(own_server: Path) -> None:
    async def test() -> None:
        config = build_config({"model": [own_server], "port": 0}).resolved()
        async with open_server(config) as server, Client(server.url) as client:
            assert await (await client.launch("hello", "A")).result() == 1

    asyncio.run(test())


def test_a_slow_start_is_explained(
    own_server: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.0)
    monkeypatch.setattr(OwnServer, "start", lambda self: asyncio.sleep(0.02))
    assert main(["run", "--model", str(own_server), "hello"]) == 0
    assert "still starting" in caplog.text


# ---- names of programs -----------------------------------------------------------------------------------------------


def known_program(text: bytes, *names: str) -> dict[str, Any]:
    return {"program": hashlib.sha256(text).hexdigest(), "names": names, "uploaded": 1.75e9}


def test_a_name_is_a_file_or_a_known_program_or_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tale, nameless = known_program(b"x = 1", "story", "tale"), known_program(b"x = 2")
    known = [tale, nameless]
    for name in ("story", "tale"):
        assert find_program(name, known) == (tale["program"], "")
    assert find_program(nameless["program"][:8], known) == (nameless["program"][:8], "")
    assert find_program("hello", known) == (EXAMPLES / "hello" / "hello.py", "")
    Path("hello").write_text("x = 1")
    assert find_program("hello", known) == (Path("hello"), "")
    with pytest.raises(UnknownName, match="there is no file missing"):
        find_program("missing.py", known)
    with pytest.raises(UnknownName, match=r"examples are: .*hello"):
        find_program(nameless["program"][:7], known)
    Path("essay").mkdir()
    Path("essay/main.py").touch()
    Path("poem.py").touch()
    for wrong, right in (("helo", "hello"), ("stroy", "story"), ("esay", "essay"), ("poem", "poem.py")):
        with pytest.raises(UnknownName, match=f"'{wrong}' is not a file.*; do you mean {right}\\?$"):
            find_program(wrong, known)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("~nosuch/x.py", "there is no file ~nosuch/x.py"),
        ("helo", "do you mean hello?"),
        ("broken.py", "broken.py:1:8: SyntaxError: "),
    ],
)
def test_a_program_that_is_not_there_or_no_python_starts_no_server(
    program: str, message: str, own_server: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_server)
    Path("broken.py").write_text("x = 1, )")
    monkeypatch.setattr(OwnServer, "start", None)
    assert main(["run", "--model", str(own_server), program]) == 2
    assert message in capsys.readouterr().err


def test_a_stored_program_that_differs_from_what_has_its_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = [known_program(b"x = 1", "story", "hello")]
    Path("story.py").write_text("x = 1")
    assert find_program("story", known).note == ""
    Path("story.py").write_text("x = 2")
    assert re.fullmatch(
        r"story is the program that was uploaded on 2025-06-\d\d \d\d:\d\d; story.py differs from it: "
        "`pie run story.py` runs that, `pie upload story.py` makes it story",
        find_program("story", known).note,
    )
    Path("story.py").unlink()
    Path("story").mkdir()
    Path("story", "main.py").write_text("x = 1")
    assert "; story/ differs from it: `pie run story/`" in find_program("story", known).note
    assert find_program("hello", known).note.endswith("not the example: `pie delete hello` brings that back")
    same = known_program((EXAMPLES / "hello" / "hello.py").read_bytes(), "hello")
    assert find_program("hello", [same]) == (same["program"], "")


def test_run_and_launch_of_a_file_take_no_name(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "echo.py"
    for command in ("run", "launch"):
        file.write_text(f"x = {command!r}")
        assert main([command, "--server", url, str(file)]) == (1 if command == "run" else 0)  # the fake's wants more
    capsys.readouterr()
    assert main(["programs", "--server", url, "--json"]) == 0
    programs = json.loads(capsys.readouterr().out)
    assert [(each["names"], each["file"]) for each in programs if each["file"] == "echo"] == [([], "echo")] * 2
    assert [each["size"] for each in programs if "echo" in each["names"]] == [4]


def test_upload_gives_a_name_and_says_when_it_changes_hands(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "fresh.py"
    file.write_text("x = 1")
    first = hashlib.sha256(b"x = 1").hexdigest()[:12]
    for _ in range(2):
        assert main(["upload", "--server", url, str(file)]) == 0
        assert capsys.readouterr().out == f"fresh: {first}\n"
    file.write_text("x = 2")
    assert main(["upload", "--server", url, str(file)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("fresh: ")
    assert told[1].startswith("fresh was another program until now, uploaded on 20")
    assert told[1].endswith(f"`pie run {first}` still runs that")
    assert main(["upload", "--server", url, "--name", "other", str(file)]) == 0
    assert capsys.readouterr().out.startswith("other: ")


def test_examples_are_where_the_package_is() -> None:
    assert (EXAMPLES / "hello" / "expected_output.txt").is_file()


# ---- documentation ---------------------------------------------------------------------------------------------------


def test_the_documentation_has_every_command_and_setting() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for setting in settings():
        default = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        shown = "auto" if default is None else "off" if default is False else default
        assert f"| `--{setting.name.replace('_', '-')}` | {shown} | {setting.metadata['help']} |" in text
    assert all(f"`pie {command.NAME}" in text for command in all_commands())


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_options_beat_the_environment_and_that_the_defaults() -> None:
    config = build_config({"port": "9", "host": None}, {"PIE_PORT": "8", "PIE_MAX_PAGES": "7", "HOME": "/"})
    assert not config.metrics
    assert build_config({"metrics": True}).metrics
    assert build_config({}, {"PIE_METRICS": "1"}).metrics
    assert (config.port, config.limits.max_pages, config.host) == (9, 7, "127.0.0.1")
    lists = build_config({}, {"PIE_HTTP_ALLOW": "", "PIE_WORKER": " ", "PIE_MODEL": "demo, demo-reasoner,"})
    assert (lists.http_allow, lists.worker, lists.model) == ((), (), ("demo", "demo-reasoner"))


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({}, {"PIE_PROT": "1"}, "PIE_PROT; did you mean PIE_PORT"),
        ({}, {"PIE_PORT": "tcp://10.0.0.1:8011", "PIE_SERVICE_HOST": "10.0.0.1"}, "enableServiceLinks: false"),
        ({"prot": 1}, {}, "'prot'; did you mean port"),
        ({}, {"PIE_PORT": "x"}, "port must be a whole number, not 'x'"),
        ({}, {"PIE_METRICS": "maybe"}, "metrics must be one of true, false, 1, 0, not 'maybe'"),
        ({"cpu_seconds": "nan"}, {}, "cpu_seconds must be at least"),
        ({"run_ahead": 0}, {}, "run_ahead must be at least 1"),
        ({"dtype": "int4"}, {}, "--dtype must be one of auto"),
        ({"pages": "many"}, {}, "--pages must be a whole number or auto, not 'many'"),
        ({"replicas": 0}, {}, "replicas must be at least 1"),
        ({"worker": "gpu"}, {}, "worker must be tcp://HOST:PORT of a `pie worker`, or paced:TIME, .*, not 'gpu'"),
        ({"worker": ["paced:1ms", "paced:2ms"]}, {}, "paced:1ms and paced:2ms cannot be together"),
        ({"worker": ["tcp://h:1", "tcp://h:1"]}, {}, "tcp://h:1 is given twice"),
        ({}, {"PIE_WORKER_SECRET": "short"}, "has 5 characters, and 32 random ones are the least"),
        ({"worker": "paced:15"}, {}, r"worker: a pace is the time of a wave, .*15ms\+20us .*, not '15'"),
        ({"worker": "paced:"}, {}, "worker: a pace is"),
        ({}, {"PIE_WORKER": "paced:1ms+-1us"}, "worker: a pace is"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, object], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(options, environment)


def test_workers_of_other_machines_and_of_this_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    options = {"worker": ["tcp://10.0.0.2:1", "paced:1ms", "tcp://127.0.0.1:2"], "secret_file": str(secret)}
    config = build_config(options).resolved()
    assert (config.remote_workers, config.pace) == (("tcp://10.0.0.2:1", "tcp://127.0.0.1:2"), "1ms")
    assert config.worker_secret == "0123456789abcdef" * 2
    assert config.worker_secret not in repr(config)
    assert config.models == (), "they say which models they serve"
    both = build_config({**options, "model": ["demo"]}).resolved()
    assert [model.name for model in both.models] == ["demo"]
    named = build_config({}, {"PIE_WORKER": "tcp://127.0.0.1:1", "PIE_WORKER_SECRET": "x" * 32}).resolved()
    assert (named.remote_workers, named.worker_secret) == (("tcp://127.0.0.1:1",), "x" * 32)
    adapters = {**options, "adapter": ["style=/there"]}
    with pytest.raises(ConfigError, match="adapter style: say for which model, as in --adapter MODEL/style=/there"):
        build_config(adapters).resolved()
    elsewhere = build_config({**options, "adapter": ["chat/style=/there"]}).resolved().adapters
    assert [(one.model, one.path) for one in elsewhere] == [("chat", "/there")]


def test_resolving_gives_a_new_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    config = build_config({"model": [str(tmp_path)]})
    resolved = config.resolved()
    assert (config.models, config.cache_dir, config.worker_options.threads) == ((), "", None)
    assert resolved.models == (ModelPath(tmp_path.name, str(tmp_path)),)
    assert resolved.cache_dir == str(tmp_path / "pie")
    assert resolved.resolved() == resolved


def test_models_of_the_package_have_names_of_their_own() -> None:
    config = build_config({"model": ["demo", "demo-reasoner"]}).resolved()
    assert [(model.name, Path(model.path).name) for model in config.models] == [
        ("demo", "demo_model"),
        ("demo-reasoner", "demo_reasoner"),
    ]


def test_several_models_have_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = build_config({"model": ["demo", f"chat={tmp_path}", "org/name"]}).resolved()
    assert [model.name for model in config.models] == ["demo", "chat", "name"]
    assert config.models[1].path == str(tmp_path)
    assert config.models[2].path == "org/name"
    from_environment = build_config({}, {"PIE_MODEL": f"demo,chat={tmp_path}"}).resolved()
    assert from_environment.models == config.models[:2]
    with pytest.raises(ConfigError, match="two models are called 'demo': rename one"):
        build_config({"model": ["demo", f"demo={tmp_path}"]}).resolved()
    with pytest.raises(ConfigError, match="no model at /nowhere"):
        build_config({"model": ["chat=/nowhere"]}).resolved()
    (tmp_path / "b+c").mkdir()
    (tmp_path / "b+c" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no request can name a model 'b\+c', .*: --model NAME=MODEL"):
        build_config({"model": [str(tmp_path / "b+c")]}).resolved()


def test_a_worker_is_told_its_model_and_the_options_that_were_given(tmp_path: Path) -> None:
    config = build_config({"model": ["demo"], "cache_dir": tmp_path, "pages": "64", "dtype": "float32"}).resolved()
    (model,) = config.models
    told = config.worker_arguments(model)
    assert told[:6] == ["--model", model.path, "--name", "demo", "--cache-dir", str(tmp_path)]
    assert told[6:] == ["--dtype", "float32", "--pages", "64"]


def test_workers_of_one_machine_take_its_gpus_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models with two workers each, which share each model by two ranks."""
    started: list[list[str]] = []
    monkeypatch.setattr(runtime, "LocalWorker", lambda arguments, _: started.append(arguments))
    given = {"model": ["demo", "chat=demo-reasoner"], "replicas": 2, "tensor_parallel": 2, "cache_dir": tmp_path}
    runtime.build_server(build_config({**given, "state": "none"}).resolved())
    words = [" ".join(each[:4] + each[6:]) for each in started]
    assert [word.partition("--name ")[2] for word in words] == [
        "demo --tensor-parallel 2",
        "demo --first-gpu 2 --tensor-parallel 2",
        "chat --first-gpu 4 --tensor-parallel 2",
        "chat --first-gpu 6 --tensor-parallel 2",
    ]


@pytest.mark.parametrize("command", [("list",), ("chat", "hello")])
def test_a_token_is_shown_without_its_line_break_or_not_at_all(
    command: Sequence[str], url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("schlüssel", "one\ntwo"):
        monkeypatch.setenv("PIE_TOKEN", wrong)
        assert main([*command, "--server", url]) == 2
        assert capsys.readouterr().err.startswith("pie: the token has characters that no token has: ")
    monkeypatch.setenv("PIE_TOKEN", "token\n")
    assert main(["list", "--server", url]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "i\udcff"),
        ("logs", "i\udcff"),
        ("delete", "i\udcff"),
        ("chat", "--model", "i\udcff", "hello"),
        ("upload", str(EXAMPLES / "hello" / "hello.py"), "--name", "i\udcff"),
    ],
)
def test_words_that_are_no_text_are_refused(arguments: Sequence[str], url: str, capsys: Any) -> None:
    assert main([*arguments, "--server", url]) == 2
    assert re.search(r"i\\udcff.* is no text in UTF-8, so it cannot be sent", capsys.readouterr().err)
