"""The WIT files, which come with the SDK."""

from __future__ import annotations

import functools

from ..programs.python_guest import sdk_folder
from ..sandbox.wit import WitPackage, read_package


@functools.cache
def current() -> WitPackage:
    """The version that the SDK has."""
    return read_package(sdk_folder() / "wit")


def names(package: WitPackage, interface: str) -> tuple[str, ...]:
    """Functions of an interface, in alphabetical order."""
    return tuple(sorted(name for of, name in package.signatures if of == interface))
