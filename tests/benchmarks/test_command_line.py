"""One command line for all benchmarks: what it finds, what it refuses, what it makes of plans and rows."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from benchmarks import __main__ as cli
from benchmarks import catalog, report
from benchmarks.control import tpot
from benchmarks.support.server import serving
from pie_control.client import ServerUnavailable
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tree import ROOT

NAMES = sorted(catalog.find())


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_asks_a_question_and_is_documented(name: str) -> None:
    question = catalog.find()[name].question
    assert question.endswith("?")
    assert len(question) <= 105  # one line of --help
    assert f"`{name}`" in (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "compare"])
def test_every_benchmark_has_two_plans(name: str) -> None:
    benchmark = catalog.find()[name].load()
    assert dataclasses.is_dataclass(benchmark.FULL)
    assert type(benchmark.QUICK) is type(benchmark.FULL)
    assert cli.parse([name])[1].plan == benchmark.FULL
    assert cli.parse([name, "--quick"])[1].plan == benchmark.QUICK


def test_help_tells_what_columns_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["idle", "--help"])
    assert "`mb_each`, how" in capsys.readouterr().out


def test_the_benchmark_that_the_documentation_shows_has_the_form_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    shown = types.ModuleType("benchmarks.paper.mine")
    shown.__package__ = "benchmarks.paper"
    monkeypatch.setitem(sys.modules, shown.__name__, shown)
    exec(compile(text, "mine.py", "exec"), vars(shown))
    assert str(shown.__doc__).endswith("?")
    assert type(shown.FULL) is type(shown.QUICK) is shown.Plan
    assert inspect.iscoroutinefunction(shown.run)


def test_folders_stay_small() -> None:
    for folder in (path for path in catalog.FOLDER.rglob("*") if path.is_dir()):
        assert len(list(folder.glob("*.py"))) <= 12, folder


def test_options_replace_what_the_form_says() -> None:
    plan = cli.parse(["tpot", "--quick", "--models", "demo", "--concurrent", "3,5"])[1].plan
    assert plan == dataclasses.replace(tpot.QUICK, models=("demo",), concurrent=(3, 5))


HEAD = """
import argparse, asyncio, sys, types
from benchmarks import __main__ as cli
from benchmarks.support.server import cache_folder

async def last_words(asked, said):
    await asked.wait()
    said.set()
"""
TAIL = """
cli.parse = lambda words: (types.SimpleNamespace(run=run), argparse.Namespace(plan=None))
sys.exit(cli.main([]))
"""
WAITS = """
async def run(plan):
    asked, said = asyncio.Event(), asyncio.Event()
    other = asyncio.create_task(last_words(asked, said))
    with cache_folder() as folder:
        try:
            print(folder, flush=True)
            await asyncio.sleep(600)
        finally:  # as a client closes, whose task reads what the server says
            asked.set()
            await said.wait()
"""
COMPUTES = """
async def run(plan):
    with cache_folder() as folder:
        print(folder, flush=True)
        while True:
            pass
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("body", [WAITS, COMPUTES], ids=["waits", "computes"])
def test_a_benchmark_that_is_interrupted_leaves_no_folder(body: str, number: int) -> None:
    command = [sys.executable, "-c", HEAD + body + TAIL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said
    assert not folder.exists()


LOST = ServerUnavailable("the connection broke")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LOST, "the connection broke"),
        (ExceptionGroup("", [ExceptionGroup("", [LOST]), LOST]), "the connection broke"),
        (None, "no_such_server did not start: "),
    ],
    ids=["lost", "lost by several", "did not start"],
)
def test_what_a_benchmark_cannot_help_is_told_in_a_sentence(
    error: Exception | None, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: object) -> list[object]:
        if error is not None:
            raise error
        async with serving(("no_such_server",)):
            return []

    found = types.SimpleNamespace(run=run), argparse.Namespace(plan=None)
    monkeypatch.setattr(cli, "parse", lambda _: found)
    assert cli.main([]) == 2
    assert f"error: {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: NAME"),
        (["tpt"], "invalid choice: 'tpt' (choose from"),
        (["--quick", "tpot"], "unrecognized arguments: --quick"),
        (["tpot", "--steps", "3"], "benchmarks tpot: error: unrecognized arguments: --steps 3"),
        (["tpot", "--concurrent", "many"], "argument --concurrent: invalid list of int value: 'many'"),
        (["tpot", "--models", "gpt"], "there is no model gpt; there are demo, demo-reasoner, random-160m"),
        (["gpu_check", "--only", "tritn ops"], "there is no path tritn ops; there are triton ops"),
        (["gpu_bench", "--parts", "gpu"], "there is no part gpu; there are worker, system, transformers"),
        (["paper", "--parts", ""], "name a part or more of agents, optimizations"),
        (["techniques", "--techniques", "magic"], "there is no technique magic; there are attention_sink"),
        (["techniques", "--problems", "1"], "1 problems are too few to tell what beam_search gains: take 2 or more"),
        (["compare", "HEAD", "tpt"], "there is no benchmark tpt; there are adapters, agents"),
        (["compare", "HEAD", "compare"], "there is no benchmark compare"),
        (["compare", "HEAD", "tpot", "--steps", "3"], "benchmarks tpot: error: unrecognized arguments: --steps 3"),
        (["compare", "HEAD", "tpot", "--json", "file"], "unrecognized arguments: --json file"),
        (["compare", "no-such-commit", "tpot"], "there is no commit no-such-commit"),
        (["compare", "--rounds", "0", "HEAD", "tpot"], "--rounds is 0: give 1 or more"),
        (["compare", "HEAD", "tpot", "--rounds", "0"], "benchmarks tpot: error: --rounds is 0: give 1 or more"),
        (["tpot", "--rounds", "0"], "--rounds is 0: give 1 or more"),
        (["launch", "--warm", "16,0"], "--warm is 16,0: give 1 or more"),
        (["launch", "--warm-pool", "-1"], "--warm-pool is -1: give 0 or more"),
        (["policies", "--token-us", "-1"], "--token-us is -1: give 0 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_number_may_be_zero_if_that_means_something() -> None:
    assert cli.parse(["launch", "--warm-pool", "0", "--hosts", "-1"])[1].plan.warm_pool == 0
    assert cli.parse(["policies", "--token-us", "0"])[1].plan.token_us == 0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the page of the evaluation and the code that it measures, both committed."""
    (tmp_path / "docs" / "evaluation").mkdir(parents=True)
    for name in ("docs/evaluation.md", "docs/evaluation/agents.json", "code.py"):
        (tmp_path / name).write_text("1")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "Measure")):
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    return tmp_path


def test_what_the_evaluation_writes_is_no_change_of_what_it_measures(root: Path) -> None:
    for name in ("docs/evaluation.md", "docs/evaluation/agents.json"):
        (root / name).write_text("2")
    assert len(report.commit()) == 12
    (root / "code.py").write_text("2")
    assert report.commit().endswith("-dirty")


def test_a_report_names_the_commit_that_ran(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: object) -> list[object]:
        (root / "code.py").write_text("2")
        return []

    file, before = root / "report.json", report.commit()
    options = argparse.Namespace(name="name", form="full", plan=tpot.FULL, json=file)
    monkeypatch.setattr(cli, "parse", lambda _: (types.SimpleNamespace(run=run), options))
    assert cli.main([]) == 0
    assert json.loads(file.read_text())["commit"] == before


def test_the_module_runs() -> None:
    ended = subprocess.run([sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gpu_check" in ended.stdout


def test_rows_become_a_markdown_table() -> None:
    assert report.as_table([{"a": 1, "b": None}]) == "| a | b |\n| --- | --- |\n| 1 |  |"
    assert report.as_table([]) == "(no rows)"
