"""The traits that a model implements, and what each of them consists of (paper, section 4.4)."""

from __future__ import annotations

from pie_inference.protocol import ModelDescription

from ..calls import implemented_traits
from ..calls.traits import Trait
from . import derived, fused, tokenize
from .interfaces import written_functions

_FUNCTIONS = (*derived.functions(), *written_functions(tokenize), *written_functions(fused))


def traits_of(model: ModelDescription) -> list[tuple[Trait, tuple[str, ...]]]:
    """Each trait with the names of its functions, as in the WIT."""
    return [(trait, _names(trait.interface)) for trait in implemented_traits(model.calls)]


def _names(interface: str) -> tuple[str, ...]:
    return tuple(sorted({name.replace("_", "-") for of, name, _ in _FUNCTIONS if of == interface}))
