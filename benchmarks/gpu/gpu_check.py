"""Does a GPU compute what float64, or the CPU, computes?

Runs every path that computes on a GPU against float64, or against the CPU where tokens or bytes must be equal: torch's,
Triton's and FlashInfer's attention on all cases of the tests, operations, quantized layers, sampling, swapping, CUDA
graphs, a whole model. Needs neither network nor anything beside the repository, torch, numpy, and what `docs/gpu.md`
names; paths whose packages are missing are told of and left out.

Each path runs in a process of its own, which writes down each check as it is done: a crash, or a kernel that hangs,
ends the rest of its path only. The exit status is 0 if no check failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..plans import refuse_unknown
from . import checks, serving_checks
from .check_results import Checks, Errors, Found, Setting, Unavailable, append, read
from .plan import Device, need

PATHS: Mapping[str, Callable[[Setting], Checks]] = {
    "torch ops": checks.torch_ops,
    "triton ops": checks.triton_ops,
    "flashinfer ops": checks.flashinfer_ops,
    "quantized linears": checks.quantized_linears,
    "sampling": serving_checks.sampling,
    "host pages": serving_checks.host_pages,
    "torch attention": checks.torch_attention,
    "triton attention": checks.triton_attention,
    "model": serving_checks.model,
    "graphs": serving_checks.graphs,
    "flashinfer attention": checks.flashinfer_attention,
}
"""In this order; the last may have to compile for minutes."""
LEAST_SECONDS = 10.0
"""A path that has less is not begun."""


@dataclass(frozen=True)
class Plan:
    """The paths in `only`, with `cases` of each kind (0: all), in at most `budget` seconds. A device `cpu` tries it out
    where there is no GPU, Triton in its interpreter, without FlashInfer and graphs."""

    only: tuple[str, ...] = tuple(PATHS)
    device: Device = "cuda"
    cases: int = 0
    budget: float = 460.0

    def __post_init__(self) -> None:
        refuse_unknown("path", self.only, tuple(PATHS))


FULL = Plan()
QUICK = Plan(cases=3)


async def run(plan: Plan) -> list[Found]:
    """All checks, those that failed or could not run among them."""
    need(plan.device)
    end, found = time.monotonic() + plan.budget, list[Found]()
    with tempfile.TemporaryDirectory() as folder:
        for path in plan.only:
            print(f"{path} ...", flush=True)
            new = run_in_process(path, plan, Path(folder), end - time.monotonic())
            for each in new:
                if not each.passed:
                    print(f"  {'FAILED' if each.passed is False else 'left out'}: {each.name or path}: {each.note}")
            print(f"  {sum(each.passed is True for each in new)} passed", flush=True)
            found += new
    return found


def summary(found: Sequence[Found]) -> str:
    """In place of a table of hundreds of checks."""
    counts = Counter(each.passed for each in found)
    return f"{counts[True]} passed, {counts[False]} failed, {counts[None]} left out"


def passed(found: Sequence[Found]) -> bool:
    """No check failed, and some ran."""
    outcomes = {each.passed for each in found}
    return True in outcomes and False not in outcomes


def run_in_process(path: str, plan: Plan, folder: Path, seconds: float) -> list[Found]:
    """What a path found, and one failed check more if its process came to no good end."""
    if seconds < LEAST_SECONDS:
        return [Found(path, "", None, note="no time left")]
    file = folder / f"{path}.jsonl"
    words = [sys.executable, "-m", __name__, path, plan.device, str(plan.cases), str(file), str(folder)]
    try:
        status = subprocess.run(words, timeout=seconds).returncode
        trouble = f"its process ended with {status}" if status else None
    except subprocess.TimeoutExpired:
        trouble = f"did not end within {seconds:.0f} s"
    return read(file) + ([Found(path, "", False, note=trouble)] if trouble else [])


def _run_path(path: str, device: str, cases: str, file: str, folder: str) -> None:
    """In the process of a path."""
    setting = Setting(torch.device(device), int(cases), Path(folder))
    with torch.inference_mode():
        try:
            for name, run in PATHS[path](setting):
                append(Path(file), run_check(path, name, run))
        except Unavailable as reason:
            append(Path(file), Found(path, "", None, note=str(reason)))


def run_check(path: str, name: str, run: Callable[[], Errors]) -> Found:
    """What it found; whatever it raises fails this check only."""
    started, errors, passed, note = time.perf_counter(), Errors(), True, ""
    try:
        errors = run()
        passed = errors.allowed is None or (errors.relative is not None and errors.relative <= errors.allowed)
        note = errors.note if passed else f"relative error {errors.relative} of at most {errors.allowed}"
    except Unavailable as reason:
        return Found(path, name, None, note=str(reason))
    except Exception as error:  # whatever it is, the other checks go on
        passed, note = False, f"{type(error).__name__}: {error}"[:500]
    seconds = round(time.perf_counter() - started, 3)
    return Found(path, name, passed, seconds, errors.max_abs, errors.relative, note)


if __name__ == "__main__":
    _run_path(*sys.argv[1:])
