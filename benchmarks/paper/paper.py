"""What comes of the paper's evaluation on this machine?

Runs the benchmark of each figure and table, each in a process of its own, and writes `docs/evaluation.md`, with JSON
and an SVG for each in `docs/evaluation/`. With `--parts agents,policies` only these are measured, and the others are
taken from the JSON that is there. `--device` and `--opponent` go to the benchmarks that compare with a server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..plans import refuse_unknown
from ..report import ROOT, as_table, noted
from .drawing import draw_bars
from .parts import NAMES, PARTS, Part, no_opponent_with

GUIDE = Path(__file__).with_name("evaluation.md")
"""What stands before the results."""
MISSED = "a measure misses its bound"
COLUMNS = 120


@dataclass(frozen=True)
class Plan:
    """`folder`: where evaluation.md goes, with a folder `evaluation` beside it."""

    quick: bool
    parts: tuple[str, ...] = NAMES
    models: tuple[str, ...] = ()  # of those that compare with a server; none: their own
    device: str = "auto"
    opponent: str = ""
    folder: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("part", self.parts, NAMES)
        if not self.parts:
            raise ValueError(f"name a part or more of {', '.join(NAMES)}")


FULL = Plan(quick=False)
QUICK = Plan(quick=True)


@dataclass(frozen=True)
class Row:
    """`failed`: the end of what a benchmark said that failed."""

    part: str
    benchmark: str
    seconds: float
    rows: int
    failed: str


async def run(plan: Plan) -> list[Row]:
    """A row for each part that was measured."""
    folder = plan.folder or ROOT / "docs"
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    rows = []
    for part in PARTS:
        if part.name in plan.parts:
            rows.append(noted(await _measure(plan, part, folder / "evaluation" / f"{part.name}.json")))
    write(folder)
    return rows


def passed(rows: Sequence[Row]) -> bool:
    """Whether all ran."""
    return not any(row.failed for row in rows)


def command(plan: Plan, part: Part) -> list[str]:
    """The words behind `python -m benchmarks`."""
    words = [part.name, *(part.quick if plan.quick else part.full)]
    if part.on_device:
        words += ["--device", plan.device]
        words += ["--models", ",".join(plan.models)] if plan.models else []
        words += ["--opponent", plan.opponent] if plan.opponent else []
    return words


async def _measure(plan: Plan, part: Part, path: Path) -> Row:
    start, began = time.perf_counter(), time.time()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", *command(plan, part), "--json", str(path)),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said = ""
    try:
        assert process.stderr is not None
        async for line in process.stderr:
            sys.stderr.write(text := line.decode(errors="replace"))
            said = (said + text)[-300:]
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    seconds = round(time.perf_counter() - start, 1)
    measured = path.exists() and path.stat().st_mtime >= began  # also where a measure misses its bound
    if process.returncode and not measured:
        return Row(part.title, part.name, seconds, 0, said.strip())
    report = json.loads(path.read_text())
    path.write_text(json.dumps({**report, "command": command(plan, part), "seconds": seconds}, indent=1) + "\n")
    return Row(part.title, part.name, seconds, len(report["rows"]), MISSED if process.returncode else "")


def write(folder: Path) -> None:
    """Writes evaluation.md and the figures, from the JSON of all parts that there is."""
    paths = {part.name: folder / "evaluation" / f"{part.name}.json" for part in PARTS}
    reports = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    beyond = no_opponent_with(reports["closed_tpot"]["rows"]) if "closed_tpot" in reports else ""
    closed = f"With {beyond}, `closed` is [no opponent](#beside-is-closed-an-opponent)." if beyond else ""
    texts = [GUIDE.read_text().rstrip()]
    texts += [_section(part, reports[part.name], paths[part.name], closed) for part in PARTS if part.name in reports]
    (folder / "evaluation.md").write_text("\n\n".join(texts) + "\n")


def _section(part: Part, report: dict[str, Any], path: Path, closed: str) -> str:
    """`closed`: what to know of the opponent that is there if no other one is named."""
    lines = [f"## {part.title}", _wrapped(f"**Paper:** {part.paper}"), _wrapped(_origin(part, report))]
    if part.groups is not None and (groups := part.groups(report["rows"])):
        path.with_suffix(".svg").write_text(draw_bars(part.drawn, groups))
        lines.append(f"![{part.drawn}](evaluation/{part.name}.svg)")
    lines += [_wrapped(said)] if (said := part.said(report["rows"])) else []
    lines += [_wrapped(closed)] if closed and part.on_device and not report["plan"]["opponent"] else []
    return "\n\n".join([*lines, *([as_table(table)] if (table := part.table(report["rows"])) else [])])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _origin(part: Part, report: dict[str, Any]) -> str:
    """How, where and of which code the rows were measured."""
    machine, commit = report["machine"], report["commit"]
    gpu = f", {report['gpu']['name']}" if report["gpu"] else ""
    where = f"{machine['cpu']}, {machine['cores']} cores{gpu}, load before {machine['load']}"
    words = " ".join(["python -m benchmarks", *report.get("command", [part.name])])
    form = "the short form" if report["form"] == "quick" else "the full form"
    tree = " with changes that were not committed" if commit.endswith("-dirty") else ""
    of = f"commit {commit.removesuffix('-dirty')}{tree}"
    return f"`{words}`, {form} ({report.get('seconds', 0):g} s), {where}, {of}:"
