"""Programs: Python sources and WebAssembly components, by content hash, kept on disk across restarts.

    cache_dir/programs/<sha256>.py | .wasm     as uploaded
    cache_dir/programs/names.json              name -> hash of its newest upload
    cache_dir/compiled/<sha256>-<wasmtime version>.cwasm
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wasmtime import Engine
from wasmtime.component import Component

from ..errors import BadProgram, BadRequest, UnknownName
from .wasm_fibers import WASMTIME_VERSION

WASM_MAGIC = b"\0asm"
COMPONENT_LAYER = b"\x0d\x00\x01\x00"
MAX_PROGRAM_BYTES = 64 << 20
MIN_PREFIX = 8

Kind = Literal["python", "component"]


@dataclass(frozen=True)
class ProgramInfo:
    """What can be told of a program."""

    program: str
    name: str
    kind: Kind
    size: int


@dataclass(frozen=True)
class Program:
    """An uploaded program. `source` is the text of a Python program."""

    hash: str
    name: str
    kind: Kind
    size: int
    path: Path
    source: str | None = None

    def info(self) -> ProgramInfo:
        return ProgramInfo(self.hash, self.name, self.kind, self.size)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def kind_of(data: bytes) -> Kind:
    """Tells a component from Python text; raises BadProgram for anything else."""
    if data.startswith(WASM_MAGIC):
        if data[4:8] != COMPONENT_LAYER:
            raise BadProgram(
                "this is a core WebAssembly module, not a component: build it for wasm32-wasip2"
            )
        return "component"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadProgram(f"neither a WebAssembly component nor Python text in UTF-8: {error}") from None
    if not text.strip():
        raise BadProgram("the program is empty")
    if "\0" in text:
        raise BadProgram("neither a WebAssembly component nor Python text: it contains a NUL character")
    return "python"


def compile_component(engine: Engine, data: bytes, path: Path) -> Component:
    """A compiled component, from the file if it is there. Takes seconds for a large one: call it in a thread."""
    if path.exists():
        return Component.deserialize_file(engine, str(path))
    compiled = Component(engine, data)
    write_atomically(path, bytes(compiled.serialize()))
    return compiled


class ProgramStore:
    """Uploaded programs. Holds one text per Python program in memory; components stay on disk."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "programs"
        self._compiled = cache_dir / "compiled"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._programs: dict[str, Program] = {}
        self._names: dict[str, str] = self._read_names()
        self._load()

    def _read_names(self) -> dict[str, str]:
        path = self._folder / "names.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _load(self) -> None:
        names = {hash_: name for name, hash_ in self._names.items()}
        for path in self._folder.iterdir():
            if path.suffix in (".py", ".wasm") and len(path.stem) == 64:
                self._remember(path, names.get(path.stem, path.stem[:12]))

    def _remember(self, path: Path, name: str) -> Program:
        kind: Kind = "python" if path.suffix == ".py" else "component"
        source = path.read_text("utf-8") if kind == "python" else None
        program = Program(path.stem, name, kind, path.stat().st_size, path, source)
        self._programs[program.hash] = program
        return program

    def compiled_path(self, program_hash: str) -> Path:
        """Where the compiled form of a component is kept."""
        return self._compiled / f"{program_hash}-{WASMTIME_VERSION}.cwasm"

    def put(self, data: bytes, name: str) -> Program:
        """Stores a program under its content hash and a name; raises BadProgram."""
        if len(data) > MAX_PROGRAM_BYTES:
            raise BadProgram(f"the program has {len(data)} bytes, more than {MAX_PROGRAM_BYTES}")
        kind = kind_of(data)
        path = self._folder / f"{hashlib.sha256(data).hexdigest()}{'.py' if kind == 'python' else '.wasm'}"
        if not path.exists():
            write_atomically(path, data)
        program = self._remember(path, name or path.stem[:12])
        self._names[program.name] = program.hash
        write_atomically(self._folder / "names.json", json.dumps(self._names, indent=1).encode())
        return program

    def get(self, reference: str) -> Program:
        """By full hash, name, or unique prefix of at least MIN_PREFIX characters; raises UnknownName, BadRequest."""
        exact = self._programs.get(self._names.get(reference, reference))
        if exact is not None:
            return exact
        matches = list(self._matching(reference)) if len(reference) >= MIN_PREFIX else []
        if len(matches) > 1:
            raise BadRequest(f"{reference!r} is the beginning of {len(matches)} programs' hashes: give more of it")
        if not matches:
            raise UnknownName(f"no program {reference!r}: upload it first, or see the list of programs")
        return matches[0]

    def _matching(self, prefix: str) -> Iterator[Program]:
        return (program for hash_, program in self._programs.items() if hash_.startswith(prefix))

    def all(self) -> tuple[Program, ...]:
        return tuple(self._programs.values())
