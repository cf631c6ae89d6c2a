"""Does a GPU compute what float64, or the CPU, computes?

Compares every path that computes on a GPU with float64, or with the CPU if tokens or bytes must be equal: torch's,
Triton's and FlashInfer's attention on all cases of the tests, operations, quantized layers, sampling, swapping, CUDA
graphs, a whole model, adapters, images, masks, scores, grammars. It needs no network, and only the repository, torch,
numpy and the packages that `docs/gpu.md` names. Paths whose packages are missing are reported and left out.

Each path runs in its own process, which writes each result at once. So a crash, or a kernel that hangs, ends only the
rest of its path. The exit status is 0 if no check failed.
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
from .checking import features, kernels, serving
from .checking.results import Checks, Errors, Found, Setting, Unavailable, append, read
from .plan import Device, need

PATHS: Mapping[str, Callable[[Setting], Checks]] = {
    "torch ops": kernels.torch_ops,
    "triton ops": kernels.triton_ops,
    "flashinfer ops": kernels.flashinfer_ops,
    "quantized linears": kernels.quantized_linears,
    "sampling": serving.sampling,
    "host pages": serving.host_pages,
    "torch attention": kernels.torch_attention,
    "triton attention": kernels.triton_attention,
    "model": serving.model,
    "graphs": serving.graphs,
    "adapter products": features.adapter_products,
    "triton adapter products": features.triton_adapter_products,
    "adapters": features.adapters,
    "images": features.images,
    "masks": features.masks,
    "scores": features.scores,
    "grammars": features.grammars,
    "flashinfer attention": kernels.flashinfer_attention,
}
"""The paths, in the order in which they run; the last may have to compile for minutes."""
LEAST_SECONDS = 10.0
"""Seconds; a path with less time left is not begun."""
AMPLE_SECONDS = 240.0
"""Seconds that each path needs less than, compilers included; one that does not end within them hangs."""


@dataclass(frozen=True)
class Plan:
    """The paths in `only`, with `cases` cases of each kind (0: all), in at most `budget` seconds. The device `cpu`
    tries the checks on a machine without a GPU: Triton in its interpreter, without FlashInfer and graphs."""

    only: tuple[str, ...] = tuple(PATHS)
    device: Device = "cuda"
    cases: int = 0
    budget: float = 460.0

    def __post_init__(self) -> None:
        refuse_unknown("path", self.only, tuple(PATHS))


FULL = Plan()
QUICK = Plan(cases=3)


async def run(plan: Plan) -> list[Found]:
    """Runs all checks. Returns all results, also of checks that failed or could not run."""
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
    """The counts of results, instead of a table of hundreds of checks."""
    counts = Counter(each.passed for each in found)
    return f"{counts[True]} passed, {counts[False]} failed, {counts[None]} left out"


def passed(found: Sequence[Found]) -> bool:
    """Whether some checks ran and none failed."""
    outcomes = {each.passed for each in found}
    return True in outcomes and False not in outcomes


def run_in_process(path: str, plan: Plan, folder: Path, seconds: float) -> list[Found]:
    """Runs a path. Returns its results, and one more if its process did not end well: a failed check if it crashed or
    hung, one that is left out if it only had what was left of the budget."""
    if seconds < LEAST_SECONDS:
        return [Found(path, "", None, note="no time left")]
    file = folder / f"{path}.jsonl"
    words = [sys.executable, "-m", __name__, path, plan.device, str(plan.cases), str(file), str(folder)]
    try:
        status = subprocess.run(words, timeout=seconds).returncode
        troubles = [Found(path, "", False, note=f"its process ended with {status}")] if status else []
    except subprocess.TimeoutExpired:
        hangs = seconds >= AMPLE_SECONDS
        note = f"did not end within {seconds:.0f} s" if hangs else f"no time left for all of it: it had {seconds:.0f} s"
        troubles = [Found(path, "", False if hangs else None, note=note)]
    return read(file) + troubles


def _run_path(path: str, device: str, cases: str, file: str, folder: str) -> None:
    """The main function of a path's process."""
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
    except Exception as error:  # the other checks go on in any case
        passed, note = False, f"{type(error).__name__}: {error}"[:500]
    seconds = round(time.perf_counter() - started, 3)
    return Found(path, name, passed, seconds, errors.max_abs, errors.relative, note)


if __name__ == "__main__":
    _run_path(*sys.argv[1:])
