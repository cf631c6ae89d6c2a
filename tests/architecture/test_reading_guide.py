"""The reading guide names files and functions that exist."""

from __future__ import annotations

import re

import pytest

from tests.helpers.tree import ROOT

PACKAGES = ("pie_control", "pie_inference", "inferlet_sdk")
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
SOURCE = "\n".join(path.read_text() for path in FILES)
GUIDE = (ROOT / "docs" / "reading-guide.md").read_text()
ROWS = [line for line in GUIDE.splitlines() if line.startswith("| ") and "`" in line]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row.split("|")[2])})


def is_known(name: str) -> bool:
    if name.endswith((".py", "/")):
        return any(f"/{name}" in f"/{path.relative_to(ROOT)}" for path in FILES)
    *owner, function = name.split(".")
    if owner and owner[0][0].isupper() and not re.search(rf"^class {owner[0]}\b", SOURCE, re.MULTILINE):
        return False
    return re.search(rf"\b(def|class) {function}\b", SOURCE) is not None


def test_the_guide_is_read() -> None:
    assert len(NAMES) > 40
    assert not is_known("Runtime.launch")
    assert not is_known("engine/ring.py")


@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch(r"[\w./]+", name)])
def test_what_the_guide_names_exists(name: str) -> None:
    assert is_known(name), f"docs/reading-guide.md names {name}, which does not exist"
