"""The raw calls of the Rust crate are what the WIT files say. `scripts/update_rust` writes them anew."""

from __future__ import annotations

import os
import re

from pie_control.host_api import wit_files
from pie_control.sandbox.encoding.types import CoreType, read_function
from tests.helpers import rust_glue
from tests.helpers.tree import ROOT

IMPORT = re.compile(
    r'wasm_import_module = "[\w:]+/([\w-]+)@[^"]*"\)\]\s*extern "C" \{\s*'
    r'#\[link_name = "([\w-]+)"\]\s*fn import\((.*)\);'
)
CORE = {"u64": "i64", "f32": "f32"}
RAW = ROOT / "inferlet_sdk" / "rust" / "src" / "raw.rs"


def test_the_raw_calls_are_those_of_the_contract() -> None:
    text = rust_glue.source()
    if os.environ.get("PIE_UPDATE_RUST"):
        RAW.write_text(text)
    assert RAW.read_text() == text, "run scripts/update_rust"


def test_each_raw_call_has_the_type_by_which_a_module_imports_it() -> None:
    package, found = wit_files.current(), IMPORT.findall(RAW.read_text())
    assert len(found) > 70
    for interface, name, given in found:
        kinds = tuple(CORE.get(kind.strip(), "i32") for kind in re.findall(r"_: ([^,]+)", given))
        wanted = read_function(package.signatures[interface, name]).lowered()
        assert CoreType(kinds, ()) == wanted, name
