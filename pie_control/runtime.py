"""The composition root: builds a server out of its parts. The only module that knows all of them.

HTTP server, client in process
    └── ServerApi
        ├── ProgramLibrary: ProgramStore, ProgramCompiler   programs
        ├── Registry                                   inferlets, as their clients see them
        ├── Hosts: LocalLink or ProcessLinks           who runs them: each Host has programs, inferlets, host_api
        ├── Model, Replica: Scheduler, InferenceClient where their commands go
        └── Loop                                       what happens when
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_inference.protocol import ModelDescription

from .application.links import HostLink
from .application.local_link import LocalLink
from .application.messages import Welcome
from .application.process_link import ProcessLink
from .config import JSON, ModelPath, ServerConfig
from .durable.state import NONE as NO_STATE
from .durable.state import State
from .engine.child_launches import ChildLaunches
from .engine.hosts import Hosts
from .engine.loop import Loop
from .engine.model import Model
from .engine.replica import Replica
from .errors import ConfigError
from .host_memory import check_address_space
from .inference_client.client import WorkerClient
from .inference_client.interface import InferenceClient
from .inference_client.local import LocalWorker
from .inference_client.process import PACED_WORKER, WORKER
from .inferlets.lifecycle import Status
from .observation.logs import InferletLog
from .observation.observer import Observer
from .programs.compiling import ProgramCompiler
from .programs.library import ProgramLibrary
from .programs.native import NativeCompiler
from .programs.prepared import PreparedPrograms
from .programs.program_host import ProgramHost
from .programs.python_guest import compiled_guest
from .programs.store import Program, ProgramStore, StoreLimits
from .programs.warm_pool import part_of
from .registry.registry import Registry
from .resources.contention import FirstComeFirstServed
from .scheduling import Adaptive, DispatchPolicy, Eager, KOnly, Scheduler, TOnly
from .server_api import ServerApi
from .tenants.meters import Meters

if TYPE_CHECKING:
    from .application.host import MakePrograms

HOST_BYTES = 512 << 20
"""Memory that a host has beside its inferlets. With a quarter more than those may take it is killed: it ends single
ones before."""

REMOTE_PAUSE_SECONDS = 10.0
"""The longest between two tries to reach a worker of another machine: a try costs next to nothing."""

ClientFactory = Callable[[ServerConfig, ModelPath], InferenceClient]
MakeScheduler = Callable[[ModelDescription], Scheduler]


def build_server(config: ServerConfig, make_client: ClientFactory | None = None) -> ServerApi:
    """A server that is ready to be started. `make_client` is called once for each worker; by default it starts a worker
    process. Raises ConfigError."""
    check_address_space()
    kept = StoreLimits(config.max_program_bytes, config.max_programs, config.max_stored_program_bytes)
    state = _open_state(config)
    try:
        of_state = (state.programs, state.folder / "programs") if state else ()
        store = ProgramStore(Path(config.cache_dir), kept, *of_state)
    except BaseException:
        if state is not None:
            state.close()
        raise
    compiler = NativeCompiler(config.compile_seconds, config.compile_memory_bytes)
    library = ProgramLibrary(store, PreparedPrograms(store, ProgramCompiler(store, compiler).bring))
    return _build(config, library, _host_links(config), make_client or _worker_starter(), compiled_guest, state)


def build_server_without_sandbox(
    config: ServerConfig, make_programs: MakePrograms, folder: Path, make_client: ClientFactory | None = None
) -> ServerApi:
    """A server whose programs run as `make_programs` says. What is uploaded to it is the path of a program, and kept
    in `folder`. Raises ConfigError."""
    store = ProgramStore(folder, StoreLimits(config.max_program_bytes, config.max_programs, config.max_program_bytes))

    async def bring(program: Program, host: ProgramHost, data: bytes | None = None) -> int:
        return 0  # it runs where it is

    async def no_guest(_cache_dir: Path) -> Path:
        return folder

    library = ProgramLibrary(store, PreparedPrograms(store, bring))
    return _build(
        config, library, {0: LocalLink(make_programs)}, make_client or _worker_starter(), no_guest, _open_state(config)
    )


def _build(
    config: ServerConfig,
    library: ProgramLibrary,
    links: Mapping[int, HostLink],
    make_client: ClientFactory,
    make_guest: Callable[[Path], Coroutine[Any, Any, Path]],
    state: State | None,
) -> ServerApi:
    loop, registry = Loop(), Registry(config.limits, config.max_inferlets, state.inferlets if state else None)
    library.in_use = registry.programs
    observer, meters = _observer(config, registry), Meters()
    if config.accounts is not None:
        meters.use(config.accounts.budgets)
    if config.log_format == JSON:
        InferletLog(registry)
    make_scheduler = _scheduler_maker(config, observer, meters)
    models = dict[str, Model]()
    for model in config.models:
        clients = [make_client(config, model) for _ in range(config.replicas)]
        models[model.name] = Model(model.name, [Replica(client, make_scheduler) for client in clients])
    pool = part_of(max(1, config.hosts), config.warm_pool, config.max_inferlets, config.max_host_bytes)
    welcome = Welcome(0, config.limits, config.max_host_bytes, pool, http_allow=config.http_allow)
    hosts = Hosts(links, welcome, registry, models, loop, library.lost)
    registry.on_excess = lambda entry, why: hosts.stop(entry, Status.EXCEEDED, why)
    hosts.on_child = ChildLaunches(library, registry, hosts).take
    remote = _reach_workers(config, make_scheduler)
    return ServerApi(config, library, registry, hosts, models, loop, meters, make_guest, remote, observer, state)


def _open_state(config: ServerConfig) -> State | None:
    if config.state in ("", NO_STATE):
        return None
    responses = config.response_days, config.response_bytes
    return State(Path(config.state), config.state_days, config.state_bytes, responses)


def _observer(config: ServerConfig, registry: Registry) -> Observer | None:
    """None: nothing is measured."""
    if not config.traces:
        return Observer(registry) if config.metrics else None
    try:
        from .observation.traces import Traces
    except ImportError as error:
        missing = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise ConfigError(f"--traces needs OpenTelemetry ({error}): {missing}") from None
    return Observer(registry, Traces(registry, config.traces))


def _host_links(config: ServerConfig) -> dict[int, HostLink]:
    if not config.hosts:
        return {0: LocalLink()}
    most = config.max_host_bytes + config.max_host_bytes // 4 + HOST_BYTES if config.max_guest_bytes else 0
    numbers = range(1, config.hosts + 1)
    return {one: ProcessLink(one, memory_bytes=most, silent_seconds=config.host_timeout) for one in numbers}


def _scheduler_maker(config: ServerConfig, observer: Observer | None, meters: Meters) -> MakeScheduler:
    def make(description: ModelDescription) -> Scheduler:
        scheduler = Scheduler(description, make_policy(config), FirstComeFirstServed(), meters)
        if observer:
            observer.watch(description.name, scheduler.counts)
        return scheduler

    return make


def make_policy(config: ServerConfig) -> DispatchPolicy:
    """The dispatch policy that the configuration names (paper, section 6.1 and Table 5)."""
    match config.policy:
        case "eager":
            return Eager()
        case "k-only":
            return KOnly(config.k_only_commands)
        case "t-only":
            return TOnly(config.t_only_seconds)
    return Adaptive(max_in_flight=config.run_ahead)


def start_worker(config: ServerConfig, model: ModelPath, before: int = 0) -> InferenceClient:
    """The client of a worker process of its own, behind so many others of this server."""
    module = PACED_WORKER if config.pace else WORKER
    return WorkerClient(LocalWorker(config.worker_arguments(model, before), module), config.wave_timeout)


def _worker_starter() -> ClientFactory:
    numbers = count()
    return lambda config, model: start_worker(config, model, next(numbers))


def _reach_workers(config: ServerConfig, make_scheduler: MakeScheduler) -> list[Replica]:
    """Those that were started by hand. Which models they serve they say when they are reached."""
    from .inference_client.remote import RemoteWorker  # which needs zmq

    ways = [RemoteWorker(address, config.worker_secret, config.worker_wait) for address in config.remote_workers]
    clients = [WorkerClient(way, config.wave_timeout) for way in ways]
    return [Replica(client, make_scheduler, longest_pause=REMOTE_PAUSE_SECONDS) for client in clients]
