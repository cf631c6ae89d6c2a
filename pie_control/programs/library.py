"""The programs of a server: uploading, listing and deleting them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from ..errors import Overloaded, StorageFull
from .prepared import PreparedPrograms
from .program_host import ProgramHost
from .store import DEFAULT_OWNER, Program, ProgramInfo, ProgramStore

logger = logging.getLogger(__name__)

UPLOADING_BYTES = 512 << 20
"""Content of the uploads that are under way, half of it of one tenant; a single one is never refused for its size."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO})
"""What the system says where nothing can be written, or not so much."""


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Raises StorageFull where the block finds that the disk takes no more files; the log has what the system said."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        logger.error("the disk takes no more programs: %s", error)
        raise StorageFull(
            "the disk of the server takes no more: its operator can make room in --cache-dir or --state"
        ) from None


class ProgramLibrary:
    """Programs of all tenants. Belongs to one event loop, which it never holds up: what takes long runs on threads and
    in processes."""

    def __init__(self, store: ProgramStore, prepared: PreparedPrograms) -> None:
        self._store = store
        self._prepared = prepared
        self._uploading: Counter[str] = Counter()  # bytes, by owner
        self.in_use: Callable[[], Collection[str]] = frozenset
        """Gives the hashes of programs that are not to be deleted to make room."""

    async def upload(
        self, data: bytes, name: str, host: ProgramHost, owner: str = DEFAULT_OWNER, file: str = ""
    ) -> ProgramInfo:
        """Stores a program and makes it ready to launch, with the help of any host; raises BadProgram, BadRequest (a
        name that cannot be), StorageFull, Overloaded. A program that is refused leaves nothing. Where there is no room,
        programs without a name go, those first that came first."""
        for held, most in ((self._uploading[owner], UPLOADING_BYTES // 2), (self._uploading.total(), UPLOADING_BYTES)):
            if held and held + len(data) > most:
                raise Overloaded(f"{held} bytes of programs are being uploaded: try again in a while")
        self._uploading[owner] += len(data)
        try:
            described = await asyncio.to_thread(self._store.describe, data, name, owner, file)
            return await self._upload(described, host, data)
        finally:
            self._uploading[owner] -= len(data)
            self._uploading += Counter()  # drops those that upload nothing

    def bound(self, owner: str, programs: int | None, stored_bytes: int | None) -> None:
        """How many programs an owner may keep, and bytes of them; None: as many as each."""
        self._store.bound(owner, programs, stored_bytes)

    async def _upload(self, program: Program, host: ProgramHost, data: bytes) -> ProgramInfo:
        try:
            with self._store.arriving(program), keeping():
                self._make_room(program)
                await self._prepared.prepare(program, host, data)
                await asyncio.to_thread(self._store.write, program, data)
                self._store.count_compiled(program.hash)
                self._make_room(program)
                return self._store.enter(program)
        except BaseException:
            if self._store.drop_if_unknown(program):
                self._prepared.forget(program.hash)
            raise

    def _make_room(self, program: Program) -> None:
        for gone in self._store.make_room(program, {*self.in_use(), *self._prepared.under_way}):
            self._prepared.forget(gone)

    async def find(self, reference: str, host: ProgramHost, owner: str = DEFAULT_OWNER) -> Program:
        """A program that can be launched on a host, until the caller waits for something else; raises UnknownName,
        BadRequest, BadProgram, Overloaded."""
        program = self._store.get(reference, owner)
        await self._prepared.prepare(program, host)
        return program

    def all(self, owner: str = DEFAULT_OWNER) -> tuple[ProgramInfo, ...]:
        """The programs that a tenant keeps."""
        return tuple(map(self._store.info, self._store.all(owner)))

    def remove(self, reference: str, owner: str = DEFAULT_OWNER) -> ProgramInfo:
        """Deletes a program of a tenant. Its inferlets go on. Raises UnknownName, BadRequest, StorageFull."""
        program = self._store.get(reference, owner)
        info = self._store.info(program)
        with keeping():
            if self._store.remove(program):
                self._prepared.forget(program.hash)
        return info

    def lost(self, host: ProgramHost) -> None:
        """A host has ended, with all that it had; another process may serve under the same object from now on."""
        self._prepared.lost(host)

    async def close(self) -> None:
        """Stops uploads and launches that are under way. Idempotent."""
        await self._prepared.close()
