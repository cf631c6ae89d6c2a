"""The WIT files of each published version; they come with the SDK."""

from __future__ import annotations

import functools

from ..programs.python_guest import sdk_folder
from ..sandbox.wit import WitPackage, read_package


@functools.cache
def current() -> WitPackage:
    """The version that the SDK has."""
    return read_package(sdk_folder() / "wit")


@functools.cache
def older(version: str) -> WitPackage:
    """One that the SDK had."""
    return read_package(sdk_folder() / "wit" / "published" / version)


def names(package: WitPackage, interface: str) -> tuple[str, ...]:
    """Functions of an interface, in alphabetical order."""
    return tuple(sorted(name for of, name in package.signatures if of == interface))
