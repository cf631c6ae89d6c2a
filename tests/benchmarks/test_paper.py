"""The paper's evaluation: its benchmarks run, in forms too short to mean anything, and what is made of their rows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as cli
from benchmarks.opponents import strategies
from benchmarks.opponents.api_agents import Apis, make_task
from benchmarks.paper import features, opportunity_cost, paper
from benchmarks.paper.drawing import draw_bars
from benchmarks.paper.parts import PARTS
from benchmarks.support.models.random_models import LLAMA_TINY
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import below, until_gone
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT

from .running import run

TINY = ("--models", LLAMA_TINY)


# The first one that runs a benchmark is the shortest: `make test` has no other.
def test_optimizations(tmp_path: Path) -> None:
    options = ["--concurrent", "1", "--agents", "1", "--doc", "16", "--each", "2", "--popular", "1", "--api-ms", "1"]
    rows = run(tmp_path, "optimizations", *TINY, *options, "--library", "3", "--system", "16", "--tokens", "8")
    steps = [(row["guest"], row["agent"].count(" + ")) for row in rows if row["agent"].startswith("program")]
    assert steps == [*(("python", count) for count in (0, 1, 2, 3, 1, 1)), *(("rust", count) for count in range(4))]
    assert [row["guest"] for row in rows[: -len(steps)]] == ["", ""]


def test_agents(tmp_path: Path) -> None:
    options = ["--round-trips", "5", "--few-ios", "1", "--rounds", "1", "--concurrent", "1", "--agents", "1"]
    rows = run(tmp_path, "agents", *TINY, *options, "--tokens", "2", "--observation", "2", "--system", "20")
    agents = [("react", "python", 1), ("react", "rust", 1), ("react", "python", 8), ("react", "rust", 8)]
    found = [(row["agent"], row["guest"], row["ios"]) for row in rows]
    assert found == [*agents, ("codeact", "python", 8), ("swarm", "python", 32)]
    for row in rows:
        assert row["opponent_ms"] > 5 * row["ios"] / (4 if row["agent"] == "swarm" else 1)  # a round trip for each step


def test_features(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--concurrent", "2", "--requests", "2", "--prompt", "40", "--tokens", "4"]
    rows = run(tmp_path, "features", *TINY, *options, "--programs", "", "--round-trip", "1")
    near, far = ([(row["feature"], row["guest"]) for row in rows if row["round_trip_ms"] == trip] for trip in (0, 1))
    in_python = [(name, "python") for name in strategies.NAMES]
    assert near == [*((name, guest) for name in features.PLAIN for guest in ("python", "rust")), *in_python]
    assert far == in_python


def test_an_opponent_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["features", *TINY, "--opponent", "http://127.0.0.1:1"]) == 2
    assert "error: http://127.0.0.1:1 is no server of completions" in capsys.readouterr().err


def test_prompts_of_agents_begin_with_what_is_popular() -> None:
    apis = Apis(library=8, popular=2, each=4, system=5, doc=3, query=2, tokens=1, written=1, result=1)
    one, other = make_task(apis, 1), make_task(apis, 2)
    assert one.numbers[:2] == other.numbers[:2] == [0, 1]
    assert (one.system, one.docs[:2]) == (other.system, other.docs[:2])
    assert one.query != other.query
    dealt = [number for agent in range(3) for number in make_task(apis, agent).numbers[2:]]
    assert sorted(dealt) == [2, 3, 4, 5, 6, 7]


def test_parts_of_the_cost_add_up_to_the_whole() -> None:
    ways = [opportunity_cost.LOOP, opportunity_cost.SERVER, opportunity_cost.RUN]
    *parts, whole = opportunity_cost.rows_of("a model", ways, [[10.0, 11.0, 13.0], [10.0, 11.0, 13.0]])
    assert [row.added_ms for row in parts] == [0, 1, 2]
    assert (whole.added_ms, whole.share, whole.sum) == (3, 0.3, 1)


def test_figures_are_well_formed_and_bars_have_their_lengths() -> None:
    text = draw_bars("a & b", {"one <1>": {"x": 2.0, "y": 1.0}, "two": {"x": 0.5}})
    bars = [float(one.attrib["width"]) for one in ElementTree.fromstring(text) if one.attrib.get("height") == "12"]
    assert bars[0] == 2 * bars[1] == 4 * bars[2]


def write_page(folder: Path, form: str = "full", commit: str = "abc", **rows: list[dict[str, Any]]) -> str:
    """The page of these rows of parts."""
    machine = {"cpu": "a processor", "cores": 2, "load": 0.1}
    (folder / "evaluation").mkdir()
    for name, its in rows.items():
        plan = {"opponent": ""}
        report = {"machine": machine, "gpu": None, "commit": commit, "form": form, "plan": plan, "rows": its}
        (folder / "evaluation" / f"{name}.json").write_text(json.dumps(report))
    paper.write(folder)
    return (folder / "evaluation.md").read_text()


def test_the_page_has_what_was_measured(tmp_path: Path) -> None:
    page = write_page(tmp_path, policies=[{"policy": "eager", "requests_s": 5.0}])
    assert "## Table 5" in page
    assert "| eager | 5.0 |" in page
    assert "the full form" in page
    assert "not committed" not in page
    assert "## Figure 6" not in page
    assert "evaluation/policies.svg" in page
    assert (tmp_path / "evaluation" / "policies.svg").exists()


def test_the_page_says_what_its_rows_are_worth(tmp_path: Path) -> None:
    closed = {"model": "demo", "concurrent": 8, "closed_loop_ms": 1.0, "closed_ms": 1.2, "overhead": 0.158}
    others = [{**closed, "overhead": 0.072}, {**closed, "model": "random-160m", "overhead": 0.02}]
    agent = {"model": "demo", "agent": "react", "ios": 1, "round_trip_ms": 0, "pie_ms": 1.0, "opponent_ms": 1.0}
    page = write_page(tmp_path, "quick", "abc-dirty", closed_tpot=[closed, *others], agents=[agent])
    assert max(map(len, page.splitlines())) <= 160
    page = " ".join(page.split())
    assert page.count("by 7.2 to 15.8 % with demo, 2.0 % with random-160m: ") == 1
    assert page.count("so with demo it is **no opponent**") == 1
    assert page.count("With demo, `closed` is [no opponent](#beside-is-closed-an-opponent).") == 1
    assert page.count("the short form") == page.count("commit abc with changes that were not committed") == 2


def test_what_differs_in_one_column_stands_beside_each_other(tmp_path: Path) -> None:
    agent = {"model": "demo", "agent": "react", "guest": "rust", "ios": 1, "round_trip_ms": 0, "pie_ms": 1.0}
    agents = [{**agent, "latency": 1.5, "rate": 0.5}, {**agent, "latency": 0.7, "rate": 1.2, "round_trip_ms": 30}]
    page = write_page(tmp_path, agents=agents)
    assert "| demo | react | rust | 1 | 1.0 | 1.5 | 0.5 | 1.0 | 0.7 | 1.2 |" in page


def test_the_page_has_a_row_for_each_call_of_the_papers_table(tmp_path: Path) -> None:
    call = {"guest": "python", "call": "get_vocabs", "layer": "control", "inferlets": 1, "us": 25.5}
    rows = [call, {**call, "inferlets": 16, "us": -192.39}, {**call, "call": "clock"}]
    page = write_page(tmp_path, api_calls=rows)
    assert "| call | layer | python, 1 | python, 16 |" in page
    assert "| get_vocabs | control | 25.5 | - |" in page
    assert "clock" not in page


def test_the_page_counts_the_measures_of_techniques(tmp_path: Path) -> None:
    row = {"technique": "one", "reach": "at least 1", "passed": True}
    rows = [row, {**row, "passed": False}, {**row, "reach": ""}]
    page = write_page(tmp_path, techniques=rows)
    assert "1 of 2 measures of 1 techniques" in page
    assert "| one |" not in page


def test_commands_of_parts_are_commands(tmp_path: Path) -> None:
    for quick in (True, False):
        plan = paper.Plan(quick, device="cpu", opponent="http://127.0.0.1:1", models=(LLAMA_TINY,))
        for part in PARTS:
            cli.parse(paper.command(plan, part))


def test_a_part_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = paper.Plan(quick=True, parts=("agents",), models=("none",), folder=tmp_path)
    rows = asyncio.run(paper.run(plan))
    assert "there is no model none" in rows[0].failed
    assert "there is no model none" in capsys.readouterr().err.split("Row(")[0], "as the part says it"
    assert not paper.passed(rows)
    assert (tmp_path / "evaluation.md").exists()


@pytest.mark.parametrize("number", corpus([signal.SIGINT, signal.SIGTERM], kind=lambda _: "a signal"))
def test_an_evaluation_that_is_interrupted_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "paper", "--quick", "--parts", "launch", "--folder", str(tmp_path)]
    (temporary := tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + HANG_SECONDS
        while "serve" not in str(started := below(process.pid)):
            assert process.poll() is None
            assert time.monotonic() < deadline, started
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said
    until_gone(*(one.pid for one in started))  # one that has just begun ends later
    assert not list(temporary.iterdir()), "the part had the time to clean up"
