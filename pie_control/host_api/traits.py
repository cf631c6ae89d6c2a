"""The traits that a model implements, what each of them consists of, and the refusal of calls that belong to another
(paper, section 4.4)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pie_inference.protocol import ModelDescription

from ..calls import implemented_traits
from ..calls.traits import TRAITS, Trait
from . import wit_files


def traits_of(model: ModelDescription) -> list[tuple[Trait, tuple[str, ...]]]:
    """Each trait with the names of its functions, as in the WIT."""
    return [(trait, _functions(trait)) for trait in implemented_traits(model.calls, bool(model.tokenizer))]


def refusals(model: ModelDescription) -> Mapping[str, str]:
    """What is said to the calls of traits that the model lacks, by their names with underscores."""
    return _refusals(model.name, model.calls, bool(model.tokenizer))


@functools.cache
def _refusals(model: str, worker_calls: tuple[str, ...], has_tokenizer: bool) -> Mapping[str, str]:
    implemented = implemented_traits(worker_calls, has_tokenizer)
    there = ", ".join(trait.name for trait in implemented)
    return {
        name.replace("-", "_"): f"model {model} does not implement {trait.name} ({name} belongs to it); it has: {there}"
        for trait in TRAITS
        if trait not in implemented
        for name in _functions(trait)
    }


def _functions(trait: Trait) -> tuple[str, ...]:
    return wit_files.names(wit_files.current(), trait.interface.replace("_", "-"))
