"""What a benchmark reports: its rows, and the machine and commit that they come from."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "wasmtime", "numpy", "pyzmq")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Machine:
    """Where it ran. No names or addresses: results are published."""

    cpu: str
    cores: int  # usable by this process
    memory_gb: float
    system: str
    python: str
    packages: dict[str, str]
    load: float  # runnable processes in the minute before: above 0.5, the times are not to be trusted


@dataclass(frozen=True)
class Report:
    """One run of one benchmark, as it is written to a file."""

    benchmark: str
    form: str  # quick or full
    date: str
    machine: Machine
    commit: str
    rows: Sequence[Row]

    def write(self, path: Path) -> None:
        """Writes JSON; makes the folder if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def make_report(benchmark: str, form: str, machine: Machine, rows: Sequence[Any]) -> Report:
    """A report of `rows`, which are dataclasses, on the commit at hand."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Report(benchmark, form, today, machine, commit(), [dataclasses.asdict(row) for row in rows])


def machine() -> Machine:
    """This machine, now; call it before the benchmark makes load of its own."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        load=round(os.getloadavg()[0], 2),
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """Hash of the commit, with "-dirty" if tracked files have changed since; "unknown" outside a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, for LOG.md."""
    if not rows:
        return "(no rows)"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
