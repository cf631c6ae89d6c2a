"""What kinds of programs there are, and what their files are called. Pure."""

from __future__ import annotations

from typing import Literal

from ..errors import BadProgram

WASM_MAGIC = b"\0asm"
COMPONENT_LAYER = b"\x0d\x00\x01\x00"
ZIP_MAGIC = b"PK\3\4"

Kind = Literal["python", "package", "component"]
SUFFIXES: dict[str, Kind] = {".py": "python", ".zip": "package", ".wasm": "component"}
SUFFIX_OF = {kind: suffix for suffix, kind in SUFFIXES.items()}


def kind_of(data: bytes) -> Kind:
    """Tells components, archives and Python texts apart; raises BadProgram for anything else."""
    if data.startswith(WASM_MAGIC):
        if data[4:8] != COMPONENT_LAYER:
            raise BadProgram(
                "this is a core WebAssembly module, not a component: `pie build FILE.wasm` makes a component of it"
            )
        return "component"
    if data.startswith(ZIP_MAGIC):
        return "package"  # what is in it is for the guest to see
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadProgram(f"neither a WebAssembly component, a zip archive nor Python text in UTF-8: {error}") from None
    if not text.strip():
        raise BadProgram("the program is empty")
    if "\0" in text:
        raise BadProgram("neither a WebAssembly component nor Python text: it contains a NUL character")
    return "python"
