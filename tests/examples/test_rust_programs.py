"""Programs in Rust: their components are made of their sources, and do what the same programs in Python do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pie_control.inferlets.events import Ended
from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from tests.helpers import rust_programs
from tests.helpers.families import save_reference
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started
from tests.helpers.tree import DEMO_MODEL, ROOT
from tests.inference.models.test_state import DENSE, SETTINGS

FOLDER = ROOT / "tests" / "rust"
FEATURES = (
    "stop",
    "sampled",
    "drafted",
    "constrained",
    "cut",
    "windowed",
    "joined",
    "exported",
    "scored",
    "together",
    "stepped",
)


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(WorkerConfig(DEMO_MODEL, "demo", dtype="float32", device="cpu", pages=512, embeds=4096, threads=1))


async def ends_of(worker: Worker, cache: Path, runs: list[tuple[bytes, str, str]], **settings: object) -> list[Ended]:
    """How programs end, each given as its bytes, its name and what it shall do."""
    async with started(cache, InProcessClient(worker), model=["demo"], warm_pool=0, **settings) as server:
        ends = []
        for data, name, what in runs:
            info, listener = await server.upload(data, name), Listener()
            await server.launch(info.program, [f"what={what}"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                ends.append(await listener.ended)
        return ends


def features() -> tuple[bytes, str]:
    path = rust_programs.component(FOLDER)
    return path.read_bytes(), path.name


def result(ended: Ended) -> Any:
    assert (ended.status, ended.error) == ("finished", None)
    return json.loads(ended.result or "null")


@pytest.mark.parametrize("folder", rust_programs.FOLDERS, ids=lambda folder: folder.parent.name)
def test_a_component_is_made_of_its_sources(folder: Path) -> None:
    record = rust_programs.recorded(folder)
    assert record["sources"] == rust_programs.sources(folder), "run scripts/update_rust"
    assert record["component"] == rust_programs.digest(rust_programs.component(folder)), "run scripts/update_rust"


def test_context_does_in_rust_what_it_does_in_python(worker: Worker, guest_cache: Path) -> None:
    python = (FOLDER / "features.py").read_bytes(), "features.py"
    runs = [(*program, what) for what in FEATURES for program in (features(), python)]
    results = list(map(result, asyncio.run(ends_of(worker, guest_cache, runs))))
    assert dict(zip(FEATURES, results[::2], strict=True)) == dict(zip(FEATURES, results[1::2], strict=True))


def test_context_does_so_at_a_model_that_keeps_states(guest_cache: Path, tmp_path: Path) -> None:
    save_reference(tmp_path, DENSE, **SETTINGS)
    config = WorkerConfig(tmp_path, "demo", dtype="float32", device="cpu", pages=512, embeds=4096, states=64)
    python = (FOLDER / "features.py").read_bytes(), "features.py"
    features_of = [one for one in FEATURES if one not in ("cut", "windowed", "joined", "constrained")]
    runs = [(*program, what) for what in features_of for program in (features(), python)]
    results = list(map(result, asyncio.run(ends_of(Worker(config), guest_cache, runs))))
    assert dict(zip(features_of, results[::2], strict=True)) == dict(zip(features_of, results[1::2], strict=True))


def test_topics_and_children(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "talk")]))
    assert result(ended) == [
        1,
        '"hello"\n\U0001f41d',
        "one parent",
        {"half": 0.5, "list": [1, None, True]},
        "failed",
        True,
    ]


def test_what_goes_wrong_is_told(worker: Worker, guest_cache: Path) -> None:
    runs = [(*features(), what) for what in ("fail", "panic", "stuck", "something", "exit", "memory", "loop")]
    ends = asyncio.run(ends_of(worker, guest_cache, runs, cpu_seconds=0.5))
    assert [ended.status for ended in ends] == ["failed"] * 6 + ["exceeded"]
    refused, panicked, stuck, unknown, left, large, looped = (ended.error or "" for ended in ends)
    assert refused.startswith("not-found: token reference")
    assert "it was meant: 0" in panicked
    assert "features.rs:" in panicked
    assert "`unreachable`" in panicked
    assert "has ended itself" not in panicked
    assert left.splitlines()[-1] == large.splitlines()[-1]
    assert left.endswith("the program has ended itself: by exit or abort, or as it wanted more memory than 256 MiB")
    assert "all tasks wait for each other" in stuck
    assert unknown == "unknown: something"
    assert "0.5 s of processor time" in looped


@pytest.mark.skipif(rust_programs.compiler() is None, reason="no Rust compiler that knows wasm32-unknown-unknown")
def test_a_compiler_makes_it_anew(worker: Worker, guest_cache: Path, tmp_path: Path) -> None:
    built = rust_programs.build(FOLDER, tmp_path, rust_programs.QUICK)
    kept, anew = asyncio.run(ends_of(worker, guest_cache, [(*features(), "stop"), (built, "anew.wasm", "stop")]))
    assert result(kept) == result(anew)
