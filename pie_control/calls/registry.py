"""Finds the rooms of all calls."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from .kind import Call, Command, Stage
from .traits import TRAITS, Trait


def _find_calls() -> Iterator[Call]:
    """Every module in a folder beside this file that defines CALL."""
    package = __name__.rpartition(".")[0]
    for found in pkgutil.walk_packages([str(Path(__file__).parent)], package + "."):
        if not found.ispkg and found.name.count(".") > package.count(".") + 1:
            call = getattr(importlib.import_module(found.name), "CALL", None)
            if isinstance(call, Call):
                yield call


CALLS: Mapping[str, Call] = {call.name: call for call in sorted(_find_calls(), key=lambda call: call.name)}
"""All calls by name."""


def _leaves(kind: type[Command]) -> Iterator[type[Command]]:
    """Those kinds of commands that have no kinds of their own."""
    kinds = kind.__subclasses__()
    for one in kinds:
        yield from _leaves(one)
    if not kinds:
        yield kind


COMMANDS: tuple[type[Command], ...] = tuple(sorted(_leaves(Command), key=lambda kind: kind.__name__))
"""All kinds of commands."""


def implemented_traits(worker_calls: Collection[str], has_tokenizer: bool) -> tuple[Trait, ...]:
    """The traits of a model whose worker runs these calls: those that need no other from it, nor do their
    supertraits."""
    missing = {
        call.interface for call in CALLS.values() if call.stage is not Stage.CONTROL and call.name not in worker_calls
    }
    missing.update(trait.interface for trait in TRAITS if trait.needs and trait.needs not in worker_calls)
    if not has_tokenizer:
        missing.add("tokenize")
    found: dict[str, Trait] = {}
    for trait in TRAITS:  # supertraits come first
        if trait.interface not in missing and found.keys() >= set(trait.supertraits):
            found[trait.name] = trait
    return tuple(found.values())
