"""Memory of the machine, and what this process holds of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pie_inference.control_groups import memory_limits

from .errors import ConfigError, Overloaded, TooManyRequests

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
UNKNOWN_MEMORY = 4 << 30
"""Taken for the memory of a machine that does not tell it."""
LEAST_ADDRESSES = 16 << 30
"""Bytes: a few inferlets and a small model."""


def machine_memory() -> int:
    """Bytes that this process may have at most: the machine's memory, or less if its control groups have a limit. 0:
    not known."""
    machine = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES if hasattr(os, "sysconf") else 0
    return min([machine, *memory_limits()])


def check_address_space() -> None:
    """Raises ConfigError if a limit of addresses (`ulimit -v`) leaves no room for inferlets."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and most < LEAST_ADDRESSES:
        raise ConfigError(
            f"this process may have {most >> 30} GiB of addresses, and each inferlet reserves 4 GiB of them, though it "
            "takes little memory: raise the limit, as by `ulimit -v unlimited`"
        )


def resident_memory(pid: int) -> int:
    """Bytes that a process holds, as `MemoryMeter` counts them; 0: not known, or there is no such process."""
    with suppress(OSError):
        return _held(Path(f"/proc/{pid}/statm").read_bytes())
    return 0


def _held(statm: bytes) -> int:
    _, resident, shared, _ = statm.split(None, 3)
    return (int(resident) - int(shared)) * PAGE_BYTES


class MemoryMeter:
    """How the memory of this process grows. What it shares with files (code, images of components) does not count.
    Where Linux' /proc is missing, all is 0."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.resident = self._read()  # bytes, at the last reading

    def _read(self) -> int:
        if self._file < 0:
            return 0
        return _held(os.pread(self._file, 128, 0))

    def growth(self) -> int:
        """Bytes since the last reading; negative if there are less."""
        before, self.resident = self.resident, self._read()
        return self.resident - before

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class TenantBytes:
    """Bytes that tenants hold, of one part in so many of the machine's memory. A tenant may have half of these."""

    def __init__(self, part: int, what: str) -> None:
        """`what`: of what the bytes are, and what to do where there are too many, for errors."""
        self._most = (machine_memory() or UNKNOWN_MEMORY) // part
        self._what = what
        self._held: dict[str, int] = {}  # by tenant
        self._total = 0

    def hold(self, tenant: str, count: int) -> None:
        """A tenant holds more. Raises TooManyRequests and Overloaded."""
        held = self._held.get(tenant, 0) + count
        if held > self._most // 2:
            raise TooManyRequests(f"a tenant may have {self._most >> 21} MiB {self._what}")
        if self._total + count > self._most:
            raise Overloaded(f"the server takes {self._most >> 20} MiB {self._what}")
        self._held[tenant] = held
        self._total += count

    def release(self, tenant: str, count: int) -> None:
        """A tenant holds less."""
        self._total -= count
        self._held[tenant] = self._held.get(tenant, 0) - count
        if not self._held[tenant]:
            del self._held[tenant]
