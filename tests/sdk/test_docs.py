"""The programs in docs/inferlets.md and docs/sdk.md run, files shown there are as they are, and every name is told."""

from __future__ import annotations

import re

import pytest

import inferlet_sdk
from inferlet_sdk import traits
from inferlet_sdk.guest.program import run_program
from tests.helpers.native_host import install
from tests.helpers.tree import ROOT

NAMES = ("inferlets", "sdk", "adapters", "asked-for", "tutorials")
DOCS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES)]
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```python\n(.*?)```", re.DOTALL)
PROGRAMS = [(doc.name, file, code) for doc in DOCS for file, code in BLOCK.findall(doc.read_text())]


@pytest.mark.parametrize(("doc", "file", "code"), PROGRAMS, ids=lambda value: value if len(value) < 40 else "code")
def test_programs_in_the_docs_run(doc: str, file: str, code: str) -> None:
    host = install(max_context=2000, blobs={"photo": b"a cat"})
    run_program(doc, code)
    assert host.result is not None or host.sent


def test_shown_files_are_as_they_are() -> None:
    shown = [(file, code) for _, file, code in PROGRAMS if file]
    assert shown
    for file, code in shown:
        assert (ROOT / file).read_text() == code


def test_every_name_of_the_sdk_is_told() -> None:
    text = "".join(doc.read_text() for doc in DOCS)
    words = set(re.findall(r"\w+", text))
    assert set(inferlet_sdk.__all__) <= words
    named = {name for name, value in vars(traits).items() if not name.startswith("_") and callable(value)}
    assert {"forward", "verify"} <= named <= words
