"""Does a GPU compute what float64, or the CPU, computes?

Compares every path that computes on a GPU with float64, or with the CPU if tokens or bytes must be equal: torch's,
Triton's and FlashInfer's attention on all cases of the tests, operations, quantized layers, experts, recurrences,
sampling, swapping, CUDA graphs, a whole model, adapters, images, masks, scores, grammars. It needs no network, and only
the repository, torch, numpy and the packages that `docs/gpu.md` names. Paths whose packages are missing are reported
and left out.

Several paths run at once, each in its own process, which writes each result at once. A check that ends its process,
hangs, or leaves the GPU in a state that its process cannot use, fails alone: another process goes on behind it. The
exit status is 0 if no check failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..plans import refuse_unknown
from ..report import ROOT
from ..support.processes import run_group
from .checking import features, kernels, serving
from .checking.results import Checks, Errors, Found, Setting, Unavailable, append, read
from .plan import Device, need

PATHS: Mapping[str, Callable[[Setting], Checks]] = {
    "triton ops": kernels.triton_ops,
    "model": serving.model,
    "graphs": serving.graphs,
    "triton attention": kernels.triton_attention,
    "torch ops": kernels.torch_ops,
    "quantized linears": kernels.quantized_linears,
    "experts": kernels.experts,
    "recurrences": kernels.recurrences,
    "sampling": serving.sampling,
    "host pages": serving.host_pages,
    "moves": serving.moves,
    "torch attention": kernels.torch_attention,
    "adapter products": features.adapter_products,
    "triton adapter products": features.triton_adapter_products,
    "adapters": features.adapters,
    "images": features.images,
    "masks": features.masks,
    "scores": features.scores,
    "grammars": features.grammars,
    "triton attention in float32": kernels.triton_attention_in_float32,
    "flashinfer attention": kernels.flashinfer_attention,
}
"""The paths, in the order in which they begin; the last ones compile for minutes."""
LEAST_SECONDS = 10.0
"""Seconds; a process with less time left is not begun."""
HANG_SECONDS = 150.0
"""Seconds that each check on a GPU needs less than, compilers included; one that takes longer hangs."""
MOST_PROCESSES = 4
"""Processes of a path, of which each goes on where the one before has ended."""
OURS = tuple(f"{ROOT / name}{os.sep}" for name in ("pie_inference", "testing", "benchmarks"))
LOST = 3
"""The exit status of a process for which the GPU is lost, once it has told of the check that failed."""
UNDER_WAY = "no time was left to end it"
"""The note of a check that has begun."""
MOST_TOLD = 1200
"""Characters of an error. Those of compilers are long, and end with what is wrong."""


@dataclass(frozen=True)
class Plan:
    """The paths in `only`, `at_once` of them at a time, with `cases` cases of each kind (0: all), in at most `budget`
    seconds. The device `cpu` tries the checks on a machine without a GPU: Triton in its interpreter, without FlashInfer
    and graphs."""

    only: tuple[str, ...] = tuple(PATHS)
    device: Device = "cuda"
    cases: int = 0
    at_once: int = 8
    budget: float = 460.0

    def __post_init__(self) -> None:
        refuse_unknown("path", self.only, tuple(PATHS))


FULL = Plan()
QUICK = Plan(cases=3)


async def run(plan: Plan) -> list[Found]:
    """Runs all checks. Returns all results, also of checks that failed or could not run; those until then if it is
    interrupted."""
    need(plan.device)
    end, turns = time.monotonic() + plan.budget, asyncio.Semaphore(plan.at_once)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        async def in_turn(path: str) -> None:
            async with turns:
                await run_path(path, plan, folder, end)
                _tell(path, read(results_of(path, folder)))

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*map(in_turn, plan.only))
        return [each for path in plan.only for each in read(results_of(path, folder))]


def _tell(path: str, found: Sequence[Found]) -> None:
    print(f"{path}: {summary(found)}, {sum(each.seconds for each in found):.0f} s")
    for each in found:
        if not each.passed:
            print(f"  {'FAILED' if each.passed is False else 'left out'}: {each.name or path}: {each.note}")
    sys.stdout.flush()


def summary(found: Sequence[Found]) -> str:
    """The counts of results, instead of a table of hundreds of checks."""
    counts = Counter(each.passed for each in found)
    return f"{counts[True]} passed, {counts[False]} failed, {counts[None]} left out"


def passed(found: Sequence[Found]) -> bool:
    """Whether some checks ran and none failed."""
    outcomes = {each.passed for each in found}
    return True in outcomes and False not in outcomes


def results_of(path: str, folder: Path) -> Path:
    """The file with the results of a path."""
    return folder / f"{path}.jsonl"


async def run_path(path: str, plan: Plan, folder: Path, end: float) -> None:
    """Runs a path. Its file tells of its checks, and why some are missing. A check during which a process ends has
    failed, and the next process goes on with those behind it; one for which there is only no time left has not."""
    file, words = results_of(path, folder), [sys.executable, "-m", __name__, path, plan.device, str(plan.cases)]
    file.touch()
    for _ in range(MOST_PROCESSES):
        if (left := end - time.monotonic()) < LEAST_SECONDS:
            append(file, Found(path, "", None, note="no time left"))
            return
        status = await run_group([*words, str(folder)], left)
        if status == 0:
            return
        if status is None:
            append(file, Found(path, "", None, note=f"no time left for all of it: it had {left:.0f} s"))
            return
        ended = f"its process ended with {status} after {time.time() - file.stat().st_mtime:.0f} s"
        under_way = [each for each in read(file) if each.note == UNDER_WAY]
        for each in under_way:
            append(file, replace(each, passed=False, note=ended))
        if not under_way and status != LOST:
            append(file, Found(path, "", False, note=ended))
            return
    append(file, Found(path, "", None, note=f"the rest is left out: {MOST_PROCESSES} checks have ended their process"))


def _run_path(path: str, device: str, cases: str, folder: str) -> None:
    """The main function of a path's process."""
    file, own = results_of(path, Path(folder)), Path(folder) / path
    own.mkdir(exist_ok=True)
    setting = Setting(torch.device(device), int(cases), own)
    done = {each.name for each in read(file)}
    with torch.inference_mode():
        try:
            for name, run in PATHS[path](setting):
                if name not in done:
                    append(file, Found(path, name, None, note=UNDER_WAY))
                    with _watched(setting):
                        found = run_check(path, name, run)
                    append(file, found)
                    if found.passed is False and _is_lost(setting):
                        os._exit(LOST)
        except Unavailable as reason:
            append(file, Found(path, "", None, note=str(reason)))
        except Exception as error:
            append(file, Found(path, "", False, note=told(error)))


@contextlib.contextmanager
def _watched(setting: Setting) -> Iterator[None]:
    """Within it, a check on a GPU that hangs ends the process, which tells where that was."""
    if setting.is_gpu:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def _is_lost(setting: Setting) -> bool:
    """Whether this process cannot use the GPU any more, as after an illegal access to memory."""
    if not setting.is_gpu:
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


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
        passed, note = False, told(error)
    seconds = round(time.perf_counter() - started, 3)
    return Found(path, name, passed, seconds, errors.max_abs, errors.relative, note)


def told(error: Exception) -> str:
    """What an error says, from both its ends if that is long, and the line of ours that it comes from."""
    text = f"{type(error).__name__}: {error}"
    if len(text) > MOST_TOLD:
        text = f"{text[: MOST_TOLD // 4]} ... {text[-MOST_TOLD * 3 // 4 :]}"
    ours = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(OURS)]
    places = [f"{Path(each.filename).relative_to(ROOT)}:{each.lineno}" for each in ours]
    return f"{text} ({places[-1]})" if places else text


if __name__ == "__main__":
    _run_path(*sys.argv[1:])
