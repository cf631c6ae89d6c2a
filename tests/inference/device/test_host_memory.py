"""Large memory on the host."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pie_control.inference_client.process import worker_environment
from pie_inference.device.host_memory import HUGE_PAGE, lazy_zero_bytes


@pytest.mark.parametrize("count", [0, 1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 17])
def test_memory_is_zero_and_can_be_written(count: int) -> None:
    memory = lazy_zero_bytes(count)
    assert memory.size == count
    assert not memory.any()
    memory[:] = 1
    assert memory.all()


def test_large_memory_begins_at_a_huge_page() -> None:
    assert lazy_zero_bytes(5 * HUGE_PAGE + 1).ctypes.data % HUGE_PAGE == 0


RESIDENT = """
import os
import numpy as np
from pie_inference.options.freed_memory import release_freed

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

before = resident()
large = np.ones(64 << 20, np.uint8)
above = bytearray(1 << 20)
del large
kept = resident()
release_freed()
print(kept - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_a_worker_keeps_freed_memory_until_it_is_released() -> None:
    command = [sys.executable, "-c", RESIDENT]
    environment = worker_environment(os.environ)
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    kept, released = map(int, said.split())
    assert kept >= 60
    assert released < 20


def test_a_worker_leaves_what_the_user_has_set() -> None:
    environment = worker_environment({"GLIBC_TUNABLES": "glibc.malloc.check=1", "HOME": "/home"})
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
    assert {"HOME", "OMP_WAIT_POLICY"} <= set(environment)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_large_memory_is_private() -> None:
    """Linux gives huge pages to shared memory only where it is told so for all of the system."""
    memory = lazy_zero_bytes(5 * HUGE_PAGE)
    mappings = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    [flags] = [
        flags
        for span, flags, *_ in mappings
        if int(span.partition("-")[0], 16) <= memory.ctypes.data < int(span.partition("-")[2], 16)
    ]
    assert flags == "rw-p"
