"""Traits as data (paper, section 4.4): which there are, and what each builds upon. What a trait consists of is derived
from the functions of its interface; whether a model implements it, from the calls that its worker runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trait:
    """A group of functions that a model implements: those of one WIT interface."""

    name: str
    version: str
    supertraits: tuple[str, ...] = ()

    @property
    def interface(self) -> str:
        """Name of the WIT interface, with underscores."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)[1:]


TRAITS = (
    Trait("Allocate", "0.1.0"),
    Trait("Forward", "0.1.0", ("Allocate",)),
    Trait("InputText", "0.1.0", ("Allocate", "Forward")),
    Trait("Tokenize", "0.1.0", ("InputText",)),
    Trait("OutputText", "0.1.0", ("Allocate",)),
    Trait("Fused", "0.1.0", ("OutputText", "InputText")),
)
"""Each behind its supertraits."""
