"""A server without its network face: what clients can do. The HTTP server and `pie run` speak to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_inference.protocol import ModelDescription

from .adapter_library import AdapterLibrary
from .config import ServerConfig
from .engine.app_host import HostStatistics
from .engine.hosts import Hosts
from .engine.loop import Loop
from .engine.model import Model, ReplicaStatistics
from .errors import BadRequest, PieError, WorkerUnavailable
from .inferlets.events import Event
from .inferlets.lifecycle import Status
from .programs.library import ProgramLibrary
from .programs.python_guest import compiled_guest
from .programs.store import ProgramInfo
from .registry.blobs import BlobStore
from .registry.entry import Entry, InferletInfo
from .registry.registry import Registry
from .texts import byte_size


@dataclass(frozen=True)
class GuestStatistics:
    """Sums over all hosts, since each was started last: turns of inferlets, and those that were cut short; processor
    time of guests in seconds, their memory in bytes."""

    turns: int
    preemptions: int
    guest_seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class InferletStatistics:
    """Counts of inferlets; `ended` by status; `warm` instances wait for a launch, on all hosts together."""

    running: int
    launched: int
    ended: dict[str, int]
    warm: int
    runner: GuestStatistics


@dataclass(frozen=True)
class ServerStatistics:
    """What the dashboard and the benchmarks read. `models`: the workers of each model, in order; `outages`: a line for
    each worker and each host that does not serve."""

    inferlets: InferletStatistics
    hosts: tuple[HostStatistics, ...]
    models: dict[str, tuple[ReplicaStatistics, ...]]
    outages: tuple[str, ...]


class ServerApi:
    """Programs and inferlets of one server. All methods belong to the thread of one event loop; their errors are those
    of `pie_control.errors`."""

    def __init__(
        self,
        config: ServerConfig,
        library: ProgramLibrary,
        registry: Registry,
        hosts: Hosts,
        models: Mapping[str, Model],
        loop: Loop,
        make_guest: Callable[[Path], Coroutine[Any, Any, Path]] = compiled_guest,
    ) -> None:
        """`make_guest` gives the file of the compiled Python guest, by the cache folder."""
        self.config = config
        self._make_guest = make_guest
        self._library = library
        self._registry = registry
        self._hosts = hosts
        self._models = models
        self._loop = loop
        self._blobs = BlobStore(config.limits.max_blob_bytes)
        self._closed = False
        self.adapters = AdapterLibrary(config, models, self._tell_hosts)

    async def start(self) -> None:
        """Starts the workers, then the hosts; raises WorkerUnavailable, HostUnavailable, ConfigError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                guest = tasks.create_task(self._make_guest(Path(self.config.cache_dir)))
                for model in self._models.values():
                    tasks.create_task(model.start())
            await self.adapters.start()
            self._loop.start(self._hosts, tuple(self._models.values()))
            await self._hosts.start(guest.result())
        except ExceptionGroup as group:
            await self.close()
            raise _first(group) from None
        except PieError:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends inferlets, hosts and workers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._hosts.close()
        self._loop.close()
        await asyncio.gather(self._library.close(), *(model.close() for model in self._models.values()))

    # ---- programs ----

    async def upload(self, data: bytes, name: str) -> ProgramInfo:
        """Stores a program and makes it ready to launch; raises BadProgram, BadRequest (a name that cannot be),
        StorageFull, Overloaded, HostUnavailable."""
        return await self._library.upload(data, name, (await self._hosts.place()).programs)

    def programs(self) -> tuple[ProgramInfo, ...]:
        """All programs that can be launched."""
        return self._library.all()

    def remove_program(self, program: str) -> ProgramInfo:
        """Deletes a program (hash, unique prefix of it, or name); its inferlets go on. Raises UnknownName,
        BadRequest."""
        return self._library.remove(program)

    # ---- blobs ----

    async def upload_blob(self, data: bytes) -> str:
        """Keeps bytes for a while, for `launch` and `send`; returns their content hash. Raises StorageFull."""
        return await self._blobs.put(data)

    # ---- inferlets ----

    async def launch(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, str] | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> Entry:
        """Starts an inferlet of a program (hash, unique prefix of it, or name). `blobs`: hashes of uploaded ones, by
        the names under which the inferlet knows them. `listener` hears its events on the loop's thread and must not
        block. Raises UnknownName, BadRequest, Overloaded; WorkerUnavailable if no
        model has a worker, now or soon, HostUnavailable if no host runs. A launch waits for no model."""
        self._check_launch(arguments, environment or {})
        found_blobs = self._blobs.find(blobs or {})
        host = await self._hosts.place()
        with host.launching():
            found = await self._library.find(program, host.programs)
        if all(model.is_down for model in self._models.values()):
            raise WorkerUnavailable("; ".join(model.why_down() for model in self._models.values()))
        entry = self._registry.new(found, self._hosts.post, self._hosts.tell_room)
        self._hosts.launch(host, entry, arguments, environment or {}, found_blobs)
        if listener is not None:
            entry.attach(listener)
        return entry

    def _check_launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        texts = (*arguments, *environment.keys(), *environment.values())
        size, limit = sum(map(byte_size, texts)), self.config.limits.max_message_bytes
        if size > limit:
            raise BadRequest(f"arguments and environment have {size} bytes, more than {limit}: send them later")

    def send(self, id: str, text: str, blobs: Mapping[str, str] | None = None) -> None:
        """Sends a message to an inferlet. `blobs`: hashes of uploaded ones, by the names under which the inferlet gets
        them. Raises UnknownName, BadRequest, Conflict, Overloaded."""
        inferlet = self._registry.get(id)
        inferlet.send(text, self._blobs.find(blobs or {}))

    def inferlet(self, id: str) -> Entry:
        """A running or recently ended inferlet; raises UnknownName."""
        return self._registry.get(id)

    def inferlets(self) -> tuple[InferletInfo, ...]:
        """Running and recently ended inferlets."""
        return self._registry.infos()

    def terminate(self, id: str, reason: str) -> None:
        """Ends an inferlet, soon if its host is another process; nothing happens if it has ended. Raises
        UnknownName."""
        self._hosts.stop(self._registry.get(id), Status.TERMINATED, reason)

    @property
    def is_idle(self) -> bool:
        """Whether no inferlet can run now."""
        return self._hosts.are_quiet

    # ---- models ----

    def models(self) -> tuple[ModelDescription, ...]:
        """What the workers serve."""
        return tuple(model.description for model in self._models.values())

    def _tell_hosts(self) -> None:
        self._hosts.tell_states()
        self._hosts.flush()

    def outages(self) -> tuple[str, ...]:
        """One line for each worker and each host that does not serve: what was tried, when it is tried next, and
        why."""
        workers = (
            f"worker {number} of model {name}: {outage}"
            for name, model in self._models.items()
            for number, replica in enumerate(model.replicas, start=1)
            if (outage := replica.life.outage)
        )
        return (*workers, *self._hosts.outages())

    def statistics(self) -> ServerStatistics:
        hosts, counts = self._hosts.statistics(), self._registry.statistics()
        runner = GuestStatistics(
            sum(host.turns for host in hosts),
            sum(host.preemptions for host in hosts),
            sum(host.guest_seconds for host in hosts),
            sum(host.memory_bytes for host in hosts),
        )
        warm = sum(host.warm for host in hosts)
        return ServerStatistics(
            InferletStatistics(counts.running, counts.launched, counts.ended, warm, runner),
            hosts,
            {name: model.statistics() for name, model in self._models.items()},
            self.outages(),
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
