"""Each benchmark runs, in a form too short to mean anything, and writes what docs/benchmarks.md says."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import math
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from pie_inference.config import default_cache_dir
from pie_inference.cpu_kernels.library import find_library
from pie_inference.testing.checkpoints import make_checkpoint
from tests.helpers.tree import ROOT

PLANS: dict[str, dict[str, Any]] = {
    "loading": {"layers": 1, "vocab_size": 272, "rounds": 1, "quantizations": ("int8",), "hidden_size": 128},
    "launch": {"warm": (1, 2), "cold": (1,), "launches": 2, "least_rounds": 1},
    "api_calls": {"inferlets": (2,), "blocks": 1, "least_blocks": 1},
    "tpot": {"models": ("demo",), "concurrent": (2,), "prompt": 64, "tokens": 6, "rounds": 1},
    "idle": {"inferlets": (2, 4)},
    "scheduler": {"inferlets": (1, 3), "steps": 3},
    "cpu_model": {
        "model": "random-tiny",
        "concurrent": (1, 2),
        "prompt": 32,
        "tokens": 6,
        "single_tokens": 6,
        "long_prompt": 100,
        "demo_concurrent": 2,
        "demo_prompt": 16,
        "rounds": 1,
        "read_bytes": 1 << 22,
        "pages": 128,
        "baseline": ROOT,
    },
    "cpu_kernels": {
        "rows": (1, 9),
        "shapes": ((64, 96),),
        "copies": 2,
        "repeats": 2,
        "threads": 1,
        "read_bytes": 1 << 22,
    },
}

COLUMNS = {
    "launch": {"guest", "through", "concurrent", "warm", "p50_ms", "p99_ms"},
    "api_calls": {"call", "layer", "inferlets", "us"},
    "tpot": {"model", "concurrent", "closed_loop_ms", "pie_ms", "overhead", "same_tokens"},
    "idle": {"guest", "inferlets", "mb_each"},
    "scheduler": {"inferlets", "us_each"},
    "loading": {"quantization", "gigabytes", "discard_s", "read_s", "load_s"},
    "attention": {"sequences", "queries", "keys", "heads", "dtype", "plan_us", "ms", "torch_ms", "sdpa_ms", "error"},
    "cpu_model": {"part", "measure", "unit", "concurrent", "ours", "against", "theirs", "ratio"},
    "cpu_kernels": {"kernels", "rows", "threads", "ms", "bound_ms", "of_bound"},
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks are not installed."""
    monkeypatch.syspath_prepend(str(ROOT))


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `python -m benchmarks NAME --quick --json FILE` writes, with a plan of the tests' own."""
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(module, "QUICK", module.Plan(**PLANS[name]))
    path = folder / "results" / f"{name}.json"
    assert importlib.import_module("benchmarks.__main__").main([name, "--quick", "--json", str(path)]) == 0
    written: dict[str, Any] = json.loads(path.read_text())
    return written


def check(name: str, written: dict[str, Any]) -> None:
    assert (written["benchmark"], written["form"]) == (name, "quick")
    assert written["commit"]
    assert set(written["machine"]) >= {"cpu", "cores", "memory_gb", "python", "packages", "load"}
    assert platform.node() not in json.dumps(written["machine"])
    for row in written["rows"]:
        assert set(row) >= COLUMNS[name]
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, int | float))


def test_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("launch", tmp_path, monkeypatch)
    check("launch", written)
    names = ("through", "guest", "concurrent", "warm", "launches")
    measured = [tuple(row[name] for name in names) for row in written["rows"]]
    warm = [(guest, number, True, 2) for guest in ("python", "component") for number in (1, 2)]
    each = [*warm, ("python", 1, False, 2)]
    assert measured == [(through, *rest) for through in ("session", "runtime") for rest in each]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in written["rows"])


def test_api_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("api_calls", tmp_path, monkeypatch)
    check("api_calls", written)
    assert {row["layer"] for row in written["rows"]} == {"control", "inference"}
    for row in written["rows"]:
        waits = row["layer"] == "inference"
        assert (row["worker_us"] > 0) is (row["waves_per_call"] >= 1) is waits
        assert row["us"] <= row["latency_us"]


def test_tpot_compares_runs_with_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("tpot", tmp_path, monkeypatch)
    check("tpot", written)
    (row,) = written["rows"]
    assert row["same_tokens"]
    assert 1 <= row["batch"] <= row["concurrent"]
    assert row["closed_loop_ms"] > 0
    assert row["pie_ms"] > 0


def test_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("benchmarks.idle"), "SETTLE_SECONDS", 0.0)
    written = run("idle", tmp_path, monkeypatch)
    check("idle", written)
    measured = [(row["guest"], row["inferlets"]) for row in written["rows"]]
    assert measured == [(guest, number) for guest in ("python", "component") for number in (2, 4)]
    assert all(row["mb_each"] > 0 for row in written["rows"] if row["guest"] == "python")


def test_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("scheduler", tmp_path, monkeypatch)
    check("scheduler", written)
    assert [row["inferlets"] for row in written["rows"]] == [1, 3]


def test_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("loading", tmp_path, monkeypatch)
    check("loading", written)
    (row,) = written["rows"]
    assert min(row["discard_s"], row["read_s"], row["load_s"]) > 0


def test_cpu_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("cpu_kernels", tmp_path, monkeypatch)
    check("cpu_kernels", written)
    assert [row["rows"] for row in written["rows"][:: len(written["rows"]) // 2]] == [1, 9]
    assert all(row["of_bound"] > 0 for row in written["rows"])


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("benchmarks.attention")
    if find_library("auto", default_cache_dir(), torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    points = (module.Point(2, 1, 50), module.Point(1, 20, 40, 4, 2, 16, "float32"), module.Point(1, 9, 70, window=32))
    monkeypatch.setitem(PLANS, "attention", {"points": points, "rounds": 1, "layer_bytes": 1 << 20})
    written = run("attention", tmp_path, monkeypatch)
    check("attention", written)
    assert [row["error"] < (1e-5 if row["dtype"] == "float32" else 1e-2) for row in written["rows"]] == [True] * 3


def test_cpu_model_measures_the_machine_pie_and_its_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run("cpu_model", tmp_path, monkeypatch)
    check("cpu_model", written)
    rows = written["rows"]
    parts = ["machine", "decode", "prefill", "transformers", "llama.cpp", "demo"]
    assert list(dict.fromkeys(row["part"] for row in rows)) == parts
    for row in rows:
        several_turns = row["part"] == "demo"  # a median of ratios is not the ratio of medians
        assert several_turns or row["ratio"] is None or row["ratio"] == pytest.approx(speed_ratio(row), rel=0.01)
    assert all(row["ours"] > 0 for row in rows if row["part"] != "llama.cpp" or llama_cpp_is_here())
    assert "first token the same in 2 of 2" in next(row["note"] for row in rows if row["part"] == "transformers")


def speed_ratio(row: dict[str, Any]) -> float:
    """How many times as fast ours is."""
    less_is_more = row["unit"] == "ms"
    return float(row["theirs"] / row["ours"] if less_is_more else row["ours"] / row["theirs"])


def llama_cpp_is_here() -> bool:
    return bool(importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"))


def test_cpu_model_says_which_peer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("benchmarks.cpu_model")
    monkeypatch.setitem(module.PEERS, "llama.cpp", "not_installed")
    plan = module.Plan(**PLANS["cpu_model"], parts=("llama.cpp",))
    row = asyncio.run(module.run(plan))[-1]
    assert (row.part, row.ours, row.ratio) == ("llama.cpp", None, None)
    assert "not installed" in row.note


def test_cpu_model_refuses_parts_that_are_none() -> None:
    main = importlib.import_module("benchmarks.__main__").main
    with pytest.raises(SystemExit, match="there is no part decoding; there are decode, prefill"):
        main(["cpu_model", "--quick", "--parts", "decoding"])
    with pytest.raises(SystemExit):
        main(["idle", "--parts", "decode"])


def test_costs_count_every_weight_once(tmp_path: Path) -> None:
    costs = importlib.import_module("benchmarks.costs").llama_costs(make_checkpoint(tmp_path, tie_embeddings=True))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    assert costs.layer_weights + costs.head_weights == sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    one, two = (costs.step_bytes(sequences, 10) for sequences in (1, 2))
    assert two - one == 10 * 2 * 2 * 2 * 16 * 2  # tokens, layers, keys and values, heads, their size, bytes


def test_every_benchmark_has_both_forms() -> None:
    for name in importlib.import_module("benchmarks.__main__").BENCHMARKS:
        module = importlib.import_module(f"benchmarks.{name}")
        assert isinstance(module.QUICK, module.Plan)
        assert isinstance(module.FULL, module.Plan)
        assert f"`{name}`" in (ROOT / "docs" / "benchmarks.md").read_text()


def test_rows_become_a_markdown_table() -> None:
    report = importlib.import_module("benchmarks.report")
    assert report.as_table([{"a": 1, "b": None}]) == "| a | b |\n| --- | --- |\n| 1 |  |"
    assert report.as_table([]) == "(no rows)"


def test_a_server_that_does_not_start_says_why() -> None:
    server = importlib.import_module("benchmarks.server")

    async def start() -> None:
        async with server.serving(model="/nowhere"):
            pass

    with pytest.raises(RuntimeError, match="no model at /nowhere"):
        asyncio.run(start())
