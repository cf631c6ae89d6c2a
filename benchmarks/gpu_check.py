"""Correctness on a GPU: `python -m benchmarks.gpu_check --json FILE`, in less than 8 minutes.

Runs every path that computes on a GPU against float64, or against the CPU where tokens or bytes must be equal: torch's,
Triton's and FlashInfer's attention on all cases of the tests, operations, quantized layers, sampling, swapping, CUDA
graphs, a whole model. Needs neither network nor anything beside the repository, torch, numpy, and what `docs/gpu.md`
names; paths whose packages are missing are told of and left out.

Each path runs in a process of its own, which writes down each check as it is done: a crash, or a kernel that hangs,
ends the rest of its path only. The exit code is 0 if no check failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .gpu import checks, serving_checks
from .gpu.check_results import Checks, Errors, Found, Setting, Unavailable, append, read

ROOT = Path(__file__).resolve().parent.parent
BUDGET_SECONDS = 460.0
LEAST_SECONDS = 10.0
"""A path that has less is not begun."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks; 1 if one failed, or if none ran."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["path"]:
        path, device, form, file, folder = words[1:]
        _run_path(path, Setting(torch.device(device), form == "quick", Path(folder)), Path(file))
        return 0
    options = _parse(words)
    found = _check(options)
    report = {
        "benchmark": "gpu_check",
        "machine": _machine(options.device),
        "checks": list(map(dataclasses.asdict, found)),
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    counts = Counter(each.passed for each in found)
    print(f"{counts[True]} passed, {counts[False]} failed, {counts[None]} left out")
    return 0 if counts[True] and not counts[False] else 1


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description="Correctness on a GPU.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try it out")
    parser.add_argument("--quick", action="store_true", help="three cases of each kind")
    parser.add_argument("--only", default="", metavar="A,B", help=f"some of: {', '.join(PATHS)}")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS", help="for everything")
    given = parser.parse_args(words)
    given.only = [name for name in given.only.split(",") if name] or list(PATHS)
    unknown = set(given.only) - set(PATHS)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(PATHS)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine or this torch has no CUDA device; --device cpu tries the script out")
    return given


def _check(options: argparse.Namespace) -> list[Found]:
    end, found = time.monotonic() + options.budget, list[Found]()
    with tempfile.TemporaryDirectory() as folder:
        for path in options.only:
            print(f"{path} ...", flush=True)
            new = _run_in_process(path, options, Path(folder), end - time.monotonic())
            for each in new:
                if not each.passed:
                    print(f"  {'FAILED' if each.passed is False else 'left out'}: {each.name or path}: {each.note}")
            print(f"  {sum(each.passed is True for each in new)} passed", flush=True)
            found += new
    return found


def _run_in_process(path: str, options: argparse.Namespace, folder: Path, seconds: float) -> list[Found]:
    """What a path found, and one failed check more if its process came to no good end."""
    if seconds < LEAST_SECONDS:
        return [Found(path, "", None, note="no time left")]
    file = folder / f"{path}.jsonl"
    form = "quick" if options.quick else "full"
    words = [sys.executable, "-m", "benchmarks.gpu_check", "path", path, options.device, form, str(file), str(folder)]
    try:
        status = subprocess.run(words, cwd=ROOT, timeout=seconds).returncode
        trouble = f"its process ended with {status}" if status else None
    except subprocess.TimeoutExpired:
        trouble = f"did not end within {seconds:.0f} s"
    return read(file) + ([Found(path, "", False, note=trouble)] if trouble else [])


def _run_path(path: str, setting: Setting, file: Path) -> None:
    with torch.inference_mode():
        try:
            for name, run in PATHS[path](setting):
                append(file, _run_check(path, name, run))
        except Unavailable as reason:
            append(file, Found(path, "", None, note=str(reason)))


def _run_check(path: str, name: str, run: Callable[[], Errors]) -> Found:
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


def _machine(device: str) -> dict[str, Any]:
    import importlib.metadata as metadata
    import platform

    known = {each.metadata["Name"].lower(): each.version for each in metadata.distributions() if each.metadata["Name"]}
    packages = ("torch", "triton", "numpy", "flashinfer-python", "apache-tvm-ffi")
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "device": gpu or "cpu",
        "capability": torch.cuda.get_device_capability() if gpu else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {name: known[name] for name in packages if name in known},
    }


if __name__ == "__main__":
    sys.exit(main())
