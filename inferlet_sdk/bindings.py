"""The host's functions: the only module that imports what componentize-py generates from the WIT world.

Inside the component the names below are the generated modules. On a normal CPython there is no host; tests (and whoever
runs an inferlet natively) give one with `install`. Other modules say `bindings.core.send(...)`, so that they see it.
"""

from __future__ import annotations

from typing import Any

INTERFACES = ("core", "allocate", "input_text", "forward", "tokenize", "output_text", "fused", "guest_source")


class _NoHost:
    """Stands for an interface where no host is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Any:
        raise RuntimeError(
            f"{self._name}.{function}: inferlet_sdk works inside an inferlet; start the program with `pie run FILE`"
        )


class _NoHostError(Exception):
    """Stands for the generated error type where no host is."""

    value: Any = None


HostError: type[Exception]
"""What a refused host call raises; `value` is the WIT record `error`."""

core: Any
allocate: Any
input_text: Any
forward: Any
tokenize: Any
output_text: Any
fused: Any
guest_source: Any

try:
    from componentize_py_types import Err as HostError  # type: ignore[import-not-found,no-redef]
    from wit_world.imports import (  # type: ignore[import-not-found]
        allocate,
        core,
        forward,
        fused,
        guest_source,
        input_text,
        output_text,
        tokenize,
    )
except ImportError:
    HostError = _NoHostError
    for _name in INTERFACES:
        globals()[_name] = _NoHost(_name)


def install(host: Any, host_error: type[Exception]) -> None:
    """Uses `host`, an object with one attribute per interface, and the error type that its functions raise."""
    for name in INTERFACES:
        globals()[name] = getattr(host, name)
    globals()["HostError"] = host_error
