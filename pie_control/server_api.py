"""A server without its network face: what clients can do. The HTTP server and `pie run` speak to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from pie_inference.protocol import ModelDescription

from .adapter_library import AdapterLibrary
from .application.messages import Pause
from .config import ServerConfig
from .durable.accounts.audit import AuditRecord
from .durable.accounts.bills import Bills
from .durable.responses import AtOnce
from .durable.state import State
from .engine.app_host import HostStatistics
from .engine.hosts import Hosts
from .engine.loop import Loop
from .engine.model import Model, ReplicaStatistics, join
from .engine.replica import Replica
from .errors import PieError, UnknownName
from .host_memory import TenantBytes
from .observation.observer import Observer
from .programs.library import ProgramLibrary
from .programs.python_guest import compiled_guest
from .registry.blobs import OF_BLOBS, PART
from .registry.entry import Entry
from .registry.registry import Registry
from .tenant_api import TenantApi
from .tenants.audit import AuditTrail
from .tenants.meters import Meters
from .tenants.pauses import LOOK_SECONDS, Pauses
from .tenants.tenant import Standing

if TYPE_CHECKING:
    from .dashboard.viewers import Dashboard

BILL_SECONDS = 1.0
"""Between two writes of what was used."""


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
    """Counts of inferlets; `ended` by status; `warm` instances wait for a launch and `warm_wanted` shall, on all hosts
    together."""

    running: int
    launched: int
    ended: dict[str, int]
    warm: int
    warm_wanted: int
    runner: GuestStatistics


@dataclass(frozen=True)
class ServerStatistics:
    """What the dashboard and the benchmarks read. `models`: the workers of each model, in order; `outages`: a line for
    each worker and each host that does not serve."""

    inferlets: InferletStatistics
    hosts: tuple[HostStatistics, ...]
    models: dict[str, tuple[ReplicaStatistics, ...]]
    outages: tuple[str, ...]


class ServerApi(TenantApi):
    """One server, and what its default tenant can do. All methods belong to the thread of one event loop; their errors
    are those of `pie_control.errors`."""

    def __init__(
        self,
        config: ServerConfig,
        library: ProgramLibrary,
        registry: Registry,
        hosts: Hosts,
        models: dict[str, Model],
        loop: Loop,
        meters: Meters,
        make_guest: Callable[[Path], Coroutine[Any, Any, Path]] = compiled_guest,
        remote: Sequence[Replica] = (),
        observer: Observer | None = None,
        state: State | None = None,
    ) -> None:
        """`make_guest` gives the file of the compiled Python guest, by the cache folder. `remote`: workers whose models
        join `models` when they have said them. `observer`: what measures, where anything does. `state`: what
        survives the server, where anything does."""
        audit = state.audit if state is not None else AuditTrail()
        self._blob_memory = TenantBytes(PART, OF_BLOBS)
        super().__init__(config, library, registry, hosts, models, meters, audit, self._blob_memory)
        self.meters = meters
        self._make_guest = make_guest
        self._all_models = models
        self._remote = remote
        self._loop = loop
        self.observer = observer
        self._state = state
        self.keys = state.keys if state is not None else None
        kept = config.response_days, config.response_bytes
        self.responses = state.responses if state is not None else AtOnce.responses(*kept)
        self._closed = False
        self._billing: asyncio.TimerHandle | None = None
        self.bills = Bills(meters, state.usage if state is not None else None, time, self._used_keys)
        self._pauses = Pauses(meters)
        self._looking: asyncio.TimerHandle | None = None
        registry.on_use.append(self._used)
        hosts.greetings = lambda: [Pause(*payer, True) for payer in self._pauses.paused]
        self.adapters = AdapterLibrary(config, models, self._tell_hosts)

    async def start(self) -> None:
        """Starts the workers, then the hosts; raises WorkerUnavailable, HostUnavailable, ConfigError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                guest = tasks.create_task(self._make_guest(Path(self.config.cache_dir)))
                for model in self._models.values():
                    tasks.create_task(model.start())
                for replica in self._remote:
                    tasks.create_task(replica.start())
            join(self._all_models, self._remote)
            await self.adapters.start()
            on_turn = self.observer.turned if self.observer else None
            self._loop.start(self._hosts, tuple(self._models.values()), on_turn)
            await self._hosts.start(guest.result())
            self._bill()
        except ExceptionGroup as group:
            await self.close()
            raise _first(group) from None
        except PieError:
            await self.close()
            raise

    def _used(self, entry: Entry, seconds: float) -> None:
        meter = self.meters.of(entry.standing)
        meter.runs(seconds, monotonic())
        if meter.paced and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._pause)

    def _pause(self) -> None:
        """Tells hosts whose inferlets have no turns for a while, as a budget of processor time is spent."""
        told = [Pause(*payer, on) for payer, on in self._pauses.look(monotonic()).items()]
        for host in self._hosts.all if told else ():
            for message in told:
                host.post(message)
            host.flush()
        wait = self._pauses.seconds(monotonic())
        self._looking = None if wait is None else asyncio.get_running_loop().call_later(wait, self._pause)

    def _used_keys(self) -> set[str]:
        return self._registry.keys() | (self.keys.valid(time()) if self.keys is not None else set())

    def _bill(self) -> None:
        """Writes now and then what was used; a timer costs less than a task."""
        self.bills.write()
        self._billing = asyncio.get_running_loop().call_later(BILL_SECONDS, self._bill)

    async def drain(self, seconds: float) -> None:
        """Takes no new work from now on, and waits until all inferlets have ended, for at most this time."""
        self._registry.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._registry.until_none_runs(), seconds)

    async def close(self) -> None:
        """Ends inferlets, hosts and workers. Idempotent."""
        if self._closed:
            return
        self._closed = self._registry.draining = True  # what is made in the background is not over
        for timer in (self._billing, self._looking):
            if timer is not None:
                timer.cancel()
        await self._hosts.close()
        self._loop.close()
        await asyncio.gather(self._library.close(), *(model.close() for model in self._models.values()))
        await asyncio.gather(*(replica.close() for replica in self._remote))  # of which some may serve no model yet
        if self.observer is not None and self.observer.traces is not None:
            await asyncio.to_thread(self.observer.traces.close)
        self.bills.write()
        if self._state is not None:
            self._state.close()

    @property
    def is_closed(self) -> bool:
        """Whether it serves no more."""
        return self._closed

    @property
    def running(self) -> int:
        """How many inferlets run."""
        return self._registry.statistics().running

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no new work, and will end."""
        return self._registry.draining

    @property
    def is_ready(self) -> bool:
        """Whether a worker and a host serve, and the server is not about to stop."""
        return (
            not self._registry.draining
            and self._hosts.can_launch
            and not all(model.is_down for model in self._models.values())
        )

    def has_spare_pages(self, share: float) -> bool:
        """Whether a model has so much of its KV pages for further inferlets."""
        return any(model.has_spare_pages(share) for model in self._models.values())

    @property
    def is_idle(self) -> bool:
        """Whether no inferlet can run now."""
        return self._hosts.are_quiet

    def of(self, standing: Standing) -> TenantApi:
        """What a tenant can do; it keeps the blobs of the tenant, so there is one for each."""
        shared = self._library, self._registry, self._hosts, self._models, self.meters, self.audit, self._blob_memory
        return TenantApi(self.config, *shared, standing)

    def tell_tenants(self, names: Iterable[str]) -> None:
        """Keeps in the state, where there is one, whom the server serves from now on."""
        if self._state is not None:
            self._state.tell_tenants(names)

    def read_audit(self, most: int) -> list[AuditRecord]:
        """The last that is known of who did what, oldest first. Raises UnknownName."""
        if self._state is None:
            raise UnknownName("nobody keeps what was done: the operator starts the server with --state to change that")
        return self._state.read_audit(most)

    # ---- models ----

    def models(self) -> tuple[ModelDescription, ...]:
        """What the workers serve."""
        return tuple(model.description for model in self._models.values())

    def _tell_hosts(self) -> None:
        self._hosts.tell_states()
        self._hosts.flush()

    def outages(self) -> tuple[str, ...]:
        """One line for each worker and each host that does not serve: what was tried, when it is tried next, and
        why; and one for a state that cannot be written."""
        workers = (
            f"worker {number} of model {name}: {outage}"
            for name, model in self._models.items()
            for number, replica in enumerate(model.replicas, start=1)
            if (outage := replica.life.outage)
        )
        state = (self._state.trouble,) if self._state is not None and self._state.trouble else ()
        return (*workers, *self._hosts.outages(), *state)

    def statistics(self) -> ServerStatistics:
        hosts, counts = self._hosts.statistics(), self._registry.statistics()
        runner = GuestStatistics(
            sum(host.turns for host in hosts),
            sum(host.preemptions for host in hosts),
            sum(host.guest_seconds for host in hosts),
            sum(host.memory_bytes for host in hosts),
        )
        warm, wanted = sum(host.warm for host in hosts), sum(host.warm_wanted for host in hosts)
        return ServerStatistics(
            InferletStatistics(counts.running, counts.launched, counts.ended, warm, wanted, runner),
            hosts,
            {name: model.statistics() for name, model in self._models.items()},
            self.outages(),
        )

    @cached_property
    def dashboard(self) -> Dashboard:
        """What those who look at the server are shown."""
        from .dashboard.viewers import Dashboard

        return Dashboard(self._registry, self._hosts, self._all_models)

    def metrics(self, tenant: str | None) -> bytes:
        """What was measured, in the text format of Prometheus, for who sees this tenant alone; None: all.
        Raises UnknownName if nothing is."""
        if self.observer is None or not self.config.metrics:
            raise UnknownName("nothing is measured: the operator starts the server with --metrics to change that")
        from .observation.prometheus.exposition import exposition  # which needs prometheus_client

        workers = {name: model.statistics() for name, model in self._models.items()}
        seen = self._registry.statistics(), self._hosts.statistics(), workers
        return exposition(self.observer, *seen, self.meters.budgets, monotonic(), tenant)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
