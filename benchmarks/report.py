"""The report of a benchmark: its rows, and the machine and commit that they come from."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("torch", "wasmtime", "numpy", "pyzmq"),
    *("triton", "flashinfer-python", "apache-tvm-ffi", "transformers"),
)

MEASURED = (":(top)", ":(top,exclude)docs/evaluation*")
"""What has to be as the commit has it."""

Row = Mapping[str, Any]
T = TypeVar("T")


class BenchmarkError(Exception):
    """A benchmark cannot go on. The message says why."""


@dataclass(frozen=True)
class Machine:
    """The machine that ran a benchmark, without names or addresses: results are published."""

    cpu: str
    cores: int  # usable by this process
    memory_gb: float
    system: str
    python: str
    packages: dict[str, str]  # those that are installed
    load: float  # runnable processes in the minute before; above 0.5, do not trust the times


@dataclass(frozen=True)
class Report:
    """One run of one benchmark, as it is written to a file."""

    benchmark: str
    form: str  # full, quick or tiny; options may have changed it
    plan: Mapping[str, Any]  # how much it did, options included
    date: str
    machine: Machine
    gpu: Mapping[str, Any] | None  # None if the benchmark used none
    commit: str
    rows: Sequence[Row]

    def write(self, path: Path) -> None:
        """Writes JSON; makes the folder if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, default=str) + "\n")


def make_report(benchmark: str, form: str, plan: Any, machine: Machine, commit: str, rows: Sequence[Any]) -> Report:
    """A report of `rows`. The rows and the plan are dataclasses."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    told = [dataclasses.asdict(row) for row in rows]
    return Report(benchmark, form, dataclasses.asdict(plan), today, machine, _gpu(), commit, told)


def machine() -> Machine:
    """This machine, now. Call it before the benchmark itself loads the machine."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages=_versions(),
        load=round(os.getloadavg()[0], 2),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _gpu() -> dict[str, Any] | None:
    torch: Any = sys.modules.get("torch")  # a benchmark that did not import it used no GPU
    if torch is None or not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability()
    return {"name": torch.cuda.get_device_name(), "capability": capability, "cuda": torch.version.cuda}


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """Hash of the commit, with "-dirty" if tracked files have changed since, other than those of the evaluation, which
    its parts write; "unknown" outside a repository. Call it before the benchmark: the tree may change meanwhile."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def noted(row: T) -> T:
    """Says on stderr what was measured, at once: a benchmark may take an hour. Returns it."""
    print(row, file=sys.stderr, flush=True)
    return row


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, for LOG.md."""
    if not rows:
        return "(no rows)"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
