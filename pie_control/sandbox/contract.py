"""What components may import of one WIT package: several published versions of it side by side.

An edition is the newest version of a series whose versions are compatible (0.2.0, 0.2.1, ...): it has all functions of
the older ones with the same types. A component is linked against the edition of the series that it was built for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wasmtime import Engine

from .components import WASI, Component, imported_functions
from .engine import LinkError
from .functions import HostFunction

_VERSION = re.compile(r"\.".join([r"(0|[1-9]\d{0,8})"] * 3), re.ASCII)


@dataclass(frozen=True)
class Edition:
    """A version of the package: types and implementations of its functions, by interface and name."""

    version: str
    signatures: Mapping[tuple[str, str], str]
    functions: Mapping[tuple[str, str], HostFunction]


class Contract:
    """All editions of a package, from the newest to the oldest."""

    def __init__(self, package: str, editions: Sequence[Edition]) -> None:
        self._package = package
        self.editions = tuple(editions)
        self._by_series = {series(edition.version): edition for edition in editions}

    def check(self, engine: Engine, component: Component) -> None:
        """Raises LinkError if a component imports what this server does not offer, or with another type."""
        for interface in component.type.imports(engine):
            if not interface.startswith(WASI):  # functions that are missing there trap when they are called
                self._edition(interface)
        for interface, name, given in imported_functions(engine, component):
            self._check_function(self._edition(interface), interface, name, given)

    def function(self, interface: str, name: str) -> HostFunction | None:
        """What implements a function of an interface, whose name is as components import it, with its version."""
        if not interface.startswith(self._package):
            return None
        return self._edition(interface).functions.get((self._plain(interface), name))

    def _plain(self, interface: str) -> str:
        return interface.removeprefix(self._package + "/").partition("@")[0]

    def _edition(self, interface: str) -> Edition:
        """The one that an import asks for; raises LinkError."""
        if not interface.startswith(self._package + "/"):
            raise LinkError(f"imports {interface}, which is not part of the world of inferlets")
        version = interface.partition("@")[2]
        edition = self._by_series.get(series(version))
        if edition is None or numbers(version) > numbers(edition.version):
            versions = [one.version for one in reversed(self.editions)]
            which, build = ("version", "it") if len(versions) == 1 else ("versions", "one of them")
            raise LinkError(
                f"imports {interface}; this server offers {self._package} in the {which} {', '.join(versions)}: "
                f"build the program against {build}"
            )
        return edition

    def _check_function(self, edition: Edition, interface: str, name: str, given: str) -> None:
        wanted = edition.signatures.get((self._plain(interface), name))
        if wanted is None:
            raise LinkError(f"imports `{name}` of {interface}, which this server does not have")
        if wanted != given:
            raise LinkError(f"imports `{name}` of {interface} as {given}, this server has {wanted}")


def numbers(version: str) -> tuple[int, ...]:
    """Empty where it is not one of ours."""
    found = _VERSION.fullmatch(version)
    return tuple(map(int, found.groups())) if found else ()


def series(version: str) -> tuple[int, ...]:
    """Versions of one series are compatible: they have all numbers in common up to the first that is not 0."""
    found = numbers(version)
    return found[:1] if found[:1] > (0,) else found[:2]
