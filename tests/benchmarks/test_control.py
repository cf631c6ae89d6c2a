"""Benchmarks of the control layer run, in a form too short to mean anything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from benchmarks import __main__ as cli
from benchmarks.control import api_calls
from benchmarks.control.contexts import PHASES
from benchmarks.control.scale import fits
from benchmarks.report import BenchmarkError
from benchmarks.stress import soak
from benchmarks.support.processes import run_group
from benchmarks.support.server import Server, serving
from examples import checks
from pie_control.client import ServerUnavailable
from pie_control.resources.exports.exports import MOST_EXPORTS
from testing.browser import find_chromium
from tests.helpers import wit
from tests.helpers.tree import ROOT

from .running import run

FEW_GUESTS = ("--warm-pool", "3")
"""Filling the pool takes most of the time of a short measurement."""


def test_launch(tmp_path: Path) -> None:
    options = ["--warm", "1,2", "--cold", "1", "--launches", "2", "--least-rounds", "1"]
    rows = run(tmp_path, "launch", *options, *FEW_GUESTS)
    names = ("guest", "concurrent", "warm", "launches")
    measured = [tuple(row[name] for name in names) for row in rows]
    warm = [(guest, number, True, 2) for guest in ("python", "component", "rust") for number in (1, 2)]
    assert measured == [*warm, ("python", 1, False, 2)]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows)


def test_api_calls(tmp_path: Path) -> None:
    rows = run(tmp_path, "api_calls", *["--inferlets", "2", "--blocks", "1", "--least-blocks", "1"])
    assert {row["layer"] for row in rows} == {"control", "inference"}
    assert {row["call"] for row in rows if row["guest"] == "rust"} == {*api_calls.RUST_CALLS}
    for row in rows:
        waits = row["layer"] == "inference"
        assert (row["worker_us"] > 0) is (row["waves_per_call"] >= 1) is waits
        assert row["us"] <= row["latency_us"]
        assert waits or row["guest_us"] > 0 or row["call"] == "clock" or row["guest"] == "rust"


def test_metrics(tmp_path: Path) -> None:
    rows = run(tmp_path, "metrics", *["--streams", "1,64", "--turns", "20", "--rounds", "1"])
    assert [row["streams"] for row in rows] == [1, 64]
    assert rows[0]["us"] > rows[1]["us"] > 0  # a wave is counted once for all


def test_dashboard(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "dashboard", *["--inferlets", "3", "--generating", "1", "--seconds", "0.5", "--rounds", "1"])
    assert (row["inferlets"], row["generating"]) == (3, 1)
    assert row["without_percent"] >= 0
    assert row["viewer_percent"] == pytest.approx(row["control_percent"] + row["hosts_percent"], abs=0.02)
    assert (row["paint_ms"] is None) == (row["shown_ms"] is None) == (find_chromium() is None)


def test_every_function_of_the_api_has_a_row_or_a_reason() -> None:
    functions = {one.name for one in wit.functions() if one.name.partition("_")[0] not in ("take", "await")}
    rows = {*api_calls.CONTROL_CALLS, *api_calls.ISSUED_CALLS}
    assert len(rows) == len(api_calls.CONTROL_CALLS) + len(api_calls.ISSUED_CALLS)
    assert rows >= api_calls.SHORT_BLOCKS.keys()
    assert {*rows, *api_calls.LEFT_OUT} == {*functions, "clock"}
    assert not rows & api_calls.LEFT_OUT.keys()


@pytest.mark.parametrize("inferlets", [*api_calls.FULL.inferlets, 2000])
def test_calls_leave_no_more_exports_than_a_tenant_may_have(inferlets: int) -> None:
    orders = api_calls._orders(inferlets)
    assert all(calls > 0 for _, _, calls in orders)
    exporting = [calls for call, _, calls in orders if call in api_calls.EXPORTING]
    assert inferlets > 896 or len(exporting) == 2
    assert all(inferlets * (calls + api_calls.OWN_EXPORTS) <= MOST_EXPORTS for calls in exporting)


def test_tpot_compares_runs_with_the_same_tokens(tmp_path: Path) -> None:
    options = f"--models demo --concurrent 2 --prompt 64 --tokens 6 --rounds 1 --tree {ROOT}".split()
    rows = run(tmp_path, "tpot", "--programs", "stream,piped", *options)
    assert [row["program"] for row in rows] == ["stream", "piped"]
    for row in rows:
        assert row["same_tokens"]
        assert 1 <= row["batch"] <= row["concurrent"]
        assert row["closed_loop_ms"] > 0
        assert row["pie_ms"] > 0


def test_scale(tmp_path: Path) -> None:
    options = ["--steps-ms", "2", "--tokens", "6", "--rounds", "1", "--inferlets", "3", "--hosts", "", "--programs"]
    programs = "stream,piped,whole,distributions,rust,fork_join,compute"
    rows = run(tmp_path, "scale", *options, programs, "--tree", str(ROOT))
    assert [(row["program"], row["inferlets"]) for row in rows] == [(program, 3) for program in programs.split(",")]
    for row in rows:
        assert 0 <= row["tpot_p50_ms"] <= row["tpot_p99_ms"]  # a few tokens may come in one frame
        assert row["tokens_s"] > 0
        assert min(row[name] for name in ("busy", "guest_us", "worker_us", "reader_us")) > 0
        assert 1 <= row["batch"] <= row["inferlets"] * (8 if row["program"] == "fork_join" else 1)


def test_scale_leaves_out_what_no_wave_can_hold() -> None:
    assert [fits("fork_join", number) for number in (1, 128, 129, 896)] == [True, True, False, False]
    assert fits("stream", 896)


def test_contexts(tmp_path: Path) -> None:
    rows = run(tmp_path, "contexts", "--prompt", "300", "--forks", "40", "--samples", "1")
    found = {row["measure"]: row["value"] for row in rows}
    assert (found["live forks"], found["tokens_run for the first token of a fork"]) == (40, 0)
    assert found["fork"] > 0
    assert found["second over first"] > 0
    assert {f"{phase}: processor time of {part}" for phase in PHASES for part in ("control", "hosts")} < set(found)


def test_constrained(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "constrained", *["--models", "demo", "--inferlets", "2", "--tokens", "40", "--pairs", "1"])
    assert (row["model"], row["inferlets"]) == ("demo", 2)
    assert 0 < row["kept_steps"] <= row["free_steps"] == 1  # below 1 where names of keys were not sampled
    assert row["low"] == row["ratio"] == row["high"] == pytest.approx(row["kept_tokens_s"] / row["free_tokens_s"], 0.01)
    for text in ("free", "kept"):
        parts = [row[f"{text}_{part}_us"] for part in ("worker", "control", "hosts")]
        assert min(parts) > 0
        assert row[f"{text}_waves"] >= 40 * row[f"{text}_steps"]
        assert 1 <= row[f"{text}_rows"] <= 2
        assert 0 <= row[f"{text}_ends"] < 1
    assert row["work"] > 0


def start_and_stop(serving: AbstractAsyncContextManager[Server]) -> None:
    async def check() -> None:
        async with serving:
            pass

    asyncio.run(check())


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(BenchmarkError, match="no model at /nowhere"):
        start_and_stop(serving(model="/nowhere"))


def test_a_server_has_the_packages_of_its_tree(tmp_path: Path) -> None:
    (tmp_path / "pie_control").mkdir()
    (tmp_path / "pie_control" / "__init__.py").write_text("raise ImportError('this is another tree')")
    with pytest.raises(BenchmarkError, match="this is another tree"):
        start_and_stop(serving(tree=tmp_path))


PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], stdout=sys.stdout)
print("started", flush=True)
child.wait()
"""


def test_a_process_ends_with_what_it_has_started() -> None:
    async def check(told: IO[str], writing: int) -> None:
        running = asyncio.create_task(run_group([sys.executable, "-c", PARENT], stdout=writing))
        assert await asyncio.to_thread(told.readline) == "started\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        os.close(writing)
        assert await asyncio.to_thread(told.read) == ""  # once nobody can write

    reading, writing = os.pipe()
    with os.fdopen(reading) as told:
        asyncio.run(check(told, writing))


def test_a_process_that_takes_too_long_has_no_status() -> None:
    assert asyncio.run(run_group([sys.executable, "-c", "input()"], 0.01, stdin=subprocess.PIPE)) is None
    assert asyncio.run(run_group([sys.executable, "-c", "raise SystemExit(3)"])) == 3


def test_neighbours(tmp_path: Path) -> None:
    rows = run(tmp_path, "neighbours", "--programs", "exception,sys_exit_zero", "--copies", "1,2")
    measured = [(row["program"], row["status"]) for row in rows]
    ended = {"exception": "failed", "sys_exit_zero": "finished"}
    assert measured == [(program, f"{copies} {status}") for program, status in ended.items() for copies in (1, 2)]
    assert all(0 < row["median_gap_ms"] <= row["worst_gap_ms"] and row["beats"] for row in rows)


def test_soak(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "soak", "--quick")
    assert row["programs"] > len(checks.names()), "all techniques, and examples that are none"
    assert row["finished"] > 0
    assert row["vanished"] > 0
    assert row["kills"] > 0


def test_a_soak_says_that_the_server_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def gone(**_: object) -> AsyncIterator[Server]:
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            pass
        yield Server("http://127.0.0.1:1", process.pid)

    monkeypatch.setattr(soak, "serving", gone)
    assert cli.main(["soak", "--minutes", "0.2", "--at-once", "1"]) == 2
    assert "\nerror: the server can no longer be watched: " in "\n" + capsys.readouterr().err


def test_a_watch_that_broke_is_told_by_a_sentence() -> None:
    lost, late = ServerUnavailable("it is gone"), TimeoutError()
    told = str(soak._broken(ExceptionGroup("", [ExceptionGroup("", [lost, late, late])])))
    assert told == "the server can no longer be watched: it is gone; TimeoutError: run it again"
    mistake = ExceptionGroup("", [lost, KeyError("x")])
    assert soak._broken(mistake) is mistake, "a fault of the benchmark keeps its traceback"


def test_a_soak_fails_for_what_no_kill_explains() -> None:
    good = soak.Row(1.0, 1, 1, 1, 1, 1, 0, 0, 0, 0.5, 2.0, ())
    assert soak.passed([good])
    for wrong in ({"unexplained": 1}, {"pages_left": 1}, {"least_share": 0.49}, {"minutes": 5.0}):
        assert not soak.passed([good, replace(good, **wrong)])


def test_policies(tmp_path: Path) -> None:
    size = ["--inferlets", "4", "--tokens", "4", "--wave-ms", "1", "--seconds", "0.1"]
    rows = run(tmp_path, "policies", "--quick", "--k", "4", "--t-ms", "5", *size)
    assert [row["policy"] for row in rows] == ["adaptive", "eager", "k-only 4", "t-only 0.005"]
    assert all(row["requests_s"] > 0 for row in rows)


def test_calls_per_token(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "calls_per_token", "--programs", "raw_api")
    assert row["tokens"] > 0
    assert 3 <= row["inference"] == row["commands"], "each of its calls is a command"
