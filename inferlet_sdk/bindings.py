"""The host's functions: the only module that imports what componentize-py generates from the WIT world.

Inside the component the names below are the generated modules. Normal CPython has no host; tests, and users who run an
inferlet natively, install one with `install`. Other modules call `bindings.core.send(...)`, so that they see it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

INTERFACES = (
    *("core", "blobs", "allocate", "input_text", "input_image", "forward", "tokenize"),
    *("output_text", "embedding", "fused", "grammar", "exports", "state", "http", "topics", "guest_source"),
    "children",
)


class _NoHost:
    """Replaces an interface where there is no host."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Any:
        raise RuntimeError(
            f"{self._name}.{function}: inferlet_sdk works inside an inferlet; start the program with `pie run FILE`"
        )


class _NoHostError(Exception):
    """Replaces the generated error type where there is no host."""

    value: Any = None


HostError: type[Exception] = _NoHostError
"""The exception of a refused host call; `value` is the WIT record `error`."""

core: Any = _NoHost("core")
blobs: Any = _NoHost("blobs")
allocate: Any = _NoHost("allocate")
input_text: Any = _NoHost("input_text")
input_image: Any = _NoHost("input_image")
forward: Any = _NoHost("forward")
tokenize: Any = _NoHost("tokenize")
output_text: Any = _NoHost("output_text")
embedding: Any = _NoHost("embedding")
fused: Any = _NoHost("fused")
grammar: Any = _NoHost("grammar")
exports: Any = _NoHost("exports")
state: Any = _NoHost("state")
http: Any = _NoHost("http")
topics: Any = _NoHost("topics")
children: Any = _NoHost("children")
guest_source: Any = _NoHost("guest_source")

host = object()
"""Stands for the inferlet whose functions these are. What holds something of it notes this, and compares: a rehearsal,
a test, and each launch that an instance serves has another one."""


def renew() -> None:
    """From now on, these are the functions of another inferlet."""
    globals()["host"] = object()


def install(interfaces: Any, host_error: type[Exception]) -> None:
    """Installs `interfaces`, an object with an attribute for each, and the error type that their functions raise."""
    for name in INTERFACES:
        globals()[name] = getattr(interfaces, name)
    renew()
    globals()["HostError"] = host_error


def _install_generated() -> None:
    """Installs the modules that componentize-py generated inside the component."""
    interfaces = {name: import_module("wit_world.imports." + name) for name in INTERFACES}
    host_error = import_module("componentize_py_types").Err
    for name in ("__setattr__", "__delattr__"):  # it is a frozen dataclass; a `with` sets the traceback of what passes
        setattr(host_error, name, getattr(Exception, name))
    install(SimpleNamespace(**interfaces), host_error)


if find_spec("wit_world") is not None:
    _install_generated()
