"""The config of a server, read from options and environment variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, replace
from typing import Any

from pie_control.config.settings import InferletLimits, ServerConfig, settings
from pie_control.config.workers import check_workers, given_secret
from pie_control.errors import ConfigError
from pie_control.services.http.rules import AllowList
from pie_inference.options import OptionError, WorkerOptions, option_fields, read_options
from pie_inference.options.secret import SECRET_VARIABLE

ENVIRONMENT_PREFIX = "PIE_"
LISTEN_VARIABLE = "PIE_LISTEN"
OTHER_VARIABLES = frozenset({"PIE_SERVER", "PIE_TOKEN", LISTEN_VARIABLE, SECRET_VARIABLE})
"""Read by clients and by `pie worker`, and the one whose value must not stand in a command line."""

OF_KUBERNETES = "PIE_SERVICE_HOST"
"""With it come others, such as PIE_PORT, which is no number."""

BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
"""Values of settings that are switched on, as variables give them."""


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables named PIE_*, as text; a name that is no setting is refused."""
    if OF_KUBERNETES in environment:
        raise ConfigError(
            f"{OF_KUBERNETES} and the like are no settings: Kubernetes gives them to pods beside a Service called pie; "
            "set enableServiceLinks: false in the pod, or call the Service otherwise"
        )
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
        parts = value.split(",") if isinstance(value, str) else map(str, value)
        return tuple(part.strip() for part in parts if part.strip())
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
