"""Bodies of responses, unpacked piece by piece: how much comes out at a time is bounded, and how much work it is to
find out that nothing comes, whatever goes in."""

from __future__ import annotations

import zlib

from ...errors import RequestFailed

PIECE_BYTES = 64 << 10
MEMBERS = 64
"""Files of gzip behind each other, however small."""
MEMBER_BYTES = 4 << 10
"""Least bytes of each further one, on average: those of ordinary files hold 64 KiB."""
_GZIP = 16 + zlib.MAX_WBITS


class Gunzip:
    """Unpacks what it is fed. It belongs to one thread at a time."""

    def __init__(self) -> None:
        self._packed = b""
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._size = 0  # of what came out

    def feed(self, data: bytes) -> None:
        """More of the body, once `piece` has given all of what was fed before."""
        self._packed = data

    def piece(self) -> bytes:
        """At most PIECE_BYTES of what was fed; empty at its end. Takes milliseconds at most. Raises RequestFailed."""
        found, room = [], PIECE_BYTES
        while self._packed and room:
            if self._member is None or self._member.eof:
                self._member = self._next_member()
            try:
                part = self._member.decompress(self._packed, room)
            except zlib.error as error:
                raise RequestFailed(f"the body of the response is not gzip, as its header says: {error}") from None
            self._packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self._size += len(part)
            room -= len(part)
            found.append(part)
        return b"".join(found)

    def _next_member(self) -> zlib._Decompress:
        self._members += 1
        if self._members > MEMBERS + self._size // MEMBER_BYTES:
            raise RequestFailed(
                f"the body of the response has {self._members} files of gzip for {self._size} bytes: more than "
                f"{MEMBERS} are taken only if they hold {MEMBER_BYTES} bytes each"
            )
        return zlib.decompressobj(_GZIP)

    @property
    def is_cut_off(self) -> bool:
        """Whether the end of what was fed is no end of a file."""
        return self._member is not None and not self._member.eof
