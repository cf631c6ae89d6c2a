"""Memory of the machine and of this process."""

from __future__ import annotations

import mmap
import resource
import subprocess
import sys

import pytest

from pie_control import host_memory
from pie_control.config import build_config
from pie_control.errors import ConfigError, Overloaded, TooManyRequests
from pie_control.host_memory import MemoryMeter, TenantBytes, machine_memory, resident_memory
from pie_control.runtime import build_server

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_growth_is_what_was_touched() -> None:
    assert machine_memory() > 64 * MIB
    meter = MemoryMeter()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        meter.growth()
        memory[: 32 * MIB] = bytes(32 * MIB)
        assert 24 * MIB < meter.growth() < 48 * MIB
        assert meter.growth() < 8 * MIB
        before = meter.resident
    assert meter.growth() < -24 * MIB
    assert meter.resident < before
    meter.close()
    meter.close()
    assert meter.growth() <= 0


def test_the_memory_of_another_process_is_known() -> None:
    code = "held = bytearray(b'x') * (64 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert resident_memory(process.pid) > 64 << 20
        process.stdin.close()
    assert resident_memory(process.pid) == 0


def test_a_server_with_too_few_addresses_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 30, resource.RLIM_INFINITY))
    with pytest.raises(ConfigError, match=r"8 GiB of addresses.* `ulimit -v unlimited`"):
        build_server(build_config({}).resolved())


def test_tenants_share_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 400)
    held = TenantBytes(4, "of bytes")
    held.hold("alice", 50)
    with pytest.raises(TooManyRequests, match="a tenant may have 0 MiB of bytes"):
        held.hold("alice", 1)
    held.hold("bob", 40)
    with pytest.raises(Overloaded, match="the server takes 0 MiB of bytes") as refused:
        held.hold("carol", 11)
    assert refused.value.status == 503
    held.release("alice", 50)
    held.hold("carol", 50)
