"""Workers as child processes: their modules, their environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from pie_inference.options.secret import SECRET_VARIABLE
from pie_inference.protocol.frames import DESCRIPTOR

from ..processes.process import ChildProcess

log = logging.getLogger("pie.worker")

WORKER, PACED_WORKER = "pie_inference.serving", "pie_inference.testing.paced_worker"
"""The modules that are workers: one that runs a model, and one that only takes the time of one."""

SPINNING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""OpenMP spins only for a moment while it waits: long spinning would take the control process's core, and without any
each operation pays for waking a thread (2 threads, 160M parameters: 10 % of a wave)."""
MALLOC = ("hugetlb=1", "mmap_threshold=4294967296", "trim_threshold=4294967296")
KEEPING = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{setting}" for setting in MALLOC)}
"""malloc keeps what is freed, in huge pages where it can: else each large tensor of each layer is new memory, which the
system hands out page by page (a tensor of 32 MB: 38 ms in place of 3; a prompt of 1024 tokens makes one in each layer).
"""


def worker_environment(base: Mapping[str, str], secret: str | None = None) -> dict[str, str]:
    """The environment of a process that computes; what `base` says stands, but for the secret."""
    own = {name: value for name, value in base.items() if name != SECRET_VARIABLE}
    return {**SPINNING, **KEEPING, **own, **({} if secret is None else {SECRET_VARIABLE: secret})}


def start_worker(module: str, arguments: Sequence[str], descriptor: int, on_exit: Callable[[], None]) -> ChildProcess:
    """A worker that speaks over the socket `descriptor`, which it inherits."""
    command = ["--endpoint", f"{DESCRIPTOR}{descriptor}", *arguments]
    return ChildProcess("worker", log, module, command, worker_environment(os.environ), on_exit, (descriptor,))
