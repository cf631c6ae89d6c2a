"""Processes of inferlets and workers that begin as copies of one that has imported what they need, since to import
torch takes 1.5 s of a processor each time.

They are processes of their own with the arguments, descriptors and environment that they would have, but their parent
is the fork server, which ends with the tests, when its socket is closed. (The system's signal at the death of a parent
would come at the end of the thread that started it.) With the fixture `started_as_usual` they are started as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

NEEDS = {
    "pie_control.application.process": "pie_control.application.host",
    "pie_inference.serving": "pie_inference.serving.loop",
    "pie_inference.serving.follower": "pie_inference.serving.worker",
}
"""The modules that are started so, and what is imported for them before. Their second argument is their parent."""
STARTERS = ("pie_control.processes.process", "pie_inference.tensor_parallel.group")
"""The modules that start them."""
EXECUTABLE = sys.executable
"""Tests that put another program in its place want that one."""
MOST_BYTES, MOST_DESCRIPTORS = 1 << 17, 64
FIRST_FREE = 1000
"""No process asks for a descriptor of this number or above."""
ROOM = 2000
"""Bytes for the command line of a process."""
PR_SET_PDEATHSIG = 1
REAP = b"reap"


class ForkedProcess:
    """As much of `subprocess.Popen` as the product uses. `channel` leads to the fork server."""

    def __init__(self, channel: socket.socket, stderr: IO[bytes] | None) -> None:
        self.stderr = stderr
        self.returncode: int | None = None
        self.pid = int(channel.recv(64))
        self._channel = channel
        self._end = os.pidfd_open(self.pid)
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, self._end)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        with self._lock:
            if self.returncode is None:
                self._channel.send(REAP)
                self.returncode = int(self._channel.recv(64))
                self._channel.close()
            return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A fork server for one module and one environment."""

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [EXECUTABLE, __file__, str(theirs.fileno()), " " * ROOM],
                env=env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket.send(module.encode())  # not as an argument: who looks for processes of the module finds others

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], stderr: int | None
    ) -> ForkedProcess:
        """A process of the module; `stderr` is PIPE, or None for that of this process."""
        said, written = os.pipe() if stderr == subprocess.PIPE else (None, os.dup(2))
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(os.devnull, "rb") as nothing, open(written, "wb"), theirs:
            targets = {0: nothing.fileno(), 1: 1, 2: written, **{number: number for number in pass_fds}}
            asked = {
                "arguments": [arguments[0], str(self._process.pid), *arguments[2:]],
                "env": dict(env),
                "folder": os.getcwd(),
                "targets": list(targets),
                "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            }
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [theirs.fileno(), *targets.values()])
        return ForkedProcess(channel, None if said is None else open(said, "rb", 0))

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


class ForkServers:
    """Starts processes of the modules `NEEDS` by fork servers, and others as ever. It stands for the module
    `subprocess` in `STARTERS`."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, str], ForkServer] = {}
        self._rests = False

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        pass_fds: Sequence[int],
        env: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> ForkedProcess | subprocess.Popen[bytes]:
        module, *arguments = command[command.index("-m") + 1 :]
        if self._rests or module not in NEEDS or command[0] != EXECUTABLE:
            return subprocess.Popen(command, stdin=stdin, stderr=stderr, env=env, pass_fds=pass_fds)
        sys.audit("subprocess.Popen", EXECUTABLE, command, None, env)
        env = os.environ if env is None else env
        lasting = {name: value for name, value in env.items() if name != "PYTEST_CURRENT_TEST"}
        key = module, json.dumps(lasting, sort_keys=True)
        if key not in self._servers:
            self._servers[key] = ForkServer(module, lasting)
        return self._servers[key].start(arguments, env, pass_fds, stderr)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        self._rests = True
        try:
            yield
        finally:
            self._rests = False

    def end(self) -> None:
        for server in self._servers.values():
            server.end()


def serve(asking: socket.socket) -> dict[str, Any]:
    """Forks when it is asked to. Returns in the new process, with what was asked; else it ends with `asking`."""
    waiting = selectors.DefaultSelector()
    waiting.register(asking, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                channel = cast(socket.socket, key.fileobj)
                if channel.recv(64) == REAP:
                    channel.send(str(os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])).encode())
                waiting.unregister(channel)
                channel.close()
                continue
            data, received, _, _ = socket.recv_fds(asking, MOST_BYTES, MOST_DESCRIPTORS)
            if not data:
                os._exit(0)
            asked: dict[str, Any] = json.loads(data)
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                for each in [*waiting.get_map().values()]:
                    cast(socket.socket, each.fileobj).close()
                waiting.close()
                become(asked, dict(zip(asked["targets"], received[1:], strict=True)), server)
                return asked
            channel = socket.socket(fileno=received[0])
            waiting.register(channel, selectors.EVENT_READ, pid)
            channel.send(str(pid).encode())
            for descriptor in received[1:]:
                os.close(descriptor)


def become(asked: Mapping[str, Any], descriptors: Mapping[int, int], server: int) -> None:
    """Makes this process, a copy of the fork server, the one that is asked for."""
    end_with(server)
    high = {target: fcntl.fcntl(number, fcntl.F_DUPFD, FIRST_FREE) for target, number in descriptors.items()}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number < FIRST_FREE:
            with contextlib.suppress(OSError):
                os.close(number)
    for target, number in high.items():
        os.dup2(number, target)
        os.close(number)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])


def end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def show_as(words: Sequence[str]) -> None:
    """Writes the command line that tools show over that of the fork server."""
    stat = Path("/proc/self/stat").read_text()
    begin, end = (int(field) for field in stat.rpartition(")")[2].split()[45:47])
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def main() -> None:
    _, descriptor, _ = sys.argv
    sys.path[0] = os.getcwd()
    asking = socket.socket(fileno=int(descriptor))
    module = asking.recv(MOST_BYTES).decode()
    if not module:
        return  # nobody asks any more
    import_module(NEEDS[module])
    gc.collect()
    gc.freeze()  # else the first full collection in each process would write to all that is shared
    asked = serve(asking)
    sys.path[0] = asked["folder"]
    show_as([sys.executable, "-m", module, *asked["arguments"]])
    sys.argv = [module, *asked["arguments"]]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
