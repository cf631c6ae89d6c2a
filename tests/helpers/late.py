"""Packages that take seconds to import: every process of tests collects all tests, and few use these."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """A package that is imported when a test uses it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pytest asks of everything in a module, to find fixtures
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
