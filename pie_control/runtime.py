"""The composition root: the only module that knows all the parts.

HTTP server, client in process
    └── Runtime
        ├── ProgramStore, ComponentHost, InferletManager     inferlets and what runs them
        ├── host_api                                         what they may call
        └── Model: Scheduler + Tokenizer + InferenceClient  where their commands go
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pie_inference.protocol import ModelDescription

from . import host_api
from .config import ServerConfig
from .engine.model import Model, Watcher
from .errors import BadRequest, Cancelled
from .inference_client.interface import InferenceClient
from .inference_client.zeromq import ZeroMQClient
from .inferlets.events import Event
from .inferlets.inferlet import Inferlet, InferletInfo
from .inferlets.lifecycle import Status
from .inferlets.mailbox import byte_size
from .inferlets.manager import InferletManager, InferletStatistics
from .programs.launcher import ComponentHost
from .programs.store import ProgramInfo, ProgramStore
from .resources.contention import FirstComeFirstServed
from .resources.quotas import Quota
from .scheduling import (
    Adaptive,
    Completion,
    DispatchPolicy,
    Eager,
    Failed,
    KOnly,
    Scheduler,
    SchedulerStatistics,
    TOnly,
)

K_ONLY_COMMANDS = 8
T_ONLY_SECONDS = 0.005


@dataclass(frozen=True)
class RuntimeStatistics:
    """What the dashboard and the benchmarks read."""

    inferlets: InferletStatistics
    models: dict[str, SchedulerStatistics]
    worker_restarts: dict[str, int]


def make_policy(config: ServerConfig) -> DispatchPolicy:
    """The dispatch policy that the configuration names (paper, section 6.1 and Table 5)."""
    match config.policy:
        case "eager":
            return Eager()
        case "k-only":
            return KOnly(K_ONLY_COMMANDS)
        case "t-only":
            return TOnly(T_ONLY_SECONDS)
    return Adaptive(max_in_flight=config.run_ahead)


def make_client(config: ServerConfig) -> InferenceClient:
    """A client that starts a worker process of its own."""
    options = {
        "--model": config.model,
        "--name": config.model_name,
        "--dtype": config.dtype,
        "--device": config.device,
        "--kernels": config.kernels,
        "--attention": config.attention,
        "--quantization": config.quantization,
        "--cuda-graphs": config.cuda_graphs,
        "--max-context": config.max_context or None,
        "--pages": config.pages or None,
        "--page-size": config.page_size,
        "--threads": config.threads or None,
        "--tensor-parallel": config.tensor_parallel,
        "--cache-dir": config.cache_dir,
    }
    given = [(name, str(value)) for name, value in options.items() if value is not None]
    return ZeroMQClient([word for option in given for word in option], wave_seconds=config.wave_timeout)


class Runtime:
    """A server without its network face. All methods belong to the thread of one event loop."""

    def __init__(self, config: ServerConfig, client: InferenceClient | None = None) -> None:
        self.config = config
        self._client = client or make_client(config)
        cache_dir = Path(config.cache_dir)
        self._store = ProgramStore(cache_dir)
        self._host = ComponentHost(cache_dir, host_api.functions(), config.limits.memory_bytes, config.warm_pool)
        self._inferlets = InferletManager(
            self._host, config.limits, config.max_inferlets, self._release, self._dispatch
        )
        self._by_number: dict[int, Inferlet] = {}
        self._models: dict[str, Model] = {}
        self._closed = False

    async def start(self) -> None:
        """Starts the worker and makes the Python guest ready; raises WorkerUnavailable, ConfigError."""
        watcher = Watcher(self._on_completion, self._on_eviction, self._on_lost, self._inferlets.runner.run)
        model = Model(self._client, self._make_scheduler, watcher)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(model.start())
                tasks.create_task(self._host.start(self._store))
        except ExceptionGroup as group:
            await self.close()
            raise group.exceptions[0] from None
        self._models[model.name] = model
        self._inferlets.start()

    def _make_scheduler(self, description: ModelDescription) -> Scheduler:
        limits = self.config.limits
        quota = Quota(pages=limits.max_pages, embeds=limits.max_embeds, queues=limits.max_queues)
        return Scheduler(description, make_policy(self.config), FirstComeFirstServed(), quota)

    async def close(self) -> None:
        """Ends inferlets and worker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._inferlets.close()
        for model in self._models.values():
            await model.close()
        await self._client.close()

    # ---- programs ----

    async def upload(self, data: bytes, name: str) -> ProgramInfo:
        """Stores a program and makes it ready to launch; raises BadProgram."""
        program = self._store.describe(data, name)
        await self._host.prepare(program, self._store, data)
        self._store.keep(program, data)
        return program.info()

    def programs(self) -> tuple[ProgramInfo, ...]:
        return tuple(program.info() for program in self._store.all())

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
        loop's thread and must not block. Raises UnknownName, BadRequest, Overloaded, WorkerUnavailable."""
        found = self._store.get(program)
        await self._host.prepare(found, self._store)
        for model in self._models.values():
            await model.serving()
        self._check_launch(arguments, environment or {})
        inferlet = self._inferlets.launch(found, arguments, environment or {}, self._models, listener)
        self._by_number[inferlet.number] = inferlet
        return inferlet

    def _check_launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        texts = (*arguments, *environment.keys(), *environment.values())
        size, limit = sum(map(byte_size, texts)), self.config.limits.max_message_bytes
        if size > limit:
            raise BadRequest(f"arguments and environment have {size} bytes, more than {limit}: send them later")

    def inferlet(self, id: str) -> Inferlet:
        """A running or recently ended inferlet; raises UnknownName."""
        return self._inferlets.get(id)

    def inferlets(self) -> tuple[InferletInfo, ...]:
        return self._inferlets.infos()

    def terminate(self, id: str, reason: str) -> None:
        """Ends an inferlet; nothing happens if it has ended. Raises UnknownName."""
        self._inferlets.end(self._inferlets.get(id), Status.TERMINATED, reason)

    # ---- models ----

    def models(self) -> tuple[ModelDescription, ...]:
        return tuple(model.description for model in self._models.values())

    def statistics(self) -> RuntimeStatistics:
        return RuntimeStatistics(
            self._inferlets.statistics(),
            {name: model.statistics() for name, model in self._models.items()},
            {name: model.restarts for name, model in self._models.items()},
        )

    def _dispatch(self) -> None:
        for model in self._models.values():
            model.dispatch()

    def _release(self, inferlet: Inferlet) -> None:
        """Frees what an ended inferlet held at the models."""
        self._by_number.pop(inferlet.number, None)
        for session in inferlet.sessions.values():
            session.model.close_account(session.account, Cancelled("the inferlet has ended"))
        inferlet.sessions = {}
        inferlet.queues = {}
        self._inferlets.runner.schedule()

    def _on_completion(self, completion: Completion) -> None:
        inferlet = self._by_number.get(completion.owner)
        if inferlet is None:
            return
        value = completion.value
        if completion.future is None:
            assert isinstance(value, Failed), "only failures have no future"
            self._inferlets.end(inferlet, Status.FAILED, str(value.error))
        else:
            inferlet.resolve(completion.future, value.error if isinstance(value, Failed) else value)

    def _on_eviction(self, owner: int, message: str) -> None:
        inferlet = self._by_number.get(owner)
        if inferlet is not None:
            self._inferlets.end(inferlet, Status.EVICTED, message)

    def _on_lost(self, model: str, reason: str) -> None:
        for inferlet in self._inferlets.running():
            if model in inferlet.sessions:
                self._inferlets.end(
                    inferlet, Status.LOST, f"the worker of model {model} died ({reason}); it restarts: launch again"
                )
