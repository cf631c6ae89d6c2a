"""The raw calls of the Rust crate are what the WIT files say. `scripts/update_rust` writes them anew."""

from __future__ import annotations

import os

from tests.helpers import rust_glue
from tests.helpers.tree import ROOT

RAW = ROOT / "inferlet_sdk" / "rust" / "src" / "raw.rs"


def test_the_raw_calls_are_those_of_the_contract() -> None:
    text = rust_glue.source()
    if os.environ.get("PIE_UPDATE_RUST"):
        RAW.write_text(text)
    assert RAW.read_text() == text, "run scripts/update_rust"
