"""The traits that a model implements, what each of them consists of, and the refusal of calls that belong to another
(paper, section 4.4)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pie_inference.protocol import ModelDescription

from ..calls import CALLS, implemented_traits
from ..calls.traits import TRAITS, Trait
from . import wit_files


def traits_of(model: ModelDescription) -> list[tuple[Trait, tuple[str, ...]]]:
    """Each trait with the names of its functions, as in the WIT."""
    return [(trait, _functions(trait)) for trait in implemented_traits(model.calls, bool(model.tokenizer))]


def refusals(model: ModelDescription) -> Mapping[str, str]:
    """What is said to the calls of traits that the model lacks, by their names with underscores; and to parameters that
    need such a trait, by the names of call and parameter."""
    return _refusals(model.name, model.calls, bool(model.tokenizer))


@functools.cache
def _refusals(model: str, worker_calls: tuple[str, ...], has_tokenizer: bool) -> Mapping[str, str]:
    implemented = implemented_traits(worker_calls, has_tokenizer)
    there = ", ".join(trait.name for trait in implemented)
    lacking = {trait.interface: trait for trait in TRAITS if trait not in implemented}
    belong = {name.replace("-", "_"): (name, trait) for trait in lacking.values() for name in _functions(trait)}
    for call in CALLS.values():
        for parameter, interface in call.needs.items():
            if interface in lacking:
                belong[f"{call.name}.{parameter}"] = f"`{parameter}` of {call.name}", lacking[interface]
    return {
        key: f"model {model} does not implement {trait.name} ({name} belongs to it); it has: {there}"
        for key, (name, trait) in belong.items()
    }


def _functions(trait: Trait) -> tuple[str, ...]:
    return wit_files.names(wit_files.current(), trait.interface.replace("_", "-"))
