"""The version of compiled code. It is known without wasmtime, so a process that runs no guests need not load that."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

WASMTIME_VERSION = "50.0.1"
SETTINGS = 1
"""Changes with settings of `engine.new_engine` that code is compiled for."""

FEATURES = ("flags", "Features")
"""Lines of Linux' cpuinfo with what a processor can do: of x86 and of ARM."""


def code_version(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The version of code that is compiled here: it runs on processors that can do the same, under this wasmtime."""
    processor = hashlib.sha256(f"{platform.machine()} {_features(cpuinfo)}".encode()).hexdigest()[:8]
    return f"{WASMTIME_VERSION}-{SETTINGS}-{processor}"


def _features(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # another system
        return platform.processor()
    found = (line.partition(":") for line in lines)
    return next((" ".join(sorted(words.split())) for name, _, words in found if name.strip() in FEATURES), "")
