"""A child process: its stderr, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pie_inference.options.lifetime import command_of, signals_held

from .status_line import StatusLine

TAIL_LINES = 30
POLL_SECONDS = 0.2
KILL_SECONDS = 5.0


class ChildProcess:
    """A module that runs in a process of its own, with `--parent` and the number of this process before its
    `arguments`. `name` says what it is in the log `log`. It inherits the descriptors `pass_fds`.
    `on_exit` is called once on the loop's thread when the process has ended, but not by `end`."""

    def __init__(
        self,
        name: str,
        log: logging.Logger,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_exit: Callable[[], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""
        self._status = StatusLine(log)
        self._heard = time.monotonic()
        with signals_held():
            self._process = subprocess.Popen(
                [*command_of(module), "--parent", str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=pass_fds,
            )
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._loop.add_reader(self._stderr, self._read_stderr)
        self._exit_watch = _ExitWatch(self._process, self._exited)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process at once, even one that is stopped; `on_exit` follows."""
        self._process.kill()

    @property
    def silent_seconds(self) -> float:
        """Time since it started or last wrote something, as it does while it loads a large model."""
        return time.monotonic() - self._heard

    def describe_end(self) -> str:
        """How the process ended and what it said last: the predicate of a sentence."""
        self._read_stderr()
        code = self._process.poll()
        how = "runs" if code is None else f"ended with status {code}" if code >= 0 else _killed_by(-code)
        said = "\n".join(self._tail)
        return how + (f"; its last words:\n{said}" if said else "")

    async def end(self, patience: float) -> None:
        """Waits at most `patience` seconds for the process to end by itself, then kills it."""
        if not await self._wait(patience):
            self._process.kill()
            await self._wait(KILL_SECONDS)
        self._release()

    async def _wait(self, seconds: float) -> bool:
        deadline = self._loop.time() + seconds
        while self._process.poll() is None and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        return self._process.poll() is not None

    def _exited(self) -> None:
        self._process.wait()
        self._on_exit()

    def _release(self) -> None:
        self._exit_watch.close()
        if self._process.stderr is not None and not self._process.stderr.closed:
            self._read_stderr()
            self._loop.remove_reader(self._stderr)
            self._process.stderr.close()

    def _read_stderr(self) -> None:
        """Takes what there is to read; the lines go to the log and into the tail."""
        if self._process.stderr is None or self._process.stderr.closed:
            return
        try:
            while data := os.read(self._stderr, 65536):
                self._heard = time.monotonic()
                self._take_lines(data)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._stderr)  # end of file

    def _take_lines(self, data: bytes) -> None:
        """Lines end in a newline; what ends in a carriage return is progress, which the next one replaces."""
        *lines, rest = (self._partial + data).split(b"\n")
        *progress, self._partial = rest.split(b"\r")
        if lines:
            self._status.clear()
        for line in lines:
            text = line.rpartition(b"\r")[2].decode(errors="replace")
            self._tail.append(text)
            self._log.warning("%s (process %d): %s", self._name, self.pid, text)
        if progress:
            self._status.show(progress[-1].decode(errors="replace"))


class _ExitWatch:
    """Tells the loop when a child has ended: at once where the system has process descriptors, else by asking often."""

    def __init__(self, process: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._on_exit = on_exit
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        if hasattr(os, "pidfd_open"):
            self._descriptor = os.pidfd_open(process.pid)
            self._loop.add_reader(self._descriptor, self._fire)
        else:
            self._poll()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        if self._process.poll() is None:
            self._timer = self._loop.call_later(POLL_SECONDS, self._poll)
        else:
            self._fire()

    def _fire(self) -> None:
        self.close()
        self._on_exit()


def _killed_by(number: int) -> str:
    why = ""
    if number == signal.SIGBUS:
        why = " (SIGBUS: a file that it had mapped became shorter; leave the files of a served model as they are)"
    return f"was killed by signal {number}{why}"
