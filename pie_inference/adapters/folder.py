"""The folder of an adapter, which a stranger may have made: what of it is read, and what is not.

A pipe would block whoever opens it, a device has no end, and a link may lead anywhere. So a file is opened without
waiting, and read only if it is a regular one that lies where it may. It is read and not memory-mapped: one that is
shortened meanwhile, as by somebody who copies a new version over it, is an error here. A mapped one would end the whole
worker (SIGBUS).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdapterError

FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class AdapterFolder:
    """A folder on this machine. Errors name its files, not where it lies: whoever asked for it knows, or need not."""

    path: Path
    inside: Path | None = None  # where its files must lie, wherever links lead; None: anywhere

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).exists()

    def read(self, name: str, most_bytes: int, hint: str = "") -> bytes:
        """The bytes of a file. Raises AdapterError, with the hint behind it if there is no such file."""
        place = self._place(name)
        try:
            with open(place, "rb", opener=_open_at_once) as file:
                size = os.fstat(file.fileno()).st_size
                if size > most_bytes:
                    raise AdapterError(f"{name}: {size} bytes are more than the {most_bytes} for which there is room")
                data = file.read(size)
        except FileNotFoundError:
            raise AdapterError(f"{name}: there is no such file{hint}") from None
        except OSError as error:
            raise AdapterError(f"{name}: unreadable: {error.strerror}") from None
        if len(data) < size:
            raise AdapterError(f"{name}: it was shortened while it was read: try again")
        return data

    def _place(self, name: str) -> Path:
        """Where a file lies once all links are followed. Raises AdapterError."""
        place = Path(os.path.realpath(self.path / name))
        if self.inside is not None and not place.is_relative_to(self.inside):
            raise AdapterError(f"{name}: it is a link that leads out of --adapter-dir: copy the file there")
        return place


def _open_at_once(path: str, _: int) -> int:
    """Opens a regular file. Raises OSError."""
    descriptor = os.open(path, FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file: put the file itself there")
