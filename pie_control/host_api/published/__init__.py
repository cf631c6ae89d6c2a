"""The published versions of the API: components that were built for an older one keep running.

The functions of a version are those of the version after it, but for what its module here adapts. So a module says
once what changed after its version, and never changes again itself. docs/adding-a-call.md says how to publish one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...sandbox.contract import Edition
from ...sandbox.functions import HostFunction
from .. import wit_files
from . import v0_1

Functions = Mapping[tuple[str, str], HostFunction]
Adapters = Mapping[tuple[str, str], Callable[[HostFunction], HostFunction]]

OLDER: tuple[tuple[str, Adapters], ...] = ((v0_1.VERSION, v0_1.ADAPTERS),)
"""From the newest to the oldest."""


def editions(functions: Functions) -> Iterator[Edition]:
    """All versions, from the newest to the oldest; `functions` are those of the newest."""
    package = wit_files.current()
    yield Edition(package.version, package.signatures, functions)
    for version, adapters in OLDER:
        package = wit_files.older(version)
        functions = {name: _adapted(name, functions, adapters) for name in package.signatures}
        yield Edition(version, package.signatures, functions)


def _adapted(name: tuple[str, str], newer: Functions, adapters: Adapters) -> HostFunction:
    adapter = adapters.get(name)
    return newer[name] if adapter is None else adapter(newer[name])
