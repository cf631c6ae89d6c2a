"""Options that several commands share: the address of a server, and the settings of one that the command starts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
from dataclasses import Field
from typing import TYPE_CHECKING, Any

from pie_control.config import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_SERVER,
    ENVIRONMENT_PREFIX,
    ServerConfig,
    build_config,
    find_model,
    settings,
)
from pie_control.errors import ConfigError, PieError
from pie_inference.options.secret import SECRET_VARIABLE

if TYPE_CHECKING:
    from pie_control.client import Client, SyncClient

METAVARS = {str: "TEXT", int: "N", float: "SECONDS", tuple: "NAME", type(None): "N"}
TUPLE_METAVARS = {"model": "[NAME=]MODEL", "worker": "ADDRESS"}
PROBE_SECONDS = 0.5
MODELS_SECONDS = 5.0
"""Until a server that does not say which models it has is taken for one that has others."""
PROBE = f"GET /v1/health HTTP/1.1\r\nhost: {DEFAULT_HOST}\r\nconnection: close\r\n\r\n".encode()
OURS = (b'"server":"pie"', b'{"error":{"code":')
"""In an answer of a server of ours; the latter where it takes no more connections, for example."""
MOST_ANSWER = 4096


def add_server(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds `--server` and `--token`. `default`: argparse.SUPPRESS where a parser above this one has them, too."""
    parser.add_argument(
        "--server",
        metavar="URL",
        default=default,
        help=f"address of the server (default: $PIE_SERVER or {DEFAULT_SERVER})",
    )
    parser.add_argument(
        "--token",
        default=default,
        help="of a tenant, where the server asks for one; $PIE_TOKEN hides it better (default: that)",
    )


def token_of(options: argparse.Namespace) -> str | None:
    """The token that the user gave, by option or environment."""
    return options.token or os.environ.get("PIE_TOKEN") or None


def server_of(options: argparse.Namespace) -> str | None:
    """The server that the user named, by option or environment."""
    return options.server or os.environ.get("PIE_SERVER") or None


def client_of(options: argparse.Namespace) -> Client:
    """A client of the server that the user named, else of the default one."""
    from pie_control.client import Client

    return Client(server_of(options) or DEFAULT_SERVER, token_of(options))


def blocking_client(options: argparse.Namespace) -> SyncClient:
    """A client as `client_of` gives it, without `async`."""
    from pie_control.client import SyncClient

    return SyncClient(server_of(options) or DEFAULT_SERVER, token_of(options))


def is_listening() -> bool:
    """Whether a server of ours is at the default address, and not another program. One that says nothing in time is
    taken for one that starts."""
    answer = b""
    with socket.socket() as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            if probe.connect_ex((DEFAULT_HOST, DEFAULT_PORT)) != 0:
                return False
            probe.sendall(PROBE)
            while len(answer) < MOST_ANSWER and (part := probe.recv(MOST_ANSWER)):
                answer += part
        except TimeoutError:
            return not answer
        except OSError:
            return False
    return any(mark in answer for mark in OURS)


async def running_server(options: argparse.Namespace, model: str = "") -> str | None:
    """The server that the user named, else one that answers at the default address, and has the model. With a program
    behind it, a model can be nowhere else. Raises ConfigError for a model that is nowhere."""
    if (named := server_of(options)) or not is_listening():
        return named
    if not model or "+" in model or model in (names := await _models(token_of(options))):
        return DEFAULT_SERVER
    try:
        find_model(model)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. The server at {DEFAULT_SERVER} has {', '.join(names)}" if names else error
        ) from None
    return None


async def _models(token: str | None) -> list[str]:
    """Those of the server at the default address; none if it does not say."""
    from pie_control.client.chat import ChatClient

    with contextlib.suppress(PieError, TimeoutError):  # it wants another token, or starts
        async with asyncio.timeout(MODELS_SECONDS):
            return await ChatClient(DEFAULT_SERVER, token).models()
    return []


class _HelpAll(argparse.Action):
    """Shows the options that `--help` hides: the help of each is in `const`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for option, text in self.const.items():
            option.help = text
        parser.print_help()
        parser.exit()


def add_settings(
    parser: argparse.ArgumentParser, without: tuple[str, ...] = (), shown: tuple[str, ...] | None = None
) -> None:
    """Adds one option for each setting of a server, but for those `without` which the command does, also where the
    environment has them. `shown`: those that `--help` shows, `--help-all` shows the rest."""
    parser.set_defaults(without=without)
    hidden: dict[argparse.Action, str | None] = {}
    if shown is not None:
        parser.add_argument("--help-all", action=_HelpAll, nargs=0, const=hidden, help="show all options and exit")
    group = parser.add_argument_group(
        "settings of the server", "also as environment variables: PIE_MODEL, PIE_MAX_PAGES, ..."
    )
    for setting in settings():
        if setting.name in without:
            continue
        text = (setting.metadata["help"] + _default(setting)).replace("%", "%%")
        name = f"--{setting.name.replace('_', '-')}"
        if isinstance(setting.default, bool):
            option = group.add_argument(name, action="store_const", const=True, help=text)
        else:
            action = "append" if isinstance(setting.default, tuple) else "store"
            option = group.add_argument(name, action=action, metavar=_metavar(setting), help=text)
        if shown is not None and setting.name not in shown:
            hidden[option], option.help = option.help, argparse.SUPPRESS


def _metavar(setting: Field[Any]) -> str:
    if setting.name in TUPLE_METAVARS:
        return TUPLE_METAVARS[setting.name]
    if setting.name.endswith("_days"):
        return "DAYS"
    return "|".join(setting.metadata["choices"]) or METAVARS[type(setting.default)]


def _default(setting: Field[Any]) -> str:
    default = " ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    return f" (default: {default})" if default not in ("", 0, None) else ""


def given_settings(options: argparse.Namespace) -> dict[str, object]:
    """The settings that the command line names."""
    values = {setting.name: getattr(options, setting.name, None) for setting in settings()}
    return {name: value for name, value in values.items() if value is not None}


def _variable(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def config_of(options: argparse.Namespace, **defaults: object) -> ServerConfig:
    """The configuration of the server that the command starts, whose own defaults go before the general ones; raises
    ConfigError."""
    environment = {**{_variable(name): str(value) for name, value in defaults.items()}, **os.environ}
    for name in options.without:
        environment.pop(_variable(name), None)
    os.environ.pop(SECRET_VARIABLE, None)  # no process that this one starts sees it
    return build_config(given_settings(options), environment).resolved()
