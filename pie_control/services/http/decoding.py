"""Bodies of responses, unpacked piece by piece: how much comes out at a time is bounded, whatever goes in."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from ...errors import RequestFailed

PIECE_BYTES = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS


def gunzipped(data: bytes, state: list[zlib._Decompress]) -> Iterator[bytes]:
    """Pieces of at most PIECE_BYTES; `state` goes on from call to call, empty at first. Raises RequestFailed."""
    while data:
        if not state or state[0].eof:  # files of several members follow each other
            state[:] = [zlib.decompressobj(_GZIP)]
        try:
            piece = state[0].decompress(data, PIECE_BYTES)
        except zlib.error as error:
            raise RequestFailed(f"the body of the response is not gzip, as its header says: {error}") from None
        data = state[0].unused_data if state[0].eof else state[0].unconsumed_tail
        if piece:
            yield piece
