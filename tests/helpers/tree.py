"""Where things are in the repository."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "pie_inference" / "demo_model"
EXAMPLES = ROOT / "examples" / "inferlets"
HOSTILE = ROOT / "tests" / "hostile"


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file. The collector rests: in Python 3.11 a finalizer that parses too, as one does that
    prints a traceback, would make it a SystemError."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        if collects:
            gc.enable()
