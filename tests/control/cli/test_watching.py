"""`pie chat`, `pie top` and what `pie serve` tells: the commands that a user sits in front of."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pie_control.cli.commands import completion
from pie_control.cli.commands.serve import summary
from pie_control.cli.commands.watching import top
from pie_control.cli.commands.watching.chat import _same_terminal
from pie_control.cli.commands.watching.top import Sample
from pie_control.cli.main import main
from tests.helpers.fake_server_api import MODEL, serving_thread
from tests.helpers.guard import HANG_SECONDS


class Talker(ThreadingHTTPServer):
    """A server with OpenAI's routes, which says after each message how many came before it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.left = threading.Event()
        self.fails_after: int | None = None  # requests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Talker

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        most = self.server.fails_after
        fails = most is not None and len(self.server.requests) > most
        match "refuse" if fails else request["messages"][-1]["content"]:
            case "refuse":
                self._answer(400, json.dumps({"error": {"message": "no such model"}}))
            case "too long":
                error = {"message": "3000 tokens", "code": "context_length_exceeded"}
                self._answer(400, json.dumps({"error": error}))
            case "cut":
                end = {"choices": [{"delta": {}, "finish_reason": "length"}]}
                self._answer(200, f"{_event('half')}data: {json.dumps(end)}\n\ndata: [DONE]\n\n")
            case "think":
                thoughts = ({"reasoning_content": text, "reasoning": text} for text in ("It is ", "seven."))
                events = [{"choices": [{"delta": delta}]} for delta in thoughts]
                said = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
                self._answer(200, f"{said}{_event('7')}data: [DONE]\n\n")
            case "separators":
                self._answer(200, _event("one\u2028two\x85three", escaped=False) + "data: [DONE]\r\n\r\n")
            case "break":
                self._answer(200, _event("half"))
            case "fail":
                self._answer(200, _event("half") + 'data: {"error": {"message": "out of pages"}}\n\n')
            case "for ever":
                self._speak_until_nobody_listens()
            case _:
                said = _event("an", "swer ", str(len(request["messages"])))
                self._answer(200, said + "data: [DONE]\n\n")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def _speak_until_nobody_listens(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.server.left.wait(0.01):
                self.wfile.write(_event("word ").encode())
        except OSError:
            self.server.left.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _event(*pieces: str, escaped: bool = True) -> str:
    chunks = ({"choices": [{"delta": {"content": piece}}]} for piece in pieces)
    return "".join(f"data: {json.dumps(chunk, ensure_ascii=escaped)}\n\n" for chunk in chunks)


@pytest.fixture
def talker() -> Iterator[Talker]:
    with Talker() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def chat(
    talker: Talker, lines: Sequence[str], monkeypatch: pytest.MonkeyPatch, *options: str
) -> tuple[int, Sequence[dict[str, Any]]]:
    """Talks; gives the exit code and the requests."""
    left = iter(lines)

    def read(prompt: str = "") -> str:
        assert not prompt  # stdin is no terminal here
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    return main(["chat", "--server", talker.url, *options]), talker.requests


# ---- pie chat --------------------------------------------------------------------------------------------------------


def test_each_line_is_answered_with_all_that_was_said(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (first, second) = chat(talker, ["one", "", "two"], monkeypatch, "--system", "Be brief.", "--max-tokens", "9")
    assert (code, capsys.readouterr().out) == (0, "answer 2\nanswer 4\n")
    system = {"role": "system", "content": "Be brief."}
    one, answered = {"role": "user", "content": "one"}, {"role": "assistant", "content": "answer 2"}
    assert first == {"model": "first", "messages": [system, one], "max_tokens": 9, "stream": True}
    assert second["messages"] == [system, one, answered, {"role": "user", "content": "two"}]


def test_reasoning_is_shown_apart_and_is_no_part_of_what_was_said(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (_, second) = chat(talker, ["think", "one"], monkeypatch)
    assert (code, capsys.readouterr()) == (0, ("7\nanswer 3\n", "(It is seven.)\n"))
    assert second["messages"][1] == {"role": "assistant", "content": "7"}


def test_a_text_may_have_what_others_take_for_the_end_of_a_line(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = chat(talker, ["separators"], monkeypatch)
    assert (code, capsys.readouterr().out) == (0, "one\u2028two\x85three\n")


def test_input_that_is_no_text_is_sent_as_far_as_it_is(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8"))
    assert main(["chat", "--server", talker.url]) == 0
    assert talker.requests[0]["messages"] == [{"role": "user", "content": "caf\ufffd"}]


def test_lines_with_a_slash_change_the_conversation(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["one", "/again", "/model second", "/system Sing.", "two", "/clear", "/again", "three", "/quit", "four"]
    code, requests = chat(talker, lines, monkeypatch, "--temperature", "0")
    assert code == 0
    assert [len(request["messages"]) for request in requests] == [1, 1, 4, 2]
    assert [request["model"] for request in requests] == ["first", "first", "second", "second"]
    assert requests[2]["messages"][0] == {"role": "system", "content": "Sing."}
    assert requests[0]["temperature"] == 0
    assert "/system TEXT" in capsys.readouterr().out  # of the second /again: nothing was said


@pytest.mark.parametrize(
    ("message", "told"),
    [("refuse", "no such model"), ("break", "the answer of http://127.0.0.1:"), ("fail", "out of pages")],
)
def test_an_answer_that_fails_is_told_and_leaves_the_conversation(
    message: str, told: str, talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, requests = chat(talker, [message], monkeypatch)
    assert code == 1
    assert f"pie: {told}" in capsys.readouterr().err
    code, requests = chat(talker, [message, "one"], monkeypatch)
    assert code == 0
    assert requests[-1]["messages"] == [{"role": "user", "content": "one"}]


def test_a_conversation_without_room_says_what_to_do(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["too long", "cut", "too long", "/clear", "one"]
    code, _ = chat(talker, lines, monkeypatch, "--max-tokens", "9")
    alone, cut, longer, *more = capsys.readouterr().err.splitlines()
    assert alone == "pie: 3000 tokens: say it in fewer words"
    assert cut == "pie: the answer was cut off: --max-tokens 9, or the model's context is full (/clear begins anew)"
    assert longer == "pie: 3000 tokens: /clear begins anew"
    assert (code, more) == (0, [])


def test_another_answer_that_fails_leaves_the_first_one(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talker, "fails_after", 1)
    code, requests = chat(talker, ["one", "/again", "two"], monkeypatch)
    assert [len(request["messages"]) for request in requests] == [1, 1, 3]
    assert code == 1


def test_arguments_are_one_message(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(talker, (), monkeypatch, "say", "this", "--model", "mine")[0] == 0
    assert capsys.readouterr().out == "answer 1\n"
    assert (talker.requests[0]["model"], talker.requests[0]["messages"][0]["content"]) == ("mine", "say this")
    assert chat(talker, (), monkeypatch, "refuse")[0] == 1


def test_a_server_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--server", "http://127.0.0.1:9", "hello"]) == 2
    assert "no answer from http://127.0.0.1:9/v1/models" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_the_next_one_ends_the_command(talker: Talker) -> None:
    command = [sys.executable, "-m", "pie_control.cli", "chat", "--server", talker.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("for ever\n")
        assert process.stdout.read(5) == "word "
        process.send_signal(signal.SIGINT)
        assert talker.left.wait(HANG_SECONDS)
        process.stdin.write("one\n")
        shown = ""
        while not shown.endswith("answer 3\n"):
            shown += process.stdout.read(1)
        assert " ... (stopped)\n" in shown
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECONDS) == 130
    assert talker.requests[-1]["messages"][1]["content"].startswith("word ")


# ---- pie top ---------------------------------------------------------------------------------------------------------


def sample(seconds: float, tokens: int, cpu: float, state: str = "serving", key: str = "") -> Sample:
    pages, states = {"used": 10, "total": 40}, {"used": 3, "total": 9}
    counts = {"worker_seconds": seconds / 2, "waves": tokens // 4, "input_tokens": tokens, "commands_waiting": 3}
    worker = {"state": state, "scheduler": {**counts, "pages": pages, "export_pages": 2, "states": states}}
    host = {
        "host": 1,
        "state": "serving",
        "guest_seconds": cpu,
        "inferlets": 2,
        "turns": tokens,
        "memory_bytes": 1 << 20,
    }
    shared = {
        "ended": None,
        "program_name": "p",
        "created": 0.0,
        "pages": 5,
        "embeds": 7,
        "host": 1,
        "key": key,
        "tenant": "a",
    }
    inferlets = [
        {**shared, "id": "i1", "cpu_seconds": 1.0, "key": ""},
        {**shared, "id": "i2", "cpu_seconds": cpu, "waits_for": "\x1bmail", "waits_since": 0.0},
        {**shared, "id": "i3", "cpu_seconds": 0.0, "ended": 1.0},
    ]
    return Sample(seconds, inferlets, {"outages": ["a line"], "models": {"demo": [worker]}, "hosts": [host]})


def cells(lines: Sequence[str], first: str) -> list[str]:
    return next(line.split() for line in "\n".join(lines).split("\n") if line.split()[:1] == [first])


def test_rates_are_those_between_two_samples_and_the_busiest_inferlet_is_first() -> None:
    lines = list(top.picture(sample(10.0, 100, 4.0), sample(12.0, 300, 5.0)))
    assert lines[:2] == ["2 inferlets run", "a line"]
    assert " ".join(cells(lines, "demo")) == "demo serving 50% 25 100 3 10 of 40 (25%) 2 3 of 9"
    assert cells(lines, "1") == ["1", "serving", "50%", "2", "100", "1", "MiB"]
    assert cells(lines, "i2")[4:6] == ["50%", "5"]
    assert cells(lines, "i1")[4:6] == ["0%", "5"]
    text = "\n".join(lines)
    assert text.index("i2 ") < text.index("i1 ")
    assert "\\x1bmail" in text
    assert "i3" not in text
    assert "KEY" not in text


def test_who_sees_several_tenants_is_told_whose_inferlets_are() -> None:
    now = sample(12.0, 300, 5.0)
    assert not any("TENANT" in line for line in top.picture(now, now))
    first, *others = now.inferlets
    lines = list(top.picture(now, Sample(12.0, [{**first, "tenant": "bob"}, *others], now.statistics)))
    assert cells(lines, "ID")[:3] == ["ID", "TENANT", "PROGRAM"]
    assert [cells(lines, one)[1] for one in ("i1", "i2")] == ["bob", "a"]


def test_inferlets_of_keys_are_added_up() -> None:
    lines = list(top.picture(sample(10.0, 100, 4.0, key="k1"), sample(12.0, 300, 5.0, key="k1")))
    assert cells(lines, "KEY") == ["KEY", "INFERLETS", "CPU", "PAGES", "EMBEDS"]
    assert cells(lines, "k1") == ["k1", "1", "50%", "5", "7"]
    assert cells(lines, "(none)") == ["(none)", "1", "0%", "5", "7"]


def test_a_worker_that_began_anew_has_no_negative_rates() -> None:
    lines = list(top.picture(sample(10.0, 1000, 9.0), sample(11.0, 4, 1.0)))
    assert cells(lines, "demo")[3:5] == ["0", "0"]
    assert cells(lines, "1")[2] == "0%"


def test_a_model_that_has_come_since_has_no_rates_yet() -> None:
    before, now = sample(1.0, 1, 1.0), sample(2.0, 100, 2.0)
    lines = list(top.picture(Sample(1.0, (), {**before.statistics, "models": {}}), now))
    assert cells(lines, "demo")[3:5] == ["0", "0"]


def test_who_may_not_look_at_the_server_sees_inferlets() -> None:
    told = {"tenant": "one", "inferlets": {}, "pages": 3}
    before, now = sample(1.0, 1, 1.0), sample(2.0, 1, 2.0)
    lines = list(top.picture(before, Sample(2.0, now.inferlets, told)))
    assert "i2" in lines[-1]
    assert "MODEL" not in "\n".join(lines)


def test_one_picture_where_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_thread() as url:
        assert main(["top", "--seconds", "0.1", "--server", url]) == 0
    assert capsys.readouterr().out.startswith("0 inferlets run\n")


def test_numbers_are_those_of_the_picture() -> None:
    told = top.measured(sample(10.0, 100, 4.0, key="k1"), sample(12.0, 300, 5.0, key="k1"))
    (model,), (host,) = told["models"], told["hosts"]
    assert told["seconds"] == 2.0
    assert told["outages"] == ["a line"]
    assert [model[name] for name in ("model", "worker", "busy", "waves", "tokens")] == ["demo", 1, 0.5, 25.0, 100.0]
    assert [host[name] for name in ("host", "busy", "turns", "memory_bytes")] == [1, 0.5, 100.0, 1 << 20]
    assert [(one["id"], one["busy"], one["cpu_seconds"]) for one in told["inferlets"]] == [
        ("i2", 0.5, 5.0),
        ("i1", 0.0, 1.0),
    ]
    assert {"key": "k1", "inferlets": 1, "busy": 0.5, "pages": 5, "embeds": 7} in told["keys"]
    unseen = top.measured(Sample(1.0, (), {}), Sample(2.0, (), {}))
    assert (unseen["models"], unseen["hosts"], unseen["inferlets"]) == ([], [], [])


def test_one_picture_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_thread() as url:
        assert main(["top", "--json", "--seconds", "0.1", "--server", url]) == 0
    assert json.loads(capsys.readouterr().out)["inferlets"] == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "x"])
def test_pictures_come_no_faster_than_can_be_read(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", f"--seconds={seconds}"])
    assert f"argument --seconds: a number of at least 0.1, not '{seconds}'" in capsys.readouterr().err


# ---- pie serve, pie completion ---------------------------------------------------------------------------------------


def test_a_server_tells_what_it_serves_and_where() -> None:
    first, model, links, dashboard = summary([MODEL], "http://127.0.0.1:9")
    assert first == f"serving {MODEL.name} at http://127.0.0.1:9 (API documentation: http://127.0.0.1:9/docs)"
    assert f"room for {MODEL.num_pages * MODEL.page_size:,} tokens" in model
    assert "http://127.0.0.1:9/v1" in links
    assert dashboard.strip() == "dashboard: http://127.0.0.1:9/; playground: http://127.0.0.1:9/playground"
    *_, others = summary([MODEL], "http://127.0.0.1:9", 9)
    assert "http://ADDRESS:9," in others


def test_bash_completes_commands_options_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "pie.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        ask = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_pie; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", ask, "-", *words], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout.split()

    assert completed("pie", "com") == ["completion"]
    assert completed("pie", "run", "--nat") == ["--native"]
    assert completed("pie", "upload", "pi") == ["pie.bash"]


def test_fish_completes_commands_options_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("complete -c pie ") for line in lines)
    assert any(line.endswith(f"-a 'completion' -d '{completion.HELP}'") for line in lines)
    assert any("__fish_seen_subcommand_from run'" in line and " -l native " in line for line in lines)
    assert any("__fish_seen_subcommand_from keys; and __fish_seen_subcommand_from list'" in line for line in lines)
    assert any("__fish_seen_subcommand_from upload' -F" in line for line in lines)
    assert any("-x -a 'bash zsh tcsh fish'" in line for line in lines)
    if fish := shutil.which("fish"):
        (tmp_path / "pie.fish").write_text("\n".join(lines))
        ask = f"source {tmp_path / 'pie.fish'}; complete -C 'pie com'; complete -C 'pie run --nat'"
        done = subprocess.run(
            [fish, "-c", ask], capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}
        )
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["completion", "--native"]


def test_what_ends_a_chat_is_told_also_where_its_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, side = os.openpty()
    with open(side) as opened:
        monkeypatch.setattr(sys, "stdin", opened)
        with pytest.raises(EOFError), _same_terminal():
            close_and_end(terminal)


def close_and_end(terminal: int) -> None:
    os.close(terminal)
    raise EOFError
