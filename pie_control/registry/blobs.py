"""Blobs that clients have uploaded, by their content: kept for a while, for the inferlets that will be launched with
them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..errors import BadRequest, Overloaded, StorageFull, UnknownName
from ..host_memory import TenantBytes

KEPT_SECONDS = 600.0
"""Since a blob was uploaded or used."""
MOST_BYTES = 256 << 20
"""Most bytes of a tenant's blobs, unless a single one may be larger. Those that were used longest ago make room."""
PART = 8
"""The blobs of all tenants together have this part of the machine's memory: an eighth."""
OF_BLOBS = f"of uploaded blobs, which are kept {KEPT_SECONDS / 60:g} minutes: try again later"
BLOB_BYTES = 512
"""What a blob counts beside its bytes."""
MOST_NAME = 128
"""Characters of the name that an inferlet knows a blob by."""
MOST_BLOBS = 64
"""Most blobs of one inferlet."""


class _Kept(NamedTuple):
    data: bytes
    until: float  # on the clock


class BlobStore:
    """Those of a tenant, in memory. `most` is the bound of what one inferlet holds, in bytes; `memory`: of the blobs of
    all tenants."""

    def __init__(
        self, most: int, memory: TenantBytes, tenant: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._memory = memory
        self._tenant = tenant
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # what was used longest ago comes first
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def put(self, data: bytes) -> str:
        """Keeps a blob; returns its content hash. Raises StorageFull for one that no inferlet could hold, Overloaded if
        those of other tenants take the memory."""
        if len(data) > self._most:
            raise StorageFull(f"the blob has {len(data)} bytes, more than {self._most} (see --max-blob-bytes)")
        digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
        if digest not in self._kept:
            self._make_room(len(data) + BLOB_BYTES)
        self._keep(digest, data)
        self._drop_old()
        if self._timer is None and self._kept:
            self._drop_later()
        return digest

    def _drop_old(self) -> None:
        most, now = max(MOST_BYTES, self._most + BLOB_BYTES), self._clock()
        while self._kept and (self._bytes > most or next(iter(self._kept.values())).until < now):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, dropped = self._kept.popitem(last=False)
        self._bytes -= len(dropped.data) + BLOB_BYTES
        self._memory.release(self._tenant, len(dropped.data) + BLOB_BYTES)

    def _make_room(self, size: int) -> None:
        """Counts a blob that is not kept yet."""
        while True:
            try:
                self._memory.hold(self._tenant, size)
            except Overloaded:
                if not self._kept:
                    raise
                self._drop_oldest()
            else:
                self._bytes += size
                return

    def _drop_later(self) -> None:
        """Drops those that nobody uses in time, also if no other one comes."""

        def drop() -> None:
            self._timer = None
            self._drop_old()
            if self._kept:
                self._drop_later()

        seconds = next(iter(self._kept.values())).until - self._clock()
        self._timer = asyncio.get_running_loop().call_later(seconds, drop)

    def _keep(self, digest: str, data: bytes) -> None:
        self._kept[digest] = _Kept(data, self._clock() + KEPT_SECONDS)
        self._kept.move_to_end(digest)

    def find(self, blobs: Mapping[str, str]) -> dict[str, bytes]:
        """The bytes of blobs, given by their hashes, by the names under which an inferlet will know them. Raises
        UnknownName; BadRequest if one inferlet cannot have all of them."""
        if len(blobs) > MOST_BLOBS:
            raise BadRequest(f"{len(blobs)} blobs are more than an inferlet is launched with ({MOST_BLOBS})")
        found = {}
        for name, digest in blobs.items():
            if not 0 < len(name) <= MOST_NAME:
                raise BadRequest(f"the name of a blob has 1 to {MOST_NAME} characters, not {len(name)}")
            kept = self._kept.get(digest)
            if kept is None or kept.until < self._clock():
                raise UnknownName(f"no blob {digest!r}: upload it again; blobs are kept {KEPT_SECONDS / 60:g} minutes")
            self._keep(digest, kept.data)
            found[name] = kept.data
        size = sum(map(len, found.values()))
        if size > self._most:
            raise BadRequest(f"the blobs have {size} bytes, more than {self._most} (see --max-blob-bytes)")
        return found
