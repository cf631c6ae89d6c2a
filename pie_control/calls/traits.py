"""Traits as data (paper, section 4.4): which there are, and what each builds upon. What a trait consists of is derived
from the functions of its interface; whether a model implements it, from what its worker says of it."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = "0.3.0"
"""The version of the package of WIT files, and so of each trait: all are published together (docs/adding-a-call.md)."""


@dataclass(frozen=True)
class Trait:
    """A group of functions that a model implements: those of one WIT interface."""

    name: str
    supertraits: tuple[str, ...] = ()
    needs: str = ""  # what the worker must be able to do beside its calls, of the protocol's EXTENSIONS
    version: str = VERSION

    @property
    def interface(self) -> str:
        """Name of the WIT interface, with underscores."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)[1:]


TRAITS = (
    Trait("Core"),
    Trait("Blobs"),
    Trait("Http"),
    Trait("Topics"),
    Trait("Children"),
    Trait("Allocate"),
    Trait("Forward", ("Allocate",)),
    Trait("InputText", ("Allocate", "Forward")),
    Trait("InputImage", ("Allocate", "Forward")),
    Trait("Tokenize", ("InputText",)),
    Trait("OutputText", ("Allocate",)),
    Trait("Embedding", ("Allocate",)),
    Trait("Fused", ("OutputText", "InputText")),
    Trait("Grammar", ("Fused", "Tokenize")),
    Trait("Exports", ("Allocate",)),
    Trait("State", ("Forward",), needs="state"),
    Trait("ForwardWithAdapter", ("Forward",), needs="forward_with_adapter"),
    Trait("IntrospectiveForward", ("Forward",)),
)
"""Each behind its supertraits. Every model has those at the top, up to Allocate: the control layer does them."""
