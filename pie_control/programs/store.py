"""Programs: Python sources and WebAssembly components, by content hash, kept on disk across restarts.

cache_dir/programs/<sha256>.py | .wasm     as uploaded
cache_dir/programs/names.json              name -> hash of its newest upload
cache_dir/compiled/<sha256>-<version of compiled code>.cwasm
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BadProgram, BadRequest, UnknownName
from ..sandbox.components import write_atomically
from ..sandbox.engine import CODE_VERSION

logger = logging.getLogger(__name__)

WASM_MAGIC = b"\0asm"
COMPONENT_LAYER = b"\x0d\x00\x01\x00"
MAX_PROGRAM_BYTES = 64 << 20
MIN_PREFIX = 8

Kind = Literal["python", "component"]


@dataclass(frozen=True)
class ProgramInfo:
    """A program as clients see it."""

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


def kind_of(data: bytes) -> Kind:
    """Tells a component from Python text; raises BadProgram for anything else."""
    if data.startswith(WASM_MAGIC):
        if data[4:8] != COMPONENT_LAYER:
            raise BadProgram("this is a core WebAssembly module, not a component: build it for wasm32-wasip2")
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


def content_hash(data: bytes) -> str:
    """SHA-256 of a program's content, by which it is identified."""
    return hashlib.sha256(data).hexdigest()


class ProgramStore:
    """Uploaded programs. The texts of Python programs are in memory; components stay on disk.

    Several processes may share the folder: content hashes name the files, and writes are atomic. Each process knows the
    programs that were there when it started, and those uploaded to it.
    """

    def __init__(self, cache_dir: Path, max_bytes: int = MAX_PROGRAM_BYTES) -> None:
        self.cache_dir = cache_dir
        self._max_bytes = max_bytes
        self._folder = cache_dir / "programs"
        self._compiled = cache_dir / "compiled"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._programs: dict[str, Program] = {}
        self._names: dict[str, str] = self._read_names()
        self._load()

    def _read_names(self) -> dict[str, str]:
        path = self._folder / "names.json"
        try:
            return {str(name): str(hash_) for name, hash_ in json.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, RecursionError) as error:
            logger.warning("%s is damaged, so programs have no names but their hashes: %s", path, error)
            return {}

    def _write_name(self, name: str, program_hash: str) -> None:
        if self._names.get(name) == program_hash:
            return
        self._names[name] = program_hash
        names = {**self._read_names(), name: program_hash}  # another process may have added some
        write_atomically(self._folder / "names.json", json.dumps(names, indent=1).encode())

    def _load(self) -> None:
        names = {hash_: name for name, hash_ in self._names.items()}
        for path in sorted(self._folder.iterdir()):
            name = names.get(path.stem, path.stem[:12])
            if path.suffix == ".wasm":
                program = Program(path.stem, name, "component", path.stat().st_size, path)
                self._programs[program.hash] = program
            elif path.suffix == ".py":
                self._load_python(path, name)

    def _load_python(self, path: Path, name: str) -> None:
        data = path.read_bytes()
        if content_hash(data) != path.stem:
            logger.warning("%s is damaged and ignored: upload the program again", path)
            return
        self._programs[path.stem] = Program(path.stem, name, "python", len(data), path, data.decode())

    def compiled_path(self, program_hash: str) -> Path:
        """File of a component's compiled form."""
        return self._compiled / f"{program_hash}-{CODE_VERSION}.cwasm"

    def describe(self, data: bytes, name: str) -> Program:
        """Checks a program that is not stored yet, and describes it; raises BadProgram."""
        if len(data) > self._max_bytes:
            raise BadProgram(f"the program has {len(data)} bytes, more than {self._max_bytes} (--max-program-bytes)")
        kind, hash_ = kind_of(data), content_hash(data)
        path = self._folder / f"{hash_}{'.py' if kind == 'python' else '.wasm'}"
        source = data.decode() if kind == "python" else None
        return Program(hash_, name or hash_[:12], kind, len(data), path, source)

    def keep(self, program: Program, data: bytes) -> None:
        """Stores a program that `describe` returned."""
        if not program.path.exists() or program.path.stat().st_size != len(data):
            write_atomically(program.path, data)
        self._programs[program.hash] = program
        self._write_name(program.name, program.hash)

    def put(self, data: bytes, name: str) -> Program:
        """Stores a program under its content hash and a name; raises BadProgram."""
        program = self.describe(data, name)
        self.keep(program, data)
        return program

    def get(self, reference: str) -> Program:
        """Finds a program by hash, by name, or by a unique prefix of its hash with at least MIN_PREFIX characters;
        raises UnknownName, BadRequest."""
        exact = self._programs.get(reference) or self._programs.get(self._names.get(reference, ""))
        if exact is not None:
            return exact
        matches = list(self._matching(reference)) if len(reference) >= MIN_PREFIX else []
        if len(matches) > 1:
            raise BadRequest(f"{len(matches)} programs have hashes that begin with {reference!r}: give more characters")
        if not matches:
            raise UnknownName(f"no program {reference!r}: upload it first, or see the list of programs")
        return matches[0]

    def _matching(self, prefix: str) -> Iterator[Program]:
        return (program for hash_, program in self._programs.items() if hash_.startswith(prefix))

    def all(self) -> tuple[Program, ...]:
        return tuple(self._programs.values())
