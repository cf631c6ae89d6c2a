"""`pie new` and `pie test`, in processes of their own where pytest runs in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inferlet_sdk.testing
from pie_control.authoring.new import make
from pie_control.cli.main import main
from pie_control.errors import BadRequest
from tests.helpers.full_disk import full_disk
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT


def pie(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pie_control.cli", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # ours take half a second
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_new_makes_passes_its_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "story"]) == 0
    assert " test story/`" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "story").iterdir()) == ["README.md", "main.py", "test_story.py"]
    assert len((tmp_path / "story" / "README.md").read_text().splitlines()) == 5
    done = pie(tmp_path, "test", "--fake", "story/main.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    "name",
    ["", "two words", "../up", "3d", "class", "match", "json", "pytest", "ünder", "deadbeef", "DEADBEEF", "x" * 65],
)
def test_names_that_cannot_be_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be called"):
        make(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(BadRequest, match=r"cannot make .*story: "):
        make("story", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story").mkdir()
    assert main(["new", "story"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "story").iterdir()) == []


PROGRAM = """
from inferlet_sdk import Context
async def main(args, topic, fail: bool = False):
    name = await args.receive()
    await args.send(f"Hello, {name}. ")
    args.log(topic)
    text = await args.stream(Context().fill(topic).generate(max_tokens=3))
    if fail:
        raise ValueError("as told")
    return {"text": text, "argv": args.argv}
"""
SEES = """
from inferlet_sdk import Blob
async def main(args):
    first = Blob.open("photo")
    message = await args.receive()
    return [first.text(), message, message.blobs["note"].text(), await args.receive()]
"""

TESTS = """
import pytest
from inferlet_sdk import Context
from inferlet_sdk.testing import InferletFailed, run

def test_outcome():
    outcome = run("story.py", "--topic", "bees", inbox=["Ada"])
    assert outcome.result == {"text": outcome.text.removeprefix("Hello, Ada. "), "argv": ["--topic", "bees"]}
    assert outcome.messages[0] == "Hello, Ada. "
    assert outcome.log == ["info: bees"]
    assert outcome.tokens is None or len(outcome.tokens) == 3

async def double(args, number: int, *more, times=2):
    return [number * times, *more, args.environment["mood"]]

def test_a_function():
    assert run(double, 4, "x", [1], times=3, environment={"mood": "good"}).result == [12, "x", [1], "good"]
    with pytest.raises(InferletFailed, match='number: expected an integer, got "many"'):
        run(double, number="many")
    with pytest.raises(Exception, match="number: give text, a number, True, False, None, or lists .* not set"):
        run(double, number={3})
    with pytest.raises(TypeError, match="program: give a file, a folder or a function, not int 5"):
        run(5)

def test_the_same_tokens_again():
    assert run("story.py", topic="x", inbox=["y"]).tokens == run("story.py", topic="x", inbox=["y"]).tokens

def test_failure():
    with pytest.raises(InferletFailed, match="ValueError: as told") as caught:
        run("story.py", topic="bees", fail=True, inbox=["Ada"])
    assert caught.value.outcome.messages[0] == "Hello, Ada. "

@pytest.fixture
def text():
    return "once"

async def test_as_an_inferlet(args, text):
    ctx = Context(args.model).fill(text)
    assert await ctx.generate_until(max_tokens=2)

async def test_nested():
    with pytest.raises(RuntimeError, match="plain `def`"):
        run("story.py", topic="bees")

def test_blobs(tmp_path):
    (tmp_path / "cat").write_bytes(b"meow")
    inbox = [("see", {"note": b"purr"}), "end"]
    assert run("sees.py", inbox=inbox, blobs={"photo": tmp_path / "cat"}).result == ["meow", "see", "purr", "end"]
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    (tmp_path / "story.py").write_text(PROGRAM)
    (tmp_path / "sees.py").write_text(SEES)
    (tmp_path / "test_story.py").write_text(TESTS)
    return tmp_path


def test_tests_see_what_a_program_does(story: Path) -> None:
    done = pie(story, "test", "--fake", "story.py")
    assert "7 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_tests_in_the_sandbox(story: Path, guest_cache: Path) -> None:
    done = pie(story, "test", "--fake", "--sandbox", "--cache-dir", str(guest_cache))
    assert "5 passed, 2 skipped" in done.stdout, done.stdout + done.stderr


def test_without_a_server_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferlet_sdk.testing, "entry_points", lambda group: [])
    with pytest.raises(RuntimeError, match="install Pie"):
        inferlet_sdk.testing.run(ROOT / "examples/inferlets/hello/hello.py")


BREAKS = """
from inferlet_sdk import Context

def half_of(n):
    half = n / 2
    Context().fill(half)

async def main(args, n: int = 14):
    half_of(n)
"""
TESTED = """
from inferlet_sdk.testing import run

def test_it():
    run("breaks.py", n=14)
"""


PDB = ["run", "--native", "--pdb", "breaks.py"], ["test", "--fake", "--pdb"]


@pytest.mark.parametrize("command", corpus(PDB, kind=lambda _: "a command"))
def test_pdb_opens_at_the_line_that_failed(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    (tmp_path / "test_breaks.py").write_text(TESTED)
    done = pie(tmp_path, *command, stdin="p half\nup\np n * 100\nq\nc\n")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "half_of()\n-> Context().fill(half)" in done.stdout
    assert "(Pdb) 7.0" in done.stdout
    assert "1400" in done.stdout
    assert "text: give text, or a list of token ids, not float 7.0" in done.stderr


def test_pdb_cannot_look_into_the_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--pdb", "hello"]) == 2
    assert "add --native" in capsys.readouterr().err
    assert main(["test", "--pdb", "--sandbox", str(tmp_path)]) == 2
    assert "leave --sandbox out" in capsys.readouterr().err


def test_failing_async_tests_show_their_assertion(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("async def test_it(args):\n    assert args.model == 'another'\n")
    done = pie(tmp_path, "test", "--fake", "--", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: assert 'demo' == 'another'" in done.stdout


def test_without_tests_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "story.py"
    program.write_text("")
    assert main(["test", str(program)]) == 2
    assert "has no tests: they would be in" in capsys.readouterr().err
    (tmp_path / "main.py").write_text("")
    assert main(["test", str(tmp_path / "main.py")]) == 2
    here = tmp_path.resolve()
    assert f"in {here / 'test_main.py'} or {here / f'test_{here.name}.py'}" in capsys.readouterr().err
    assert main(["test", str(tmp_path / "gone")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
    assert pie(tmp_path, "test", "--fake").returncode == 2


def test_without_pytest_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["test", str(tmp_path)]) == 2
    assert f"needs pytest: {sys.executable} -m pip install pytest" in capsys.readouterr().err
