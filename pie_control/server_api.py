"""A server without its network face: what clients can do. The HTTP server and `pie run` speak to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pie_inference.protocol import ModelDescription

from .config import ServerConfig
from .engine.loop import Loop
from .engine.model import Model, ReplicaStatistics
from .errors import BadRequest, WorkerUnavailable
from .inferlets.events import Event
from .inferlets.inferlet import Inferlet, InferletInfo
from .inferlets.lifecycle import Status
from .inferlets.manager import InferletManager, InferletStatistics
from .programs.host.programs import HostPrograms
from .programs.library import ProgramLibrary
from .programs.python_guest import compiled_guest
from .programs.store import ProgramInfo
from .texts import byte_size


@dataclass(frozen=True)
class ServerStatistics:
    """What the dashboard and the benchmarks read. `models`: the workers of each model, in order; `outages`: a line for
    each that does not serve."""

    inferlets: InferletStatistics
    models: dict[str, tuple[ReplicaStatistics, ...]]
    outages: tuple[str, ...]


class ServerApi:
    """Programs and inferlets of one server. All methods belong to the thread of one event loop; their errors are those
    of `pie_control.errors`."""

    def __init__(
        self,
        config: ServerConfig,
        library: ProgramLibrary,
        programs: HostPrograms,
        inferlets: InferletManager,
        models: Mapping[str, Model],
        loop: Loop,
    ) -> None:
        self.config = config
        self._library = library
        self._programs = programs
        self._inferlets = inferlets
        self._models = models
        self._loop = loop
        self._closed = False

    async def start(self) -> None:
        """Starts the workers and makes the Python guest ready; raises WorkerUnavailable, ConfigError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for model in self._models.values():
                    tasks.create_task(model.start())
                tasks.create_task(self._start_guest())
        except ExceptionGroup as group:
            await self.close()
            raise _first(group) from None
        self._loop.start(self._inferlets, [one for model in self._models.values() for one in model.replicas])
        self._inferlets.start()

    async def _start_guest(self) -> None:
        self._programs.start(await compiled_guest(Path(self.config.cache_dir)))

    async def close(self) -> None:
        """Ends inferlets and workers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._inferlets.close()
        self._loop.close()
        self._programs.close()
        await asyncio.gather(self._library.close(), *(model.close() for model in self._models.values()))

    # ---- programs ----

    async def upload(self, data: bytes, name: str) -> ProgramInfo:
        """Stores a program and makes it ready to launch; raises BadProgram, BadRequest (a name that cannot be),
        StorageFull, Overloaded."""
        return await self._library.upload(data, name, self._programs)

    def programs(self) -> tuple[ProgramInfo, ...]:
        """All programs that can be launched."""
        return self._library.all()

    def remove_program(self, program: str) -> ProgramInfo:
        """Deletes a program (hash, unique prefix of it, or name); its inferlets go on. Raises UnknownName,
        BadRequest."""
        return self._library.remove(program)

    # ---- inferlets ----

    async def launch(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> Inferlet:
        """Starts an inferlet of a program (hash, unique prefix of it, or name). `listener` hears its events on the
        loop's thread and must not block. Raises UnknownName, BadRequest, Overloaded; WorkerUnavailable if no
        model has a worker, now or soon. A launch waits for no model."""
        found = await self._library.find(program, self._programs)
        if all(model.is_down for model in self._models.values()):
            raise WorkerUnavailable("; ".join(model.why_down() for model in self._models.values()))
        self._check_launch(arguments, environment or {})
        return self._inferlets.launch(found, arguments, environment or {}, listener)

    def _check_launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        texts = (*arguments, *environment.keys(), *environment.values())
        size, limit = sum(map(byte_size, texts)), self.config.limits.max_message_bytes
        if size > limit:
            raise BadRequest(f"arguments and environment have {size} bytes, more than {limit}: send them later")

    def inferlet(self, id: str) -> Inferlet:
        """A running or recently ended inferlet; raises UnknownName."""
        return self._inferlets.get(id)

    def inferlets(self) -> tuple[InferletInfo, ...]:
        """Running and recently ended inferlets."""
        return self._inferlets.infos()

    def terminate(self, id: str, reason: str) -> None:
        """Ends an inferlet; nothing happens if it has ended. Raises UnknownName."""
        self._inferlets.end(self._inferlets.get(id), Status.TERMINATED, reason)

    @property
    def is_idle(self) -> bool:
        """Whether no inferlet can run now."""
        return not self._inferlets.runner.has_work

    # ---- models ----

    def models(self) -> tuple[ModelDescription, ...]:
        """What the workers serve."""
        return tuple(model.description for model in self._models.values())

    def outages(self) -> tuple[str, ...]:
        """One line for each worker that does not serve: what was tried, when it is tried next, and why."""
        return tuple(
            f"worker {number} of model {name}: {replica.outage}"
            for name, model in self._models.items()
            for number, replica in enumerate(model.replicas, start=1)
            if replica.outage
        )

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            self._inferlets.statistics(),
            {name: model.statistics() for name, model in self._models.items()},
            self.outages(),
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
