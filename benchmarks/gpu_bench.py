"""Decode on a GPU: `python -m benchmarks.gpu_bench --json FILE`, in less than 8 minutes.

For Llama shapes with random weights in bfloat16 and 1 to 128 concurrent sequences it measures, in one run:

- `pie`: concurrent inferlets through the whole system, where its packages are installed (`note` of the run tells);
- `closed loop`: the worker alone in a tight loop; `closed loop, ahead`: with the next wave launched while one runs;
- `transformers`, and `transformers, varlen`: its continuous batching, as shipped and with torch's varlen attention.

Each row has its share of the bound: the time in which the GPU reads all weights and keys once, at the rate measured
here. Each part runs in a process of its own; one that fails or does not fit the time is told of and left out. Needs
neither network nor anything beside the repository, torch, transformers and, for FlashInfer, what docs/gpu.md names.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .gpu.plan import PLANS, Plan
from .gpu.results import Row, log, read, read_problems
from .gpu.shapes import SHAPES, write_checkpoint

PARTS = ("worker", "system", "transformers")
SYSTEM_PACKAGES = ("wasmtime", "zmq", "fastapi", "uvicorn", "websockets", "httpx", "msgspec", "componentize_py")
BUDGET_SECONDS = 450.0
LEAST_SECONDS = 20.0
"""A part that has less is not begun."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line."""

    json: Path | None
    device: str
    form: str
    models: tuple[str, ...]
    parts: tuple[str, ...]
    concurrent: tuple[int, ...]
    budget: float

    @property
    def plan(self) -> Plan:
        """What is to be done."""
        plan = PLANS[self.form]
        return dataclasses.replace(
            plan, models=self.models or plan.models, concurrent=self.concurrent or plan.concurrent
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all parts; 1 if none gave a row."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["part"]:
        _run_part(*words[1:])
        return 0
    options = _parse(words)
    report = _measure(options)
    print(_table(report["rows"]))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["rows"] else 1


def _parse(words: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_bench", description="Decode on a GPU.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a tiny model, to try it out")
    parser.add_argument("--quick", action="store_true", help="one model, fewer tokens: less than 2 minutes")
    parser.add_argument("--only", type=_words, default=(), metavar="A,B", help="parts or models")
    parser.add_argument("--concurrent", type=_words, default=(), metavar="N,M", help="only so many sequences")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS", help="for everything")
    given = parser.parse_args(words)
    unknown = set(given.only) - set(PARTS) - set(SHAPES)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join((*PARTS, *SHAPES))}")
    return Options(
        json=given.json,
        device=given.device,
        form="tiny" if given.device == "cpu" else "quick" if given.quick else "full",
        models=tuple(one for one in given.only if one in SHAPES),
        parts=tuple(one for one in PARTS if one in given.only) or PARTS,
        concurrent=tuple(map(int, given.concurrent)),
        budget=given.budget,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _measure(options: Options) -> dict[str, Any]:
    end = time.monotonic() + options.budget
    bandwidth = _bandwidth(options.device, options.plan.bandwidth_bytes)
    log(f"memory is read at {bandwidth / 1e9:.0f} GB/s")
    rows, problems = list[Row](), list[str]()
    for model in options.plan.models:
        with _checkpoint(model) as folder:
            for part in options.parts:
                obstacle = _obstacle(part, end)
                found, told = ([], [obstacle]) if obstacle else _run_in_process(part, model, folder, options, end)
                rows += found
                problems += [f"{model}, {part}: {problem}" for problem in told]
    for problem in problems:
        log(problem)
    return {
        "benchmark": "gpu_bench",
        "form": options.form,
        "machine": _machine(options.device),
        "read_gb_per_second": round(bandwidth / 1e9, 1),
        "left_out": problems,
        "rows": [_with_share(row, options.plan, bandwidth) for row in rows],
    }


def _obstacle(part: str, end: float) -> str | None:
    """Why a part is not begun."""
    missing = [name for name in SYSTEM_PACKAGES if importlib.util.find_spec(name) is None]
    if part == "system" and missing:
        return f"{', '.join(missing)} not installed; `closed loop, ahead` drives the worker as the scheduler does"
    if part == "transformers" and importlib.util.find_spec("transformers") is None:
        return "transformers not installed"
    return "no time left" if end - time.monotonic() < LEAST_SECONDS else None


def _run_in_process(part: str, model: str, folder: Path, options: Options, end: float) -> tuple[list[Row], list[str]]:
    """Its rows, also where it fails after a while, and what is missing."""
    plan = json.dumps({"form": options.form, "concurrent": options.plan.concurrent})
    command = [sys.executable, "-m", "benchmarks.gpu_bench", "part", part, model, str(folder), options.device, plan]
    log(f"{model}: {part} ...")
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            code = subprocess.run(command, stdout=output, stderr=errors, timeout=end - time.monotonic()).returncode
        except subprocess.TimeoutExpired:
            code = None
        output.seek(0)
        errors.seek(0)
        told, tail = output.read(), errors.read()[-1500:]
    failure = [] if code == 0 else ["out of time" if code is None else f"ended with {code}: {tail}"]
    return read(told), read_problems(told) + failure


def _run_part(part: str, model: str, folder: str, device: str, changes: str) -> None:
    """In the process of a part."""
    asked = json.loads(changes)
    plan = dataclasses.replace(PLANS[asked["form"]], concurrent=tuple(asked["concurrent"]))
    importlib.import_module(f"benchmarks.gpu.{part}_part").run(model, Path(folder), device, plan)


@contextmanager
def _checkpoint(model: str) -> Iterator[Path]:
    """In memory, where that is a file system."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="pie-gpu-bench-", dir=memory) as folder:
        start = time.perf_counter()
        write_checkpoint(SHAPES[model], Path(folder))
        log(f"{model}: checkpoint written in {time.perf_counter() - start:.1f} s")
        yield Path(folder)


def _bandwidth(device: str, num_bytes: int) -> float:
    """Bytes per second: the better of what a sum reads, and what a copy reads and writes. Best of several."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    reading = num_bytes / min(_seconds(lambda: source.sum(), device) for _ in range(10))
    copying = 2 * num_bytes / min(_seconds(lambda: target.copy_(source), device) for _ in range(10))
    return max(reading, copying)


def _seconds(work: Any, device: str) -> float:
    """The GPU's own time, where there is one."""
    if device != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _with_share(row: Row, plan: Plan, bandwidth: float) -> dict[str, Any]:
    """The row, and how much of the bound it reaches."""
    bound = 1e3 * SHAPES[row.model].step_bytes(row.concurrent, plan.context) / bandwidth
    return {**dataclasses.asdict(row), "bound_ms": round(bound, 4), "share_of_bound": round(bound / row.tpot_ms, 3)}


def _machine(device: str) -> dict[str, Any]:
    """No names or addresses: results are published."""
    found: dict[str, Any] = {"device": "cpu", "torch": torch.__version__, "python": sys.version.split()[0]}
    if device == "cuda":
        found |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    for name in ("flashinfer", "triton", "transformers"):
        if importlib.util.find_spec(name) is not None:
            found[name] = importlib.metadata.version("flashinfer-python" if name == "flashinfer" else name)
    return found


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """For people."""
    lines = [
        f"{row['model']:10} {row['way']:22} {row['concurrent']:4} {row['tpot_ms']:9.3f} ms "
        f"{row['tokens_per_second']:10.1f} tokens/s  {row['share_of_bound']:6.1%}  {row['note']}"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
