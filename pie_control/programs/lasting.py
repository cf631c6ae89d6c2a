"""Makes the objects of the Python guest's snapshot immortal, so that instances do not write to count their references.

The guest says where its objects are (`inferlet_sdk.guest.lasting`). The snapshot is the data segments of one module of
the component; there the count of references of each object becomes that of an immortal one (PEP 683), which CPython
neither changes nor looks at. Nothing else changes, so the component stays valid.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator

from ..errors import ConfigError
from ..sandbox.encoding.sections import number, sections

MARK = struct.pack("<IIII", 0x2B6C1D93, 0x1E75A0C7, 0x34D9F26B, 0x0F83B45E)
"""The mark that `inferlet_sdk.guest.lasting` writes."""
IMMORTAL = 5 << 28
"""Count of references of an immortal object where pointers have 32 bits."""
MOST_REFERENCES = 1 << 19
"""More have only immortal objects; and free memory begins with an address, which is higher."""
MODULE = b"\0asm\1\0\0\0"
MODULES, DATA = 1, 11
"""Numbers of sections: of a component, and of a module."""


def made_immortal(component: bytes) -> bytes:
    """The component with immortal objects. Raises ConfigError if it has no such snapshot."""
    for kind, begin, end in sections(component):
        if kind == MODULES and component[begin : begin + 8] == MODULE:
            for inner, first, last in sections(component, begin + 8, end):
                snapshot = _Snapshot(component, first, last) if inner == DATA else None
                if snapshot and (place := snapshot.image.find(MARK)) >= 0:
                    return snapshot.with_immortal(place + len(MARK))
    raise ConfigError("the built Python guest does not say where its objects are: reinstall pie")


class _Snapshot:
    """Memory, as the data segments in one section of a module have it."""

    def __init__(self, component: bytes, first: int, last: int) -> None:
        self._component = component
        self._segments = list(_segments(component, first, last))  # address, place in the file, size
        top = max((address + size for address, _, size in self._segments), default=0)
        self.image = bytearray(top)
        for address, place, size in self._segments:
            self.image[address : address + size] = component[place : place + size]

    def with_immortal(self, place: int) -> bytes:
        """The component, in which the objects that are listed at an address are immortal."""
        (count,) = struct.unpack_from("<I", self.image, place)
        listed = struct.unpack_from(f"<{count}I", self.image, place + 4)
        known, changed = set(listed), bytearray(self._component)
        starts = [address for address, _, _ in self._segments]
        for one in listed:
            if one + 8 > len(self.image):
                continue  # it is gone, and nothing lies there now
            references, kind = struct.unpack_from("<II", self.image, one)
            if not 0 < references < MOST_REFERENCES or kind not in known:
                continue  # it is gone, or is immortal already
            address, at, size = self._segments[bisect_right(starts, one) - 1]
            if one + 4 <= address + size:
                struct.pack_into("<I", changed, at + one - address, IMMORTAL)
        return bytes(changed)


def _segments(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Address, place and size of the active segments of a section, whose addresses are constants."""
    count, place = number(data, place)
    for _ in range(count):
        if data[place : place + 2] != b"\x00\x41":  # an active segment; i32.const
            return
        address, place = number(data, place + 2)
        size, place = number(data, place + 1)  # behind the end of the expression
        yield address, place, size
        place += size
