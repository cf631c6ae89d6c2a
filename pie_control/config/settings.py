"""All settings with their defaults, and the config that is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_control.config.paths import AdapterPath, ModelPath, find_accounts, find_adapter, find_adapter_dir, model_paths
from pie_control.config.workers import find_secret, pace_of, remote_of
from pie_control.host_memory import machine_memory
from pie_inference.control_groups import usable_cores
from pie_inference.options import (
    WorkerOptions,
    default_cache_dir,
    option_fields,
    to_arguments,
)

if TYPE_CHECKING:
    from pie_control.tenants.accounts import Accounts

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8011
DEFAULT_SERVER = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"

MIB = 1 << 20

MOST_DEFAULT_HOSTS = 8

TEXT, JSON = "text", "json"


def _setting(default: Any, text: str, *, choices: tuple[str, ...] = (), least: float = 0) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices, "least": least})


@dataclass(frozen=True, slots=True)
class InferletLimits:
    """What one inferlet may hold and use. At a bound its call is refused or it is ended, with an error saying so."""

    memory_bytes: int = _setting(256 * MIB, "WebAssembly memory of one inferlet, in bytes", least=MIB)
    cpu_seconds: float = _setting(60.0, "processor time of one inferlet at a stretch, in seconds", least=0.001)
    cpu_refill: float = _setting(0.1, "seconds of it that come back for each second in which the inferlet waits")
    idle_seconds: float = _setting(
        3600.0, "time in which nothing happens in an inferlet, nor at a model for it, in seconds", least=0.001
    )
    max_pages: int = _setting(4096, "KV pages of one inferlet, over all models")
    max_embeds: int = _setting(16384, "embeds of one inferlet, over all models")
    max_queues: int = _setting(256, "command queues of one inferlet, over all models")
    max_futures: int = _setting(16384, "futures of one inferlet that it has not taken yet")
    max_pending_bytes: int = _setting(
        64 * MIB, "lists in commands that wait, and results not taken, of one inferlet, in bytes"
    )
    max_blob_bytes: int = _setting(64 * MIB, "blobs and images that one inferlet holds, in bytes")
    max_message_bytes: int = _setting(MIB, "one message, result, error or log line, in bytes; calls take 4 MiB at most")
    max_log_bytes: int = _setting(MIB, "log kept of one inferlet, in bytes; older lines go first")
    max_children: int = _setting(
        64, "inferlets that one may launch and that run at a time, with those that they launch"
    )
    max_http_requests: int = _setting(16, "outgoing HTTP requests of one inferlet at a time")
    max_http_bytes: int = _setting(16 * MIB, "body of one response to them, in bytes")
    http_seconds: float = _setting(300.0, "time of one of them, its response included, in seconds", least=0.001)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything that a server is started with. `resolved` gives the form without defaults to be worked out."""

    host: str = _setting(DEFAULT_HOST, "address to listen on")
    port: int = _setting(DEFAULT_PORT, "port to listen on; 0: any free one", least=0)
    allowed_hosts: tuple[str, ...] = _setting(
        (), "NAME by which clients may address the server, beside its addresses and localhost; may be repeated"
    )
    http_allow: tuple[str, ...] = _setting(
        (), "SERVER that programs may send HTTP requests to, as api.example.com or *.example.org:8443; may be repeated"
    )
    tenants: str = _setting("", "FILE of tenants, who show tokens; by default nobody needs one")
    insecure: bool = _setting(False, "listen beyond this machine although anybody may use the server")
    metrics: bool = _setting(False, "measure what the server does, for Prometheus to read at /metrics")
    traces: str = _setting(
        "", "URL of a collector that takes traces of agents by OTLP over HTTP, as http://HOST:4318/v1/traces"
    )
    log_format: str = _setting(
        TEXT,
        "form of the log on stderr; json: an object a line, also for each request and inferlet",
        choices=(TEXT, JSON),
    )
    max_connections: int = _setting(768, "connections of clients", least=1)
    max_connections_per_client: int = _setting(256, "connections from one address", least=1)
    max_inferlets_per_client: int = _setting(512, "inferlets that may run at a time for one address", least=1)
    model: tuple[str, ...] = _setting(
        ("demo",),
        "[NAME=]MODEL: folder of a Hugging Face checkpoint, its id on the hub, `demo` or `demo-reasoner`; may be "
        "repeated",
    )
    adapter: tuple[str, ...] = _setting(
        (), "[MODEL/]NAME=FOLDER: a LoRA adapter as PEFT saves it, for the first model or another; may be repeated"
    )
    adapter_dir: str = _setting("", "folder whose subfolders clients may load as adapters; none can be by default")
    replicas: int = _setting(1, "workers of each model on this machine", least=1)
    worker: tuple[str, ...] = _setting(
        (),
        "tcp://HOST:PORT of a `pie worker`, may be repeated; or `paced:15ms+20us`: no model, but a stand-in that takes "
        "15 ms for a wave and 20 us for each of its tokens",
    )
    secret_file: str = _setting("", "FILE with the secret that workers at tcp:// addresses have, too")
    worker_wait: float = _setting(
        300.0, "time that a server which starts waits for such workers, in seconds", least=0.001
    )
    wave_timeout: float = _setting(300.0, "seconds after which a worker that does not answer is restarted; 0: never")
    cache_dir: str = _setting("", "folder for what is compiled; default: $XDG_CACHE_HOME/pie or ~/.cache/pie")
    state: str = _setting(
        "none",
        "FOLDER for what survives the server; `none`: nothing but programs does; `pie serve` by default: "
        "$XDG_STATE_HOME/pie or ~/.local/state/pie",
    )
    state_days: float = _setting(30.0, "days for which it keeps inferlets that have ended", least=0)
    state_bytes: int = _setting(
        1024 * MIB, "their results, errors and logs there, in bytes; the oldest of the tenants with most go first"
    )
    response_days: float = _setting(30.0, "days for which stored responses are kept that are not used", least=0)
    response_bytes: int = _setting(
        64 * MIB,
        "stored responses of a tenant, with their events, in bytes; those not used for the longest time go first",
        least=0,
    )
    drain_seconds: float = _setting(5.0, "time that inferlets have to end after a SIGTERM, in seconds", least=0)
    max_inferlets: int = _setting(1000, "inferlets that may run at a time", least=1)
    max_serving: int = _setting(
        256, "requests of served routes, such as chat completions, that are answered at a time", least=1
    )
    max_waiting: int = _setting(1024, "further ones that wait for that; more are refused", least=0)
    max_wait_seconds: float = _setting(30.0, "time that one of them waits at most, in seconds", least=0.001)
    max_guest_bytes: int = _setting(
        0, "memory that all inferlets may take together, in bytes; 0: half of the machine's"
    )
    hosts: int = _setting(
        0,
        "processes for inferlets; 0: the server's own; `pie serve` by default: one for two cores, 8 at most",
    )
    host_timeout: float = _setting(30.0, "seconds after which one of them that does not answer is replaced; 0: never")
    warm_pool: int = _setting(
        128,
        "Python guests that wait while launches come, 1.6 MB each; more after bursts, 8 at rest; 0: none",
        least=0,
    )
    policy: str = _setting(
        "adaptive", "when waves are sent (paper, section 6.1)", choices=("adaptive", "eager", "k-only", "t-only")
    )
    k_only_commands: int = _setting(8, "commands of a wave, which waits for them, by the policy k-only", least=1)
    t_only_seconds: float = _setting(0.005, "time between waves, by the policy t-only, in seconds", least=0.0001)
    run_ahead: int = _setting(2, "waves in flight at a time; 1: none ahead", least=1)
    max_program_bytes: int = _setting(64 * MIB, "largest program that is accepted, in bytes", least=1024)
    max_programs: int = _setting(1000, "programs that a tenant may keep on the server", least=1)
    max_stored_program_bytes: int = _setting(
        1024 * MIB, "programs that a tenant may keep, with what is compiled of them, in bytes", least=1024
    )
    compile_seconds: float = _setting(
        30.0, "time in which a component must compile where nothing else runs, in seconds", least=0.1
    )
    compile_memory_bytes: int = _setting(
        2048 * MIB, "memory in which a component must be compiled, in bytes", least=128 * MIB
    )
    limits: InferletLimits = field(default_factory=InferletLimits)
    worker_options: WorkerOptions = field(default_factory=WorkerOptions)
    models: tuple[ModelPath, ...] = ()  # of this machine; worked out by `resolved`, as are
    adapters: tuple[AdapterPath, ...] = ()
    worker_secret: str | None = field(default=None, repr=False)
    accounts: Accounts | None = None

    def resolved(self) -> ServerConfig:
        """A new config in which models, adapters, tenants, the cache folder and the bound on memory are worked out;
        raises ConfigError."""
        models = model_paths(self.model) if self.model or not self.remote_workers else ()
        return replace(
            self,
            max_guest_bytes=self.max_guest_bytes or machine_memory() // 2,
            models=models,
            adapters=tuple(find_adapter(text, models, bool(self.remote_workers)) for text in self.adapter),
            adapter_dir=find_adapter_dir(self.adapter_dir),
            worker_secret=find_secret(self.worker_secret, self.secret_file, self.remote_workers),
            accounts=find_accounts(self.tenants) if self.tenants else None,
            cache_dir=str(Path(self.cache_dir or default_cache_dir()).expanduser()),
        )

    @property
    def max_host_bytes(self) -> int:
        """Memory that the inferlets of one host may take together, in bytes."""
        return self.max_guest_bytes // max(1, self.hosts)

    @property
    def pace(self) -> str:
        """How long waves take, where workers stand in for a GPU; empty: they run models."""
        return pace_of(self.worker)

    @property
    def remote_workers(self) -> tuple[str, ...]:
        """Addresses of workers that are started by hand."""
        return remote_of(self.worker)

    def worker_arguments(self, model: ModelPath, before: int = 0) -> list[str]:
        """Command line of a worker of one of the models, behind so many workers on this machine."""
        own = ["--model", model.path, "--name", model.name, "--cache-dir", self.cache_dir]
        gpus = before * self.worker_options.tensor_parallel
        more = ["--pace", self.pace] if self.pace else ["--first-gpu", str(gpus)] if gpus else []
        return [*own, *more, *to_arguments(self.worker_options)]


def default_hosts() -> int:
    """Processes that run inferlets on a server that has all cores that it may use: half of them are left to the control
    process and the workers."""
    return max(1, min(MOST_DEFAULT_HOSTS, usable_cores() // 2))


def settings() -> Iterator[Field[Any]]:
    """The fields that an operator can set: those of ServerConfig, of InferletLimits and of WorkerOptions."""
    yield from (each for each in fields(ServerConfig) if each.metadata)
    yield from fields(InferletLimits)
    yield from option_fields()
