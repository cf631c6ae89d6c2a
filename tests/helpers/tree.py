"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "pie_inference" / "demo_model"
EXAMPLES = ROOT / "examples" / "inferlets"
HOSTILE = ROOT / "tests" / "hostile"
