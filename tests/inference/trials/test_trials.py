"""Trials decide by the worst size, are kept, and are made once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_inference.assembly.load import load
from pie_inference.assembly.plan import ServingPlan, make_plan, read_model
from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import Kernel, Library
from pie_inference.cpu_kernels.ways import OWN, Way, Ways
from pie_inference.device.ranks import SingleRank
from pie_inference.errors import ConfigError
from pie_inference.inspection.products import describe_products
from pie_inference.trials import choose, measure
from pie_inference.trials.candidates import sizes_of
from pie_inference.trials.choose import choose_ways, decide
from pie_inference.trials.kept import Trials, find_trials, keep_trials, path_beside
from pie_inference.trials.measure import Size, Timed, time_sizes
from testing.checkpoints import make_checkpoint
from tests.helpers.kernels import needs_kernels


def timed(*ratios: float) -> list[Timed]:
    """Sizes in which torch's way takes so many times as long as ours; infinity: it is out of the race."""
    return [
        Timed(str(n), {"own": 1.0} if math.isinf(ratio) else {"own": 1.0, "torch": ratio})
        for n, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("ratios", "way"),
    [
        ((1.5, 1.2), "own"),
        ((0.5, 0.4), "torch"),
        ((0.9, 0.87), "own"),  # it must be worth it
        ((1.2, 0.5), "torch"),  # it loses a fifth where it is worst, and ours would lose half
        ((3.0, 0.5), "own"),
        ((0.5, math.inf), "own"),
        ((), "own"),
    ],
)
def test_the_way_with_the_least_regret(ratios: tuple[float, ...], way: Way) -> None:
    assert decide({"linear": timed(*ratios)}) == Ways(linear=way)


def test_kinds_are_decided_by_themselves() -> None:
    assert decide({"quantized": timed(0.5), "attention": timed(2.0)}) == Ways(quantized="torch")
    assert decide({}) == OWN


def test_a_hopeless_way_is_timed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"own": iter([1.0] * 99), "torch": iter([2.5] * 99)}
    monkeypatch.setattr(measure, "_seconds", lambda way: next(seconds[way]))
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    runs: Mapping[str, Any] = {"own": "own", "torch": "torch"}
    found = time_sizes([Size("small", runs), Size("large", runs)])
    assert [dict(each.seconds) for each in found] == [{"own": 1.0, "torch": 2.5}, {"own": 1.0}]


# ---- kept trials -----------------------------------------------------------------------------------------------------


TRIALS: Trials = {"linear": timed(0.5, math.inf), "attention": timed(2.0)}


def test_trials_are_kept_by_key(tmp_path: Path) -> None:
    path = path_beside(tmp_path / "stem.0123.so")
    assert path == tmp_path / "stem-trials.json"
    assert find_trials(path, "a") is None
    keep_trials(path, "a", TRIALS)
    keep_trials(path, "b", {})
    assert (find_trials(path, "a"), find_trials(path, "b"), find_trials(path, "c")) == (TRIALS, {}, None)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 3}', '{"a": {"linear": [["1 row", {"own": "x"}]]}}', "\xff"])
def test_a_damaged_file_is_as_good_as_none(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "stem-trials.json"
    path.write_text(content, "latin-1")
    path.chmod(0o600)
    assert find_trials(path, "a") is None
    assert "products are tried anew" in caplog.text
    keep_trials(path, "a", TRIALS)
    assert find_trials(path, "a") == TRIALS


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "stem-trials.json"
    keep_trials(path, "a", TRIALS)
    path.chmod(0o666)
    assert find_trials(path, "a") is None
    assert "only its owner" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    keep_trials(tmp_path / "file" / "stem-trials.json", "a", TRIALS)
    assert "each start tries the products again" in caplog.text


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> ServingPlan:
    """A tiny model that counts as a large one, with no trial kept."""
    monkeypatch.setattr(choose, "SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr(choose, "path_beside", lambda _: tmp_path / "trials.json")
    return plan_of(tmp_path, kernel_cache)


def plan_of(folder: Path, cache: Path, **options: Any) -> ServingPlan:
    make_checkpoint(folder, hidden_size=128, intermediate_size=256, dtype=torch.bfloat16)
    config = WorkerConfig(folder, "model", cache, **{"dtype": "bfloat16", "device": "cpu", "pages": 16, **options})
    return make_plan(config, read_model(config), SingleRank())


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8", "int4-32", "fp8"])
def test_all_kinds_of_a_model_are_tried(quantization: str, plan: ServingPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    monkeypatch.setattr(measure, "HOPELESS", math.inf)
    found = {
        kind: time_sizes(sizes)
        for kind, sizes in sizes_of(replace(plan, config=replace(plan.config, quantization=quantization)))
    }
    assert list(found) == ["linear" if quantization == "none" else "quantized", "low_rank", "attention"]
    for sizes in found.values():
        assert all(set(each.seconds) == {"own", "torch"} for each in sizes)
        assert all(seconds > 0 for each in sizes for seconds in each.seconds.values())


@needs_kernels
def test_products_are_tried_once(plan: ServingPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_try", lambda _: {"linear": timed(0.5)})
    assert "to be tried against torch's at the first start" in describe_products(plan).why
    assert choose_ways(plan) == Ways(linear="torch")
    monkeypatch.setattr(choose, "_try", lambda _: pytest.fail("they were tried again"))
    assert choose_ways(plan) == Ways(linear="torch")
    described = describe_products(plan)
    assert described.why.endswith("; linear torch's, 2.00 times as fast as ours")
    assert described.ways.linear == "torch"
    assert described.trials["linear"] == [{"size": "0", "seconds": {"own": 1.0, "torch": 0.5}}]


@needs_kernels
@pytest.mark.parametrize("options", [{"kernels": "own"}, {"kernels": "torch"}, {"dtype": "float32"}], ids=str)
def test_nothing_is_tried_where_there_is_no_choice(
    options: dict[str, str], plan: ServingPlan, tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_try", lambda _: pytest.fail("products were tried"))
    assert choose_ways(plan_of(tmp_path, kernel_cache, **options)) == OWN


def test_own_kernels_have_no_float64(tmp_path: Path, kernel_cache: Path) -> None:
    with pytest.raises(ConfigError, match="--dtype float64 is by plain torch operations"):
        plan_of(tmp_path, kernel_cache, dtype="float64", kernels="own")


@needs_kernels
def test_a_model_runs_with_the_ways_it_is_given(plan: ServingPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    kernel = Library.kernel

    def watched(self: Library, name: str, *types: Any) -> Kernel:
        taken.append(name)
        return kernel(self, name, *types)

    monkeypatch.setattr(Library, "kernel", watched)
    served = load(plan, Ways("torch", "torch", "torch", "torch"))
    assert not any(name.startswith(("linear", "attend", "add_low_rank")) for name in taken)
    assert any(name.startswith("rms_norm") for name in taken)
    assert served.description.dtype == "bfloat16"


def test_another_number_of_threads_is_tried_by_itself(plan: ServingPlan) -> None:
    more = replace(plan, config=replace(plan.config, threads=plan.threads + 1))
    assert choose._key(plan) != choose._key(more)
