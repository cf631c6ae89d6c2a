"""Marks host functions that may suspend the guest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_marked: set[Callable[..., Any]] = set()


def suspending(function: F) -> F:
    """The function may return SUSPEND."""
    _marked.add(function)
    return function


def is_suspending(function: Callable[..., Any]) -> bool:
    return function in _marked
