"""How fast does a GPU decode, against the rate of its memory and against transformers?

For Llama shapes with random weights in bfloat16 and 1 to 128 concurrent sequences it measures, in one run:

- `pie`: concurrent inferlets through the whole system, where its packages are installed;
- `closed loop`: the worker alone in a tight loop; `closed loop, ahead`: with the next wave launched while one runs;
- `transformers`: its continuous batching, as shipped.

Each row has its share of the bound: the time in which the GPU reads all weights and keys once, at the rate measured
here. Each part runs in its own process; a part that fails or does not fit the time is reported and left out. It needs
no network, and only the repository, torch, transformers and, for FlashInfer, the packages that docs/gpu.md names.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..support.processes import run_group
from . import plan as plans
from .plan import Plan
from .results import Measured, log, read
from .shapes import SHAPES, write_checkpoint

FULL, QUICK, TINY = plans.FULL, plans.QUICK, plans.TINY
SYSTEM_PACKAGES = ("wasmtime", "zmq", "fastapi", "uvicorn", "websockets", "httpx", "msgspec", "componentize_py")
MEMORY = "/dev/shm"
SPARE_BYTES = 64 << 20
"""Room for what a checkpoint has beside weights."""
LEAST_SECONDS = 20.0
"""Seconds; a part with less time left is not begun."""


@dataclass(frozen=True)
class Row:
    """One way to decode `concurrent` sequences of one model; or a part that left something out, and `note` says why.

    `tpot_ms`: time between two tokens of a sequence. `bound_ms`: time to read all weights and keys once at `read_gb_s`.
    """

    model: str
    way: str
    concurrent: int | None
    tpot_ms: float | None
    tokens_per_second: float | None  # of all sequences
    bound_ms: float | None
    share_of_bound: float | None
    read_gb_s: float
    note: str = ""


async def run(plan: Plan) -> list[Row]:
    """Returns the measured rows, then the parts that are left out."""
    plans.need(plan.device)
    end = time.monotonic() + plan.budget
    bandwidth = _bandwidth(plan.device, plan.bandwidth_bytes)
    if plan.device == "cuda":
        torch.cuda.empty_cache()  # of which the parts need all
    log(f"memory is read at {bandwidth / 1e9:.0f} GB/s")
    found, left_out = list[Measured](), list[tuple[str, str, str]]()
    for model in plan.models:
        try:
            with _checkpoint(model) as folder:
                for part in plan.parts:
                    measured, problem = await _measure(part, model, folder, plan, end)
                    found += measured
                    left_out += [(model, part, problem)] if problem else []
        except OSError as error:
            left_out.append((model, "checkpoint", str(error)))
    for each in left_out:
        log(": ".join(each))
    read_gb_s = round(bandwidth / 1e9, 3)
    return [_row(one, plan, bandwidth) for one in found] + [
        Row(model, part, None, None, None, None, None, read_gb_s, problem) for model, part, problem in left_out
    ]


def passed(rows: Sequence[Row]) -> bool:
    """Whether anything was measured."""
    return any(row.tpot_ms is not None for row in rows)


def _row(found: Measured, plan: Plan, bandwidth: float) -> Row:
    """A row. It has no time if that is less than the bound, which no measurement can be."""
    bound = 1e3 * SHAPES[found.model].step_bytes(found.concurrent, plan.context) / bandwidth
    read_gb_s = round(bandwidth / 1e9, 3)
    if found.tpot_ms is None or found.tpot_ms < bound:
        impossible = f"{found.tpot_ms} ms, in which memory cannot be read: something else was measured"
        note = found.note if found.tpot_ms is None else impossible
        return Row(found.model, found.way, found.concurrent, None, None, round(bound, 4), None, read_gb_s, note)
    return Row(
        **asdict(found), bound_ms=round(bound, 4), share_of_bound=round(bound / found.tpot_ms, 3), read_gb_s=read_gb_s
    )


def _obstacle(part: str, end: float) -> str | None:
    """Why a part cannot begin; None if it can."""
    missing = [name for name in SYSTEM_PACKAGES if importlib.util.find_spec(name) is None]
    if part == "system" and missing:
        return f"{', '.join(missing)} not installed; `closed loop, ahead` drives the worker as the scheduler does"
    if part == "transformers" and importlib.util.find_spec("transformers") is None:
        return "transformers not installed"
    return "no time left" if end - time.monotonic() < LEAST_SECONDS else None


async def _measure(part: str, model: str, folder: Path, plan: Plan, end: float) -> tuple[list[Measured], str]:
    """Runs a part in a process. Returns its rows, also if it fails after a while, and why some are missing."""
    if obstacle := _obstacle(part, end):
        return [], obstacle
    words = [sys.executable, "-m", __name__, part, model, str(folder), msgspec.json.encode(plan).decode()]
    log(f"{model}: {part} ...")
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        code = await run_group(words, end - time.monotonic(), stdout=output, stderr=errors)
        output.seek(0)
        errors.seek(0)
        told, tail = output.read(), errors.read()[-1500:]
    found = read(told)
    for each in found:  # at once: what comes after may end this process
        log(f"{model}: {each.way}: {each.concurrent} at once: {each.tpot_ms} ms {each.note}")
    if code == 0:
        log(tail.strip())  # what it warns of
        return found, ""
    return found, f"out of time: {tail}" if code is None else f"ended with {code}: {tail}"


def _run_part(part: str, model: str, folder: str, plan: str) -> None:
    """The main function of a part's process. SIGTERM ends it as Ctrl-C does, with its server."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    module = importlib.import_module(f"benchmarks.gpu.{part}_part")
    module.run(model, Path(folder), msgspec.json.decode(plan, type=Plan))


@contextmanager
def _checkpoint(model: str) -> Iterator[Path]:
    """A checkpoint of a model, in a file system in memory if there is one with room for it. Raises OSError if it fits
    nowhere."""
    room = shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
    memory = MEMORY if room > SHAPES[model].checkpoint_bytes + SPARE_BYTES else None
    with tempfile.TemporaryDirectory(prefix="pie-gpu-bench-", dir=memory) as folder:
        start = time.perf_counter()
        write_checkpoint(SHAPES[model], Path(folder))
        log(f"{model}: checkpoint written in {time.perf_counter() - start:.1f} s")
        yield Path(folder)


def _bandwidth(device: str, num_bytes: int) -> float:
    """Memory rate in bytes per second: of a sum, which reads, or of a copy, which reads and writes, whichever is
    faster. Best of several runs."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    reading = num_bytes / min(_seconds(lambda: source.sum(), device) for _ in range(10))
    copying = 2 * num_bytes / min(_seconds(lambda: target.copy_(source), device) for _ in range(10))
    return max(reading, copying)


def _seconds(work: Any, device: str) -> float:
    """Seconds of `work`, by the GPU's own clock if there is a GPU."""
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


if __name__ == "__main__":
    _run_part(*sys.argv[1:])
