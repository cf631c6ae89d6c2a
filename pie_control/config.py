"""Configuration of the server: one frozen object, built once at the edge from options and environment.

Each setting of `ServerConfig`, `InferletLimits` and `WorkerOptions` is an option of `pie serve` and `pie run`
(`max_pages`: `--max-pages`) and an environment variable (`PIE_MAX_PAGES`); an option beats the variable, the variable
beats the default.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_control.errors import ConfigError
from pie_control.host_memory import machine_memory
from pie_control.services.http.rules import AllowList
from pie_control.worker_settings import check_workers, find_secret, given_secret, pace_of, remote_of
from pie_inference.options import (
    HUB_ID,
    OptionError,
    WorkerOptions,
    default_cache_dir,
    option_fields,
    read_options,
    to_arguments,
)
from pie_inference.options.secret import SECRET_VARIABLE

if TYPE_CHECKING:
    from pie_control.tenants.accounts import Accounts

ENVIRONMENT_PREFIX = "PIE_"
LISTEN_VARIABLE = "PIE_LISTEN"
OTHER_VARIABLES = frozenset({"PIE_SERVER", "PIE_TOKEN", LISTEN_VARIABLE, SECRET_VARIABLE})
"""Read by clients and by `pie worker`, and the one whose value must not stand in a command line."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8011

MIB = 1 << 20

MOST_DEFAULT_HOSTS = 8

NAMED_ADAPTER = re.compile(r"(?:([\w.-]+)/)?([\w.-]{1,64})=(.+)")
"""An adapter with its name, and perhaps that of its model."""

SHIPPED = {"demo": "demo_model", "demo-reasoner": "demo_reasoner"}
"""Models of the package by their names, with their folders."""
NAMED_MODEL = re.compile(r"([\w.-]+)=(.+)")
"""A model with the name that it has in the API."""

TEXT, JSON = "text", "json"

BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
"""Values of settings that are switched on, as variables give them."""


def _setting(default: Any, text: str, *, choices: tuple[str, ...] = (), least: float = 0) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices, "least": least})


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model to be served: its name in the API, and the folder of its checkpoint or its id on the hub."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class AdapterPath:
    """A LoRA adapter to be loaded at start: its name, the model, and its folder."""

    name: str
    model: str
    path: str


@dataclass(frozen=True, slots=True)
class InferletLimits:
    """What one inferlet may hold and use. At a bound its call is refused or it is ended, with an error saying so."""

    memory_bytes: int = _setting(256 * MIB, "WebAssembly memory of one inferlet, in bytes", least=MIB)
    cpu_seconds: float = _setting(60.0, "processor time of one inferlet at a stretch, in seconds", least=0.001)
    cpu_refill: float = _setting(0.1, "seconds of it that come back for each second in which the inferlet waits")
    idle_seconds: float = _setting(3600.0, "time in which nothing happens in an inferlet, in seconds", least=0.001)
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
    state_bytes: int = _setting(1024 * MIB, "their results, errors and logs there, in bytes; the oldest go first")
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
    compile_seconds: float = _setting(30.0, "time in which a component must be compiled, in seconds", least=0.1)
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
        models = _model_paths(self.model) if self.model or not self.remote_workers else ()
        return replace(
            self,
            max_guest_bytes=self.max_guest_bytes or machine_memory() // 2,
            models=models,
            adapters=tuple(_find_adapter(text, models, bool(self.remote_workers)) for text in self.adapter),
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

    def worker_arguments(self, model: ModelPath) -> list[str]:
        """Command line of a worker of one of the models."""
        own = ["--model", model.path, "--name", model.name, "--cache-dir", self.cache_dir]
        pace = ["--pace", self.pace] if self.pace else []
        return [*own, *pace, *to_arguments(self.worker_options)]


def default_hosts() -> int:
    """Processes that run inferlets on a server that has the machine: half of the cores are left to the control process
    and the workers."""
    return max(1, min(MOST_DEFAULT_HOSTS, (os.cpu_count() or 1) // 2))


def settings() -> Iterator[Field[Any]]:
    """The fields that an operator can set: those of ServerConfig, of InferletLimits and of WorkerOptions."""
    yield from (each for each in fields(ServerConfig) if each.metadata)
    yield from fields(InferletLimits)
    yield from option_fields()


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables named PIE_*, as text; a name that is no setting is refused."""
    known = {f"{ENVIRONMENT_PREFIX}{each.name.upper()}": each.name for each in settings()}
    found = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES:
            continue
        if name not in known:
            raise ConfigError(f"unknown environment variable {name}{_suggestion(name, known)}")
        found[known[name]] = value
    return found


def build_config(options: Mapping[str, object], environment: Mapping[str, str] | None = None) -> ServerConfig:
    """The config of these options over these environment variables (default: none); raises ConfigError.

    `options` maps names of settings to values or their text; None means: not given.
    """
    values: dict[str, object] = dict(read_environment(environment or {}))
    values |= {name: value for name, value in options.items() if value is not None}
    known = {each.name: each for each in settings()}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}{_suggestion(unknown[0], known)}")
    of_worker, of_limits = _take(values, option_fields()), _take(values, fields(InferletLimits))
    try:
        worker_options = WorkerOptions(**read_options(of_worker))
    except OptionError as error:
        raise ConfigError(str(error)) from None
    limits = InferletLimits(**_parsed(known, of_limits))
    given = _parsed(known, values)
    secret = given_secret(environment or {})
    config = ServerConfig(**given, limits=limits, worker_options=worker_options, worker_secret=secret)
    check_workers(config.worker)
    if config.remote_workers and "model" not in given:
        config = replace(config, model=())
    AllowList(config.http_allow)
    return config


def _take(values: dict[str, object], part: Iterable[Field[Any]]) -> dict[str, object]:
    return {each.name: values.pop(each.name) for each in part if each.name in values}


def _parsed(known: Mapping[str, Field[Any]], values: Mapping[str, object]) -> dict[str, Any]:
    return {name: _parse(known[name], value) for name, value in values.items()}


def _parse(setting: Field[Any], value: Any) -> Any:
    kind: Any = type(setting.default)
    if kind is tuple:
        return tuple(value.split(",")) if isinstance(value, str) else tuple(map(str, value))
    if kind is bool:
        return _parse_bool(setting.name, value)
    try:
        parsed: str | int | float = kind(value)
    except (TypeError, ValueError):
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{setting.name} must be {what}, not {value!r}") from None
    _check(setting, parsed)
    return parsed


def _parse_bool(name: str, value: object) -> bool:
    text = str(value).lower()
    if text not in BOOLEANS:
        raise ConfigError(f"{name} must be one of {', '.join(BOOLEANS)}, not {value!r}")
    return BOOLEANS[text]


def _check(setting: Field[Any], value: str | int | float) -> None:
    choices, least = setting.metadata["choices"], setting.metadata["least"]
    if choices and value not in choices:
        raise ConfigError(f"{setting.name} must be one of {', '.join(choices)}, not {value!r}")
    if not isinstance(value, str) and not value >= least:  # also refuses NaN
        raise ConfigError(f"{setting.name} must be at least {least}, not {value}")


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are: {', '.join(sorted(known))}"


def _model_paths(given: Sequence[str]) -> tuple[ModelPath, ...]:
    models = tuple(find_model(text) for text in given)
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models are called {name!r}: rename one, as in --model NAME=MODEL")
    if not models:
        raise ConfigError("no model: give at least one, as in --model demo")
    return models


def find_model(text: str) -> ModelPath:
    """The model that [NAME=]MODEL says; raises ConfigError."""
    named = NAMED_MODEL.fullmatch(text)
    name, model = (named[1], named[2]) if named else ("", text)
    path = _shipped_model(SHIPPED[model]) if model in SHIPPED else Path(model).expanduser().resolve()
    if not path.exists() and HUB_ID.fullmatch(model):
        return ModelPath(name or model.rpartition("/")[2], model)  # the worker fetches it
    if not (path / "config.json").is_file():
        raise ConfigError(f"no model at {path}: a folder with config.json, tokenizer.json and *.safetensors is needed")
    return ModelPath(name or (model if model in SHIPPED else path.name), str(path))


def find_accounts(file: str) -> Accounts:
    """The tenants in a file; raises ConfigError."""
    from pie_control.tenants.accounts import read_accounts  # `pie --help` needs no msgspec

    accounts = read_accounts(Path(file).expanduser())
    for tenant in accounts.tenants:
        try:
            AllowList(tenant.http_allow or ())
        except ConfigError as error:
            raise ConfigError(f"{file}: tenant {tenant.name}: {error}") from None
    return accounts


def _find_adapter(text: str, models: Sequence[ModelPath], others: bool) -> AdapterPath:
    """`others`: workers of other machines may serve more models, and read folders of their own."""
    found = NAMED_ADAPTER.fullmatch(text)
    if found is None:
        raise ConfigError(f"adapter must be [MODEL/]NAME=FOLDER, not {text!r}")
    model = found[1] or (models[0].name if models else "")
    name, folder = found[2], Path(found[3]).expanduser().resolve()
    if not model:
        raise ConfigError(f"adapter {name}: say for which model, as in --adapter MODEL/{name}={found[3]}")
    if others and model not in [one.name for one in models]:
        return AdapterPath(name, model, found[3])
    if model not in [one.name for one in models]:
        raise ConfigError(f"adapter {name}: no model {model!r}; there are: {', '.join(one.name for one in models)}")
    if not folder.is_dir():
        raise ConfigError(f"adapter {name}: no folder {folder}")
    return AdapterPath(name, model, str(folder))


def _shipped_model(folder: str) -> Path:
    # Found without importing the package, so that the control process never loads torch.
    spec = importlib.util.find_spec("pie_inference")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package pie_inference is not installed, so there is no demo model; give --model PATH")
    return Path(next(iter(spec.submodule_search_locations))) / folder
