"""Programs outside of the sandbox."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inferlet_sdk
from inferlet_sdk import bindings
from pie_control.authoring.native.program import DataFiles, source_of
from pie_control.authoring.native.server import NativeServer, native_server
from pie_control.authoring.testing import fake_client
from pie_control.cli.interrupts import interrupted_by_sigterm
from pie_control.cli.main import main
from pie_control.client.programs.passing import passed
from pie_control.config import build_config
from pie_control.errors import BadRequest
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started

PROGRAM = """
import asyncio
from inferlet_sdk import Context, Sampler, gather, inferlet, traits

@inferlet
async def main(args, words: int = 12):
    ctx = Context().fill("It was a ")
    text = await args.stream(ctx.generate(max_tokens=words))
    forks = [ctx.fork().fill(str(number)) for number in range(3)]
    texts = await gather(*(fork.generate_until(max_tokens=6, sampler=Sampler(0.9, seed=5)) for fork in forks))
    pieces = [piece async for piece in forks[0].generate(max_tokens=5, stop="zz", run_ahead=False)]
    dist = await ctx.next_dist(k=8)
    scores = await ctx.score(" bee")
    names = [trait.name for trait in traits.available_traits(args.model)]
    await asyncio.sleep(0.001)
    args.log("half way", "warning")
    print("printed")
    try:
        Context("nothing")
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    return [text, texts, pieces, list(dist.tokens), list(dist.probabilities), scores, list(ctx.tokens), refused, names]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NativeServer]:
    with native_server(build_config({}).resolved(), fake_client) as server:
        yield server


def written(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(server: NativeServer, path: Path, *arguments: str, **kwargs: Any) -> tuple[Ended, list[Event]]:
    events: list[Event] = []
    words, environment = passed(arguments, kwargs, None)
    return server.run(source_of(path), words, environment, events.append), events


def test_a_program_gets_the_same_as_in_the_sandbox(server: NativeServer, tmp_path: Path, guest_cache: Path) -> None:
    native, events = run(server, written(tmp_path, PROGRAM), "--words=9")

    async def in_the_sandbox() -> tuple[Ended, list[str], list[str]]:
        async with started(guest_cache, InProcessClient(FakeModel("demo"))) as api:
            _, heard = await launch(api, PROGRAM, {"words": 9})
            return await heard.ended, heard.messages, heard.lines

    ended, messages, lines = asyncio.run(in_the_sandbox())
    assert native.status == ended.status == "finished", native.error
    assert native.result == ended.result
    assert "".join(event.text for event in events if isinstance(event, Message)) == "".join(messages)
    assert [event.text for event in events if isinstance(event, LogLine)] == [lines[0]] == ["warning: half way"]


def test_print_and_input_are_those_of_the_terminal(
    server: NativeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Ada\n"))
    ended, _ = run(server, written(tmp_path, "def main(args):\n    print('Hello', input())\n"))
    assert ended.status == "finished", ended.error
    assert capsys.readouterr().out == "Hello Ada\n"


def test_a_debugger_stops_at_a_breakpoint(
    server: NativeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def stop() -> None:
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_filename, frame.f_locals["half"]))

    monkeypatch.setattr(sys, "breakpointhook", stop)
    path = written(tmp_path, "async def main(args, n: int):\n    half = n // 2\n    breakpoint()\n    return half\n")
    ended, _ = run(server, path, "8")
    assert (ended.result, seen) == ("4", [(str(path), 4)])


def test_everything_is_as_before_afterwards(server: NativeServer, tmp_path: Path) -> None:
    before = sys.modules["__main__"], list(sys.path), bindings.core, asyncio.new_event_loop
    written(tmp_path, "WORD = 'first'\n", "story/helper_of_story.py")
    program = written(
        tmp_path, "import helper_of_story\ndef main(args):\n    return helper_of_story.WORD\n", "story/main.py"
    )
    assert run(server, program.parent)[0].result == '"first"'
    written(tmp_path, "WORD = 'second, of another length'\n", "story/helper_of_story.py")
    assert run(server, program.parent)[0].result == '"second, of another length"'
    assert (sys.modules["__main__"], list(sys.path), bindings.core, asyncio.new_event_loop) == before
    assert inferlet_sdk is sys.modules["inferlet_sdk"]


def test_a_folder_has_its_data_files(server: NativeServer, tmp_path: Path) -> None:
    written(tmp_path, "one", "app/prompts/first.txt")
    text = "from inferlet_sdk import program_files\n"
    text += "def main(args):\n    return program_files().joinpath('prompts/first.txt').read_text()\n"
    written(tmp_path, text, "app/main.py")
    ended, _ = run(server, tmp_path / "app")
    assert ended.result == '"one"'


def test_data_files_are_those_of_an_upload(tmp_path: Path) -> None:
    for name in (".git/config", "venv/big.bin", "words.txt"):
        written(tmp_path, "one", name)
    assert DataFiles(tmp_path).files == {"words.txt": b"one"}
    assert DataFiles(None).files == {}
    file = written(tmp_path, "def main(args): ...")
    main = sys.modules["__main__"]
    try:
        source_of(file).load()
        assert vars(sys.modules["__main__"])["__loader__"].files == {}
    finally:
        sys.modules["__main__"] = main


def test_errors_are_those_of_the_sandbox(server: NativeServer, tmp_path: Path) -> None:
    path = written(tmp_path, "async def main(args, n: int):\n    return 1 // n\n")
    ended, _ = run(server, path, "0")
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.endswith("ZeroDivisionError: integer division or modulo by zero")
    assert f'File "{path}", line 2, in main' in ended.error
    ended, _ = run(server, path)
    assert ended.error == "missing: n\nusage: program n=int"
    ended, _ = run(server, written(tmp_path, "x = 1\n"))
    assert ended.error is not None
    assert "has no entry" in ended.error


def test_lists_that_are_too_long_are_refused_as_in_the_sandbox(server: NativeServer, tmp_path: Path) -> None:
    text = "from inferlet_sdk import Context, traits\nasync def main(args):\n    ctx = Context()\n"
    text += "    traits.embed_txt(ctx, [5] * 20_000, list(range(20_000)), traits.alloc_emb(ctx, 1))\n"
    ended, _ = run(server, written(tmp_path, text))
    assert "20000 items; one call takes 16384" in (ended.error or "")


def test_mail_waits_for_room(server: NativeServer, tmp_path: Path) -> None:
    text = "async def main(args):\n    return [len(await args.receive()) for _ in range(5)]\n"
    sizes = [3 << 20, 3 << 20, 3 << 20, 1, 2]

    def began(inferlet: str) -> None:
        for size in sizes:
            server.send(inferlet, "x" * size)

    ended = server.run(source_of(written(tmp_path, text)), began=began)
    assert (ended.result, ended.error) == (str(sizes), None)
    ended = server.run(source_of(written(tmp_path, text)), began=lambda one: server.send(one, "x" * (9 << 20)))
    assert (ended.status, "send it in parts" in (ended.error or "")) == ("terminated", True)


def test_an_interrupt_ends_the_program_and_the_server_goes_on(server: NativeServer, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "from inferlet_sdk import Context\nasync def main(args):\n    Context()\n    raise KeyboardInterrupt\n",
    )
    with pytest.raises(KeyboardInterrupt):
        run(server, path)
    ended, _ = run(server, written(tmp_path, "def main(args):\n    return 3\n"))
    assert ended.result == "3"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_program_that_waits(server: NativeServer, tmp_path: Path, number: signal.Signals) -> None:
    async def waits(inferlet: str) -> None:
        while (await vars(server)["_api"].look_at(inferlet)).waits_for is None:
            await asyncio.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def began(inferlet: str) -> None:
        asyncio.run_coroutine_threadsafe(waits(inferlet), vars(server)["_loop"])

    path = written(tmp_path, "async def main(args):\n    await args.receive()\n")
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        server.run(source_of(path), began=began)

    async def end() -> str:
        async with asyncio.timeout(HANG_SECONDS):
            while (status := vars(server)["_api"].inferlets()[-1].status) == "running":
                await asyncio.sleep(0.01)
        return str(status)

    assert server.call(end()) == "failed"


def test_what_is_held_is_given_back(server: NativeServer, tmp_path: Path) -> None:
    text = "from inferlet_sdk import Context, traits\nkept = []\nasync def main(args):\n"
    text += (
        "    ctx = Context().fill('x' * 300)\n    await ctx.flush()\n    kept.append(ctx)\n    return len(ctx.pages)\n"
    )
    path = written(tmp_path, text)

    async def pages_in_use() -> int:
        ((replica,),) = vars(server)["_api"].statistics().models.values()
        used: int = replica.scheduler.pages.used
        return used

    in_use = []
    for _ in range(3):
        assert int(run(server, path)[0].result or 0) > 10
        in_use.append(server.call(pages_in_use()))
    assert in_use[0] == in_use[1] == in_use[2] < 40  # the prompt may be kept, for whoever has the same


def test_there_are_no_children(server: NativeServer, tmp_path: Path) -> None:
    text = (
        "from inferlet_sdk import launch\nasync def main(args):\n    child = await launch()\n    await child.result()\n"
    )
    ended, _ = run(server, written(tmp_path, text))
    assert "can launch no others: run it in the sandbox" in (ended.error or "")


@pytest.mark.parametrize("name", ["program.wasm", "folder", "program.zip"])
def test_what_cannot_run_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.touch()
    with pytest.raises(BadRequest, match=r"no program: it has no main\.py|give a Python file, or a folder"):
        source_of(path)


def test_the_command_says_that_there_is_no_sandbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_control.runtime.start_worker", lambda config, model, _: fake_client(config, model))
    path = written(
        tmp_path, "async def main(args, word):\n    args.log('logged')\n    await args.send(word)\n    return 1\n"
    )
    assert main(["run", "--native", str(path), "hello"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "hello\n"
    first, second = printed.err.splitlines()
    assert "outside of the sandbox" in first
    assert second == "info: logged"
    assert main(["run", "--native", str(written(tmp_path, "def main(args):\n    1 / 0\n"))]) == 1
    assert "pie: the inferlet failed: Traceback" in capsys.readouterr().err


def test_a_server_elsewhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--native", "--server", "http://127.0.0.1:1", "hello"]) == 2
    assert "in this process" in capsys.readouterr().err
