"""The leader's side of a group: it starts followers, sends them waves, and ends with them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from .. import protocol as wire
from ..config import WorkerConfig
from ..device.machine import choose_device
from ..device.ranks import Ranks
from ..errors import RankLost
from ..execution.interface import Load, Rank
from ..execution.launched import LaunchedWave
from ..loading.hub import find_folder
from ..options.lifetime import command_of, signals_held
from .agreement import agree
from .channel import RankChannel
from .collectives import DistributedRanks, lead, listen
from .membership import Membership, encode_membership

FAREWELL_SECONDS = 0.3
"""Seconds in which a leader that meets a loss itself may report it. A leader that waits in an operation would wait for
ever."""
SHUTDOWN_SECONDS = 0.5
LOAD_SECONDS = 120.0
"""Seconds within which a rank has read an adapter, once the leader has."""


class Follower:
    """A process that the leader started. It does not outlive the thread that started it."""

    def __init__(self, membership: Membership) -> None:
        self.rank = membership.rank
        self.channel, other = RankChannel.pair()
        with other:
            command = command_of("pie_inference.serving.follower")
            arguments = [str(other.fileno()), str(os.getpid())]
            with signals_held():
                self.process = subprocess.Popen(
                    [*command, *arguments], stdin=subprocess.DEVNULL, pass_fds=[other.fileno()]
                )
        self.channel.send(encode_membership(membership))

    def wait_until_ready(self) -> None:
        """Waits until the follower has loaded its share. Raises RankLost with its message if it could not."""
        answer = _decode(self.channel.receive())
        if isinstance(answer, wire.WorkerFailed):
            raise RankLost(f"rank {self.rank}: {answer.message}")
        if not isinstance(answer, wire.Ready):
            raise RankLost(f"rank {self.rank} did not become ready")

    def adapter_loaded(self) -> wire.AdapterLoaded:
        """Waits for its answer to `LoadAdapter`. Raises RankLost."""
        answer = _decode(self.channel.receive(LOAD_SECONDS))
        if not isinstance(answer, wire.AdapterLoaded):
            raise RankLost(f"rank {self.rank} did not load an adapter: {answer}")
        return answer

    def describe_end(self) -> str:
        """Waits for the end of the process, and says how it ended."""
        status = self.process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"rank {self.rank} (process {self.process.pid}) {how}; its group ends too"

    def end(self, patience: float) -> None:
        """Waits `patience` seconds for the process to end by itself, then kills it."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()


class GroupLoad:
    """An adapter that all ranks read. Implements `Load`."""

    def __init__(self, own: Load, install: Callable[[Load], wire.AdapterLoaded]) -> None:
        self.number = own.number
        self._own = own
        self._install = install

    @property
    def is_ready(self) -> bool:
        return self._own.is_ready

    def install(self) -> wire.AdapterLoaded:
        return self._install(self._own)


class WorkerGroup:
    """Implements `ServedWorker` with the ranks of one model; `make_worker` makes the leader's own worker.

    If a follower ends too early, `on_loss` is called on a separate thread with a message that says how; by default this
    process ends. Raises InferenceError if a rank cannot load its share.
    """

    def __init__(
        self,
        config: WorkerConfig,
        make_worker: Callable[[WorkerConfig, Ranks], Rank],
        on_loss: Callable[[str], None] | None = None,
    ) -> None:
        size = config.tensor_parallel
        config = replace(config, model=find_folder(config.model))  # downloaded once, not by every rank
        device = choose_device(config.device, 0, size)
        listener = listen()
        port = listener.getsockname()[1]
        self._on_loss = on_loss or end_process
        self._ending = False
        self._ranks: DistributedRanks | None = None
        self._followers = [Follower(Membership(rank, size, port, config)) for rank in range(1, size)]
        try:
            self._watch()
            self._ranks = lead(listener, size, device)
            self._worker = make_worker(config, self._ranks)
            for follower in self._followers:
                follower.wait_until_ready()
        except BaseException:
            self._end(0.0)
            raise

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the followers."""
        return [follower.process.pid for follower in self._followers]

    def describe(self) -> tuple[wire.ModelDescription, ...]:
        return self._worker.describe()

    def run(self, wave: wire.RunWave) -> wire.WaveDone:
        return self.finish(self.launch(wave))

    def launch(self, wave: wire.RunWave) -> LaunchedWave:
        self._tell(wave)
        return self._worker.launch(wave, partial(self._agree, wave.wave))

    def _tell(self, message: wire.ToWorker) -> None:
        frames = wire.encode(message)
        for follower in self._followers:
            follower.channel.send(frames)

    def load_adapter(self, message: wire.LoadAdapter) -> wire.AdapterLoaded:
        return self.begin_adapter(message).install()

    def begin_adapter(self, message: wire.LoadAdapter) -> GroupLoad:
        self._tell(message)
        return GroupLoad(self._worker.begin_adapter(message), self._install)

    def _install(self, own: Load) -> wire.AdapterLoaded:
        """All ranks have it, or none. They read the same files, so the others are about as far as this one."""
        self._tell(wire.InstallAdapter(own.number))
        answers = [own.install(), *(follower.adapter_loaded() for follower in self._followers)]
        failed = next((answer for answer in answers if answer.error is not None), None)
        if failed is None:
            return wire.AdapterLoaded(own.number, sum(answer.nbytes for answer in answers))
        self.drop_adapter(wire.DropAdapter(own.number))
        return failed

    def drop_adapter(self, message: wire.DropAdapter) -> None:
        self._tell(message)
        self._worker.drop_adapter(message)

    @property
    def adapters(self) -> Sequence[int]:
        return self._worker.adapters

    def forget(self) -> None:
        for number in self.adapters:
            self.drop_adapter(wire.DropAdapter(number))
        self._worker.forget()

    def _agree(self, wave: int, failure: wire.Failure) -> None:
        for follower in self._followers:
            agree(wave, failure, follower.channel)

    def finish(self, launched: LaunchedWave) -> wire.WaveDone:
        return self._worker.finish(launched)

    def close(self) -> None:
        """Ends the followers. Idempotent."""
        if not self._ending:
            self._end(SHUTDOWN_SECONDS)

    def _end(self, patience: float) -> None:
        self._ending = True
        for follower in self._followers:
            _say_goodbye(follower)
        for follower in self._followers:
            follower.end(patience)
        if self._ranks is not None:
            self._ranks.close()

    def _watch(self) -> None:
        for follower in self._followers:
            threading.Thread(target=self._await_end, args=(follower,), name="rank-watch", daemon=True).start()

    def _await_end(self, follower: Follower) -> None:
        message = follower.describe_end()
        time.sleep(FAREWELL_SECONDS)
        if not self._ending:
            self._on_loss(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end_process(message: str) -> None:
    """Prints the message and ends this process: the main thread may wait for something that will not come."""
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


def _say_goodbye(follower: Follower) -> None:
    try:
        follower.channel.send(wire.encode(wire.Shutdown()))
    except RankLost:
        return  # it has ended already


def _decode(frames: list[bytes]) -> object:
    try:
        return wire.decode_from_worker(frames)
    except wire.ProtocolError:
        return None
