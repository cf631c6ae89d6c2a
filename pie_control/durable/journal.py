"""What the next commit will have, in a file that survives the process: an append takes microseconds."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .commits import Put, Write

NAME = "journal"
HEAD = struct.Struct("<II")
"""Before each record: its length and its CRC-32."""
MOST_BYTES = 64 << 20
"""The file has at most so many, while nothing can be committed."""
CLEAR_BYTES = 1 << 20
"""From this size on it loses what is committed."""


class Journal:
    """Records of writes, each with a number that grows. A record is whole or not there: one that a kill has cut off
    was never acknowledged."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def begin_anew(self) -> None:
        """Its file was removed. Raises OSError."""
        before = self._file
        self._open()
        os.close(before)

    def records(self) -> Iterator[tuple[int, list[Write]]]:
        """What is there, in order: the number and the writes of each."""
        return records_of(os.pread(self._file, self._size, 0))  # the file may be removed

    def append(self, number: int, writes: Sequence[Write]) -> bool:
        """Whether these writes survive the process from now on; False: the disk or the file is full."""
        try:
            body = msgspec.msgpack.encode((number, writes))
            record = HEAD.pack(len(body), zlib.crc32(body)) + body
            if self._size + len(record) > MOST_BYTES:
                return False
            if os.write(self._file, record) == len(record):
                self._size += len(record)
                return True
        except (OSError, ValueError):  # a text that UTF-8 cannot hold is for the commit to tell
            pass
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._size = MOST_BYTES  # nobody would read what came behind a part of a record
        return False

    def committed(self, pending: Sequence[Put] = (), all_of_it: bool = False) -> None:
        """Everything but what is pending is in the database, so a large file loses it; `all_of_it`: also a small
        one."""
        if self._size > (0 if all_of_it else CLEAR_BYTES):
            with contextlib.suppress(OSError):
                if pending:
                    self._keep(pending)
                else:
                    os.ftruncate(self._file, 0)
                    self._size = 0

    def _keep(self, pending: Sequence[Put]) -> None:
        path = self.path.with_name(f"{self.path.name}.new")
        path.unlink(missing_ok=True)
        with contextlib.closing(Journal(path)) as made:
            if all(made.append(number, writes) for number, writes in pending if number):
                os.replace(path, self.path)
                self._file, self._size, made._file = made._file, made._size, self._file

    def close(self) -> None:
        os.close(self._file)


def records_of(data: bytes) -> Iterator[tuple[int, list[Write]]]:
    """The records of a journal, by its bytes."""
    place = 0
    while place + HEAD.size <= len(data):
        length, checksum = HEAD.unpack_from(data, place)
        body = data[place + HEAD.size : place + HEAD.size + length]
        if not length or len(body) < length or zlib.crc32(body) != checksum:
            return  # cut off, or zeros that were never written
        number, writes = msgspec.msgpack.decode(body)
        yield number, [(statement, values) for statement, values in writes]
        place += HEAD.size + length
