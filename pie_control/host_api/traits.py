"""Traits as data (paper, section 4.4): name, version, functions by WIT interface, supertraits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trait:
    """A group of functions that a model implements."""

    name: str
    version: str
    functions: tuple[str, ...]
    supertraits: tuple[str, ...]


TRAITS: dict[str, Trait] = {
    trait.name: trait
    for trait in (
        Trait(
            "Allocate",
            "0.1.0",
            ("alloc-kvpage", "dealloc-kvpage", "alloc-emb", "dealloc-emb", "copy-kvpage", "trim-kvpage"),
            (),
        ),
        Trait("Forward", "0.1.0", ("forward",), ("Allocate",)),
        Trait("InputText", "0.1.0", ("embed-txt",), ("Allocate", "Forward")),
        Trait(
            "Tokenize",
            "0.1.0",
            (
                "tokenize",
                "detokenize",
                "create-detokenizer",
                "push-tokens",
                "destroy-detokenizer",
                "get-vocabs",
                "format-chat",
            ),
            ("InputText",),
        ),
        Trait("OutputText", "0.1.0", ("get-next-dist", "take-dist", "get-logprobs", "take-logprobs"), ("Allocate",)),
        Trait(
            "Fused",
            "0.1.0",
            (
                "create-sampler",
                "destroy-sampler",
                "sample",
                "sample-constrained",
                "forward-with-sampling",
                "take-token",
            ),
            ("OutputText", "InputText"),
        ),
    )
}
