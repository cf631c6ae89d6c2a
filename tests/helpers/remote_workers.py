"""Workers that listen for servers, in processes as `pie worker` starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pie_inference.options.secret import SECRET_VARIABLE
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tree import ROOT

SECRET, OTHER_SECRET = "0123456789abcdef" * 4, "fedcba9876543210" * 4
PIE_WORKER = ("-m", "pie_control.cli", "worker")
STAND_IN = ("-m", "pie_inference.testing.paced_worker", "--pace", "1ms", "--name", "demo")
"""What `pie worker --worker paced:1ms` becomes."""
OTHER_VERSION = (
    "-c",
    "import sys; from pie_inference import protocol; protocol.PROTOCOL_VERSION = 99; "
    "from pie_inference.testing.paced_worker import main; sys.exit(main())",
)
"""Instead of `pie worker`: a worker of another version."""
UNCHECKED = (
    "-c",
    "import sys; from pie_inference.serving import sessions; sessions.check = lambda worker: None; "
    "from pie_inference.testing.paced_worker import main; sys.exit(main())",
)
"""A worker that does not look whether it can be used."""
_LOADS = """
import contextlib, os, sys, time
from pie_inference.serving import sessions
from pie_inference.testing import paced_worker

run = sessions.run

def run_slowly(place, open_worker, serve):
    @contextlib.contextmanager
    def open_slowly():
        while not os.path.exists(os.environ["MAY_BE_LOADED"]):
            sys.stderr.write("loading weights: 50%\\r")
            time.sleep(0.05)
        with open_worker() as worker:
            yield worker
    return run(place, open_slowly, serve)

sessions.run = run_slowly
sys.exit(paced_worker.main())
"""
LOADS = ("-c", _LOADS)
"""A worker that loads until there is the file MAY_BE_LOADED, and says how far it is."""


def free_address() -> str:
    """At which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class RemoteWorker:
    """A process, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        """Where it listens, as it says."""
        listens = "listens at "
        self.until_it_says(listens)
        return self.said.partition(listens)[2].split()[0]

    @property
    def said(self) -> str:
        return "".join(self._said)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self._said.append(line)
                self._news.notify_all()

    def until_it_says(self, text: str, times: int = 1) -> None:
        with self._news:
            told = self._news.wait_for(lambda: self.said.count(text) >= times, HANG_SECONDS)
        assert told, self.said

    def ends(self) -> int:
        """Its status, once it has ended and all that it said is known."""
        status = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        return status


@contextmanager
def remote_worker(
    *arguments: str,
    address: str = "tcp://127.0.0.1:0",
    secret: str | None = SECRET,
    program: Sequence[str] | None = None,
    ready: bool = True,
) -> Iterator[RemoteWorker]:
    """A worker; without arguments one that stands in for a GPU. `ready`: waits until it is."""
    program = program or (PIE_WORKER if arguments else STAND_IN)
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    if secret is not None:
        environment[SECRET_VARIABLE] = secret
    command = [sys.executable, *program, "--listen", address, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    with process:
        worker = RemoteWorker(process)
        try:
            if ready:
                worker.until_it_says("is ready")
            yield worker
        finally:
            process.kill()
            worker.ends()
