"""What a technique gains, measured. A folder of `inferlets` with a `check.py` is a technique.

`check.py` draws problems from a seed, runs the program and its plain counterpart on a server, and gives measures. It
has

    PAPER_LINES: int  # what the paper counts for its program (Table 2), or 0
    LEAST: int  # problems that tell something
    async def check(client: Client, problems: int, seed: int) -> list[Measure]

if vLLM or SGLang have it by themselves, `IN_VLLM` and `IN_SGLANG` ("yes", or how), as docs/techniques.md shows them;
and, if the technique needs another model than `demo` or several, `MODELS`, a list of them, the default one first. The
server has them in float32, whose greedy choices are those of any other float32, and its programs reach this machine: a
check may serve a world of its own (examples/world). The tests run each check with LEAST problems, `python -m benchmarks
techniques` with many. `scripts/update_techniques NAME --problems 100` keeps what it measures for docs/techniques.md
(see page.py).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import pie_inference
from pie_control.client import Client

FOLDER = Path(__file__).parent / "inferlets"
DEMO_MODEL = Path(pie_inference.__file__).parent / "demo_model"


@dataclass(frozen=True)
class Measure:
    """One number of a check, and what it has to reach; None: it is shown only."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def passed(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def reach(self) -> str:
        """The bounds, as a table has them."""
        if self.at_least == self.at_most and self.at_least is not None:
            return f"{self.at_least:g}"
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


class Check(Protocol):
    """The module `check.py` of a technique."""

    PAPER_LINES: int
    LEAST: int

    async def check(self, client: Client, problems: int, seed: int) -> list[Measure]:
        """Measures of so many problems."""


def names() -> list[str]:
    """All techniques."""
    return sorted(path.parent.name for path in FOLDER.glob("*/check.py"))


def program(name: str) -> Path:
    """The file of a technique's program."""
    return FOLDER / name / f"{name}.py"


def load(name: str) -> Check:
    """The check of a technique. Raises ValueError for a name that is none."""
    if name not in names():
        raise ValueError(f"no technique is called {name!r}: there are {', '.join(names())}")
    return cast(Check, importlib.import_module(f"examples.inferlets.{name}.check"))


def constants(name: str) -> dict[str, Any]:
    """Those of a check, read without importing it: some need packages that are not installed everywhere."""
    found: dict[str, Any] = {}
    for node in ast.parse((FOLDER / name / "check.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            with suppress(ValueError):  # it is computed
                value, (target,) = ast.literal_eval(node.value), node.targets
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = value if isinstance(target, ast.Tuple) else [value]
                found.update({ast.unparse(one): each for one, each in zip(names, values, strict=True)})
    return found


def settings(name: str) -> dict[str, Any]:
    """Those of the server that a technique is checked on."""
    return {"dtype": "float32", "model": constants(name).get("MODELS", ["demo"]), "http_allow": "127.0.0.1:*"}


async def run(name: str, client: Client, problems: int, seed: int = 0) -> Sequence[Measure]:
    """Checks a technique on a server. Raises ValueError if so few problems tell nothing."""
    one = load(name)
    refuse_few(name, problems, one.LEAST)
    return await one.check(client, problems, seed)


def refuse_few(name: str, problems: int, least: int) -> None:
    """Raises ValueError if so few problems tell nothing."""
    if problems < least:
        raise ValueError(f"{problems} problems are too few to tell what {name} gains: take {least} or more")


async def counts(client: Client, model: str = "demo") -> dict[str, Any]:
    """What the scheduler of a model's only worker has counted."""
    (worker,) = (await client.statistics())["models"][model]
    return cast(dict[str, Any], worker["scheduler"])


def lines(file: Path) -> int:
    """Lines of a program that are neither blank, comment nor docstring, as the paper counts them."""
    text = file.read_text("utf-8")
    rows = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    kinds = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node):
            first = node.body[0]
            rows -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(rows)
