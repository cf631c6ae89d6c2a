"""Programs: Python texts, packages of them, and WebAssembly components, by content hash, kept across restarts.

cache_dir/programs/<sha256>.py | .zip | .wasm        as uploaded; of a server with a state in programs/ of that
cache_dir/programs/owners.json                       tenant -> hash -> {names, file, uploaded}, see `Kept`, of servers
                                                     without a state; one with a state takes it over
cache_dir/compiled/<sha256>-<version>.<sha256>.*     what was made of them (pie_inference/options/cache_files.py)

What lies there is executed, so nobody else may write into the folder, and a file is used only if it has the content
that its name says. Content that two tenants upload is kept once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from pie_inference.options import cache_files

from ..durable.accounts.programs import ProgramRecords
from ..errors import BadProgram, ConfigError, Overloaded
from ..tenants.tenant import DEFAULT_TENANT
from .kinds import SUFFIX_OF, SUFFIXES, Kind, kind_of
from .shelf import Kept, Owned, Shelf, check_label, check_name

logger = logging.getLogger(__name__)

DEFAULT_OWNER = DEFAULT_TENANT.name
SERVER = "bundled programs"
"""Owns what the server itself has at each start anew: it is kept in memory, so no disk has to take it. No tenant of the
file can have a name with a space."""


@dataclass(frozen=True)
class ProgramInfo:
    """A program as clients see it. `name` is the newest of its `names`; without any, the beginning of its hash. `file`:
    what the file was called from which it came last, which is no name. `uploaded`: when it came, or got a name, last,
    in seconds since the epoch. `replaced`, in the answer to an upload: the hash of the program that had its name until
    then."""

    program: str
    name: str
    kind: Kind
    size: int
    replaced: str | None = None
    names: tuple[str, ...] = ()
    file: str = ""
    uploaded: float = 0.0


@dataclass(frozen=True)
class Program:
    """A program as its owner knows it; its content stays on disk. `name`: the one that
    it was asked for by, else the newest one, or ""; `file`: see `Kept`."""

    hash: str
    name: str
    file: str
    kind: Kind
    size: int
    path: Path
    owner: str = DEFAULT_OWNER

    @property
    def title(self) -> str:
        """What tracebacks and lists call it."""
        return self.name or self.file or self.hash[:12]


@dataclass(frozen=True)
class StoreLimits:
    """`program_bytes`: one program; `programs` and `stored_bytes`: all that a tenant keeps, with what is compiled of
    it."""

    program_bytes: int = 64 << 20
    programs: int = 1000
    stored_bytes: int = 1 << 30


def content_hash(data: bytes) -> str:
    """SHA-256 of a program's content, by which it is identified."""
    return hashlib.sha256(data).hexdigest()


class ProgramStore:
    """Uploaded programs, by tenant. In memory are only their names and sizes.

    Several processes may share the cache folder: content hashes name the files, and writes are atomic. Each process
    knows the programs that were there when it started, and those uploaded to it. What one without a state deletes is
    gone for all that have none. Raises ConfigError if others can write there.
    """

    def __init__(
        self,
        cache_dir: Path,
        limits: StoreLimits | None = None,
        owners: ProgramRecords | None = None,
        folder: Path | None = None,
    ) -> None:
        """`owners`: what survives the server, where anything does; `folder`: for its programs, of which no other server
        knows."""
        try:
            self.cache_dir = cache_files.private_folder(cache_dir)
            self._shared = cache_files.private_folder(self.cache_dir / "programs")
            self._folder = folder or self._shared
            self.compiled = cache_files.folder_to_compile_in(self.cache_dir / "compiled")
        except cache_files.NotPrivate as error:
            raise ConfigError(str(error)) from None
        if not os.access(self._shared, os.W_OK):
            raise ConfigError(f"the cache folder {self.cache_dir} cannot be written: choose another one: --cache-dir")
        self._limits = limits or StoreLimits()
        self._own_limits: dict[str, StoreLimits] = {}  # by owner
        self._owners = owners
        self._files: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}  # of the files
        self._contents: dict[str, bytes] = {}  # of programs of the server itself
        self._compiled_sizes: dict[str, int] = {}
        self._shelves: defaultdict[str, Shelf] = defaultdict(Shelf)
        self._arriving: Counter[str] = Counter()
        self._load()

    # ---- on disk ----

    def _load(self) -> None:
        owners = self._read_owners() if self._owners is None else self._take_over(self._owners)
        known = {program for programs in owners.values() for program in programs}
        if self._folder != self._shared:
            self._adopt(known)
        for path in sorted(self._folder.iterdir()):
            if self._is_left(path, known):
                cache_files.remove(path)
            elif path.suffix in SUFFIXES and len(path.stem) == 64:
                self._files[path.stem] = path
                self._sizes[path.stem] = _size(path)
        for path in self.compiled.iterdir():
            program = path.name[:64]
            self._compiled_sizes[program] = self._compiled_sizes.get(program, 0) + _size(path)
        if self._owners is None:  # what a state does not know is of a server with another one
            for program in sorted(self._files.keys() - {each for shelf in owners.values() for each in shelf}):
                owners.setdefault(DEFAULT_OWNER, {})[program] = Kept()  # nobody else claims it
        for owner, programs in owners.items():
            self._shelves[owner] = shelf = Shelf()
            for program, kept in programs.items():
                for name in ("", *kept.names):
                    if program in self._files:
                        shelf.put(program, name, kept.file, kept.uploaded)

    def _is_left(self, path: Path, known: Collection[str]) -> bool:
        """Whether a process that was killed has left a file: a temporary one, or a program that was never entered. An
        older copy of the state may come back that knows it, so it stays for a while."""
        with contextlib.suppress(OSError):
            age = time.time() - path.lstat().st_mtime
            if path.name.startswith("tmp"):
                return age > cache_files.LEFT_SECONDS
            return self._folder != self._shared and path.stem not in known and age > cache_files.UNUSED_SECONDS
        return False

    def _adopt(self, programs: Collection[str]) -> None:
        """Takes programs of this state out of the cache folder, where a server without one has left them. Others may
        use them there."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._folder} cannot be made, for programs: {error}; see --state") from None
        there = {path.name for path in self._folder.iterdir()}
        for path in self._shared.iterdir():
            if path.stem in programs and path.name not in there:
                try:
                    cache_files.write_atomically(self._folder / path.name, cache_files.read_own_file(path))
                except OSError as error:
                    logger.warning("%s cannot be copied to %s: %s", path, self._folder, error)

    def _take_over(self, state: ProgramRecords) -> Owned:
        """What the state has, and what a server without one has left in owners.json, which is moved."""
        owners = msgspec.convert(state.read(), Owned)
        for owner, programs in self._read_owners().items():
            mine = owners.setdefault(owner, {})
            taken = {name for kept in mine.values() for name in kept.names}
            for program, kept in programs.items():
                if program not in mine:
                    mine[program] = replace(kept, names=[name for name in kept.names if name not in taken])
            state.write(owner, {program: asdict(kept) for program, kept in mine.items()})
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._shared / "owners.json", self._shared / "owners.json.moved")
        return owners

    def _read_owners(self) -> Owned:
        path = self._shared / "owners.json"
        try:
            return msgspec.json.decode(cache_files.read_own_file(path), type=Owned)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("%s is damaged, so programs have no names but their hashes: %s", path, error)
            return {}

    def _write_owner(self, owner: str, program: str, before: str | None = None) -> None:
        """Writes what changed of a program, and of the one before it that had its name."""
        shelf = self._shelves[owner]
        if owner == SERVER:
            return None
        if self._owners is not None:
            changed = (one for one in (before, program) if one is not None)
            return self._owners.write(owner, {one: asdict(shelf[one]) if one in shelf else None for one in changed})
        with cache_files.queued(self._shared) as is_our_turn:  # another process may have changed others
            while not is_our_turn():
                time.sleep(0.001)  # others need no longer
            owners = self._read_owners()
            mine = owners.setdefault(owner, {})
            mine.pop(program, None)
            if program in shelf:
                kept = shelf[program]
                for other in mine.values():
                    other.names = [name for name in other.names if name not in kept.names]
                mine[program] = kept
            written = msgspec.json.format(msgspec.json.encode(owners), indent=1)
            cache_files.write_atomically(self._shared / "owners.json", written)
        return None

    def try_read(self, program: Program) -> bytes | None:
        """The content of a stored program; None if it is damaged, or was deleted by another process. Raises Overloaded
        if the system cannot read it now. A large one takes time: call this in a thread."""
        if program.hash in self._contents:
            return self._contents[program.hash]
        try:
            data = cache_files.read_own_file(program.path)
        except OSError as error:
            logger.warning("program %s cannot be read: %s", program.hash, error)
            if isinstance(error, (FileNotFoundError, PermissionError)) or error.errno == errno.ELOOP:
                return None  # there is none, or what is there is not ours: ELOOP tells of a symlink
            raise Overloaded(f"program {program.title!r} cannot be read now: try again later") from None
        if content_hash(data) == program.hash:
            return data
        logger.warning("program %s is damaged: %s", program.hash, program.path)
        return None

    def write(self, program: Program, data: bytes) -> None:
        """Writes a program that `describe` returned; `enter` makes it known. A large one takes time: call this in a
        thread."""
        if program.owner == SERVER:
            self._contents[program.hash] = data
        else:
            cache_files.write_atomically(program.path, data)

    # ---- what tenants keep ----

    def describe(self, data: bytes, name: str = "", owner: str = DEFAULT_OWNER, file: str = "") -> Program:
        """Checks a program that is not stored yet, and describes it; raises BadProgram, BadRequest. A large one takes
        time: call this in a thread."""
        if len(data) > self._limits.program_bytes:
            raise BadProgram(
                f"the program has {len(data)} bytes, more than {self._limits.program_bytes} (--max-program-bytes)"
            )
        check_name(name)
        check_label(file)
        kind, hash_ = kind_of(data), content_hash(data)
        path = self._folder / f"{hash_}{SUFFIX_OF[kind]}"
        return Program(hash_, name, file, kind, len(data), path, owner)

    def bound(self, owner: str, programs: int | None, stored_bytes: int | None) -> None:
        """What an owner may keep; None: what each may."""
        most = self._limits
        self._own_limits[owner] = replace(
            most, programs=programs or most.programs, stored_bytes=stored_bytes or most.stored_bytes
        )

    def make_room(self, program: Program, used: Collection[str] = ()) -> list[str]:
        """Deletes programs without a name, but for `used`, until its owner can keep this one; returns what is gone.
        Raises StorageFull."""
        if program.owner == SERVER:
            return []
        shelf, most = self._shelves[program.owner], self._own_limits.get(program.owner, self._limits)
        more = program.size + self._compiled_sizes.get(program.hash, 0)
        going = shelf.making_room(program.hash, program.name, most.programs, more, most.stored_bytes, self._bytes, used)
        return [one for one in going if self.remove(self._program(one, program.owner))]

    @contextlib.contextmanager
    def arriving(self, program: Program) -> Iterator[None]:
        """While a program is prepared, written and entered, its files stay, whoever deletes it meanwhile."""
        self._arriving[program.hash] += 1
        try:
            yield
        finally:
            self._arriving[program.hash] -= 1
            self._arriving += Counter()  # drops what has arrived

    def enter(self, program: Program) -> ProgramInfo:
        """Makes a program known that `write` has written, where `make_room` has made room. A name that stood for
        another program of its owner stands for this one from now on, and the answer says so."""
        shelf = self._shelves[program.owner]
        before = shelf.named(program.name)
        self._files[program.hash], self._sizes[program.hash] = program.path, program.size
        if program.hash not in shelf or (program.name and shelf[program.hash].names[-1:] != [program.name]):
            kept = shelf.copy()
            shelf.put(program.hash, program.name, program.file, time.time())
            try:
                self._write_owner(program.owner, program.hash, before)
            except OSError:  # what the disk does not say is not so after a restart
                self._shelves[program.owner] = kept
                raise
        return self.info(program, replaced=before if before != program.hash else None)

    def info(self, program: Program, replaced: str | None = None) -> ProgramInfo:
        """A program that its owner keeps, as clients see it."""
        kept = self._shelves[program.owner][program.hash]
        called = kept.names[-1] if kept.names else program.hash[:12]
        told = tuple(kept.names), kept.file, kept.uploaded
        return ProgramInfo(program.hash, called, program.kind, program.size, replaced, *told)

    def get(self, reference: str, owner: str = DEFAULT_OWNER) -> Program:
        """Finds a program of a tenant by hash, by name, or by a unique beginning of its hash; raises UnknownName,
        BadRequest. By one of its names it is found under that."""
        shelf = self._shelves[owner]
        program = self._program(shelf.find(reference), owner)
        return replace(program, name=reference) if shelf.named(reference) else program

    def all(self, owner: str = DEFAULT_OWNER) -> Iterator[Program]:
        """The programs of a tenant."""
        return (self._program(hash_, owner) for hash_ in self._shelves[owner].programs)

    def remove(self, program: Program) -> bool:
        """Deletes a program of a tenant, and its files unless another tenant keeps it too; whether they are gone.
        Raises OSError if a restart would find it again."""
        shelf = self._shelves[program.owner]
        before, size = shelf.copy(), self._sizes[program.hash]
        shelf.remove(program.hash)
        gone = self.drop_if_unknown(program)  # which makes room for what is written then
        try:
            self._write_owner(program.owner, program.hash)
        except OSError:
            if program.path.exists():
                self._shelves[program.owner] = before
                self._files[program.hash], self._sizes[program.hash] = program.path, size
                raise
        return gone

    def forget(self, program: Program) -> None:
        """Drops a program that cannot be read, for all tenants."""
        for owner, shelf in self._shelves.items():
            if program.hash in shelf:
                shelf.remove(program.hash)
                self._write_owner(owner, program.hash)
        self.drop_if_unknown(program)

    def drop_if_unknown(self, program: Program) -> bool:
        """Removes the files of a program that no tenant keeps or uploads; whether it did."""
        if self.knows(program.hash) or program.hash in self._arriving:
            return False
        for path in (program.path, *self.compiled.glob(f"{program.hash}-*")):
            cache_files.remove(path)
        for known in (self._files, self._sizes, self._compiled_sizes, self._contents):
            known.pop(program.hash, None)
        return True

    def knows(self, program: str) -> bool:
        """Whether a tenant keeps a program."""
        return any(program in shelf for shelf in self._shelves.values())

    def count_compiled(self, program: str) -> None:
        """Counts the files that were compiled of a program."""
        self._compiled_sizes[program] = sum(map(_size, self.compiled.glob(f"{program}-*")))

    def _bytes(self, program: str) -> int:
        return self._sizes[program] + self._compiled_sizes.get(program, 0)

    def _program(self, hash_: str, owner: str) -> Program:
        path, kept = self._files[hash_], self._shelves[owner][hash_]
        name = kept.names[-1] if kept.names else ""
        return Program(hash_, name, kept.file, SUFFIXES[path.suffix], self._sizes[hash_], path, owner)


def _size(path: Path) -> int:
    """The bytes of a file; 0: another server that shares the folder has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0
