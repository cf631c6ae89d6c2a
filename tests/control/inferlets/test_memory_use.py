"""Who is charged for memory of the process."""

from __future__ import annotations

import mmap
import sys

import pytest

from pie_control.config import InferletLimits
from pie_control.inferlets.memory_use import READ_AFTER_SECONDS, MemoryUse
from pie_control.inferlets.relations.children import Kin

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def inferlet(number: int) -> Kin:
    return Kin(number, InferletLimits(), None)


def touch(memory: mmap.mmap, size: int) -> None:
    """Page by page: what is written from would be memory of the process, too."""
    for _ in range(size // mmap.PAGESIZE):
        memory.write(bytes(mmap.PAGESIZE))


def test_growth_is_charged_by_the_time_of_turns() -> None:
    use, small, large = MemoryUse(), inferlet(1), inferlet(2)
    with mmap.mmap(-1, 128 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        use.settle()
        use.charge(small, READ_AFTER_SECONDS / 10)
        touch(memory, 32 * MIB)
        use.charge(large, READ_AFTER_SECONDS * 9.9)
        assert small.memory_bytes < 4 * MIB
        assert 24 * MIB < large.memory_bytes < 48 * MIB
    use.close()


def test_what_grows_between_turns_is_nobodys() -> None:
    use, one = MemoryUse(), inferlet(1)
    with mmap.mmap(-1, 128 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        use.settle()
        touch(memory, 32 * MIB)
        use.settle_if_idle()
        use.charge(one, READ_AFTER_SECONDS)
        assert one.memory_bytes < 8 * MIB
        touch(memory, 32 * MIB)
        use.charge(one, 0.0)  # too short to be measured, and not read yet
        use.settle_if_idle()
        assert one.memory_bytes < 8 * MIB
        use.settle()
        assert 24 * MIB < one.memory_bytes < 48 * MIB
    use.close()
