"""The functions of WASI that a core module may import: clocks, and random numbers."""

from __future__ import annotations

from dataclasses import replace

from ..wit import WitPackage

VERSION = "0.2.0"
_WALL_CLOCK = f"wasi:clocks/wall-clock@{VERSION}"
_TIME = "record{seconds: u64, nanoseconds: u32}"
SIGNATURES = {
    (f"wasi:clocks/monotonic-clock@{VERSION}", "now"): "func() -> u64",
    (_WALL_CLOCK, "now"): f"func() -> {_TIME}",
    (f"wasi:random/random@{VERSION}", "get-random-u64"): "func() -> u64",
}
INTERFACES = frozenset(interface for interface, _ in SIGNATURES)


def beside(package: WitPackage) -> WitPackage:
    """The package with these functions. Their interfaces have their full names."""
    return replace(
        package,
        signatures={**package.signatures, **SIGNATURES},
        parameters={**package.parameters, **dict.fromkeys(SIGNATURES, ())},
        types={**package.types, _TIME: (_WALL_CLOCK, "datetime")},
        world=package.world | INTERFACES,
    )
