"""docs/reference.md is what the calls are. `scripts/update_reference` writes it anew."""

from __future__ import annotations

import os

from pie_control.calls import CALLS
from tests.helpers import reference
from tests.helpers.tree import ROOT
from tests.helpers.wit import functions

PAGE = ROOT / "docs" / "reference.md"


def test_the_reference_is_true() -> None:
    text = reference.page()
    if os.environ.get("PIE_UPDATE_REFERENCE"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "run scripts/update_reference"


def test_every_call_is_in_the_reference_with_what_it_may_refuse() -> None:
    entries = dict(part.split("\n", 1) for part in PAGE.read_text().split("\n### ")[1:])
    guest_only = {"guest_source"}
    assert {name.replace("-", "_") for name in entries} == {
        one.name for one in functions() if one.interface not in guest_only
    }
    for name, entry in entries.items():
        assert "*handled by* " in entry
        if (call := CALLS.get(name.replace("-", "_"))) and call.value is not None and name != "synchronize":
            assert "`invalid-argument`" in entry, f"{name} has a future, and refuses no argument"
