"""The blobs of one inferlet: bytes from its client or from servers outside, which it names without reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..calls.input_image.image import Image
from ..errors import NotFound, QuotaExceeded


class Blob:
    """Bytes that a handle stands for. `name`: of one that came with the launch, for all to open."""

    __slots__ = ("data", "handles", "name")

    def __init__(self, data: bytes | bytearray, name: str | None = None) -> None:
        self.data = data
        self.name = name
        self.handles = 0


class BlobTable:
    """Blobs by name, and the bytes that the inferlet holds outside of its sandbox: those of blobs, and of what was made
    of them. A blob is kept until its last handle is closed, or the inferlet ends."""

    __slots__ = ("_blobs", "_limit", "bytes")

    def __init__(self, limit: int, blobs: Mapping[str, bytes]) -> None:
        """Whoever launches the inferlet has bounded these blobs."""
        self._limit = limit
        self._blobs = {name: Blob(data, name) for name, data in blobs.items()}
        self.bytes = sum(map(len, blobs.values()))

    @property
    def names(self) -> list[str]:
        """The names of those that are kept, in the order in which they came."""
        return list(self._blobs)

    def open(self, name: str) -> Blob:
        """The blob with this name, for a new handle. Raises NotFound."""
        blob = self._blobs.get(name)
        if blob is None:
            known = ", ".join(map(repr, self._blobs)) or "none"
            raise NotFound(f"there is no blob {name!r}; the client sent: {known} (pie run --blob NAME=FILE)")
        blob.handles += 1
        return blob

    def hold(self, blob: Blob) -> None:
        """A further holder of a blob that is open, who will close it."""
        blob.handles += 1

    def adopt(self, data: bytes | bytearray) -> Blob:
        """A blob without a name, for a new handle; its bytes are reserved."""
        blob = Blob(data)
        blob.handles = 1
        return blob

    def close(self, blob: Blob) -> None:
        """A handle is closed."""
        blob.handles -= 1
        if not blob.handles:
            if blob.name is not None:
                del self._blobs[blob.name]
            self.release(len(blob.data))

    def reserve(self, size: int) -> None:
        """Counts bytes of blobs to come, or made of blobs. Raises QuotaExceeded."""
        if self.bytes + size > self._limit:
            raise QuotaExceeded(
                f"{self.bytes} bytes of blobs and images are held and {size} more needed, the limit is {self._limit}: "
                "close blobs and drop images first (--max-blob-bytes)"
            )
        self.bytes += size

    def release(self, size: int) -> None:
        """Reserved bytes are free again."""
        self.bytes -= size


class KeptBlob(NamedTuple):
    """What the future of `keep-body` gives."""

    blob: Blob
    blobs: BlobTable

    def not_taken(self) -> None:
        """Nobody will have its handle."""
        self.blobs.close(self.blob)


class LoadedImage(NamedTuple):
    """What the future of `load-image` gives. Its bytes are reserved."""

    image: Image
    tokens: Sequence[int]  # what stands for it in a prompt
    blobs: BlobTable

    def not_taken(self) -> None:
        """Nobody will have its handle."""
        self.blobs.release(self.image.nbytes)
