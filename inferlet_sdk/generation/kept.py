"""What `generate` is told to keep a text to: a schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.grammars.guide import Guide

WHERE_IT_PAYS = 1
"""What `skip` says: forced tokens are run together where there are so many that this usually pays, as the host says.
That number never depends on how busy a server is, because a model may write a forced text with other tokens than those
that are run together."""


class Kept(TypedDict, total=False):
    """To what `generate` keeps a text: one of these."""

    schema: Mapping[str, Any] | str | None
    """A JSON Schema."""
    regex: str | None
    grammar: Grammar | Matcher | str | None
    """In the syntax of Lark, or a `Grammar`, or a `Matcher`, which goes on from where it stands."""


OPTIONS = ("max_tokens", "sampler", "stop", "logprobs", "draft", "run_ahead", "include_stop", *Kept.__annotations__)
"""The options of `generate`, by name."""


def as_guide(kept: Kept, sampler: Sampler | DistSampler, logprobs: object) -> Guide | None:
    """What keeps a generation to what `generate` was given, if anything. Raises TypeError or ValueError for what does
    not go together."""
    given = _given(kept)
    if given is None:
        return None
    if isinstance(sampler, DistSampler):
        raise TypeError(
            "sampler: the host cannot keep a function to a grammar: choose among what `Matcher.mask` allows in it"
        )
    skip = WHERE_IT_PAYS if logprobs is None else 0  # forced tokens have no log-probabilities, so they are sampled
    return Guide(given, skip)


def _no_such_option(name: str) -> str:
    advice = f"there are {', '.join(OPTIONS)}"
    if name in Sampler.__dataclass_fields__:
        advice = f"write sampler=Sampler({name}=...)"
    elif close := get_close_matches(name, OPTIONS, 1):
        advice = f"did you mean {close[0]!r}?"
    return f"generate takes no argument {name!r}: {advice}"


def _given(kept: Kept) -> Grammar | Matcher | None:
    if unknown := kept.keys() - Kept.__annotations__.keys():
        raise TypeError(_no_such_option(min(unknown)))
    named = [name for name, value in kept.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} are both given: a text can keep to one of them")
    if (schema := kept.get("schema")) is not None:
        return Grammar.of_schema(schema)
    if (regex := kept.get("regex")) is not None:
        return Grammar.of_regex(regex)
    grammar = kept.get("grammar")
    if isinstance(grammar, Grammar | Matcher):
        return grammar
    return Grammar.of_lark(grammar)
