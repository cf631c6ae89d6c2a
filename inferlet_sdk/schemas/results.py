"""A value of a type, written by the model.

Where the model has the trait Grammar, only tokens come that the type's schema allows. Elsewhere the model writes what
it likes, and the first JSON value of it is read. A value that does not fit is written again: a schema does not say all
that a type checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import AnySampler, Greedy, Sampler, as_sampler
from inferlet_sdk.schemas.json_values import JsonScanner
from inferlet_sdk.schemas.mismatch import SchemaMismatch, Truncated
from inferlet_sdk.schemas.shapes import Shape
from inferlet_sdk.schemas.types import read_text, shape_of
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import whole

AGAIN = Sampler(temperature=0.7)
"""How a text is written again that a greedy choice has spoilt, which would choose the same once more."""


Generate = Callable[..., Generation]
"""`Context.generate`."""


async def generate_value(
    sequence: TokenSequence,
    generate: Generate,
    kind: object,
    max_tokens: int | None,
    sampler: AnySampler,
    attempts: int,
) -> Any:
    """See `Context.generate_as`."""
    shape, attempts = shape_of(kind), whole(attempts, "attempts", least=1)
    before = len(sequence.tokens)
    guided = has_grammar(sequence.info.name) and isinstance(as_sampler(sampler), Sampler)
    for attempt in range(attempts):
        asked = _another(sampler, attempt)
        try:
            if guided:
                text, ended = await _write_guided(generate, shape, max_tokens, asked)
            else:
                text, ended = await _write_freely(sequence, generate, shape, max_tokens, asked)
            return _read(text, ended, shape, max_tokens)
        except BaseException as error:
            if not sequence.closed:
                sequence.truncate(before)
            goes_on = isinstance(error, SchemaMismatch) and not isinstance(error, Truncated)
            if not goes_on or attempt == attempts - 1:
                raise
    raise AssertionError("it is read or refused")


def has_grammar(model: str) -> bool:
    """Whether the model's tokens can be kept to a grammar."""
    return any(trait.name == "Grammar" for trait in traits.available_traits(model))


def _another(sampler: AnySampler, attempt: int) -> AnySampler:
    """The sampler of an attempt: the same would write the same."""
    if attempt == 0 or not isinstance(sampler, Sampler):
        return sampler
    if isinstance(sampler, Greedy) or sampler.temperature == 0:
        return replace(AGAIN, seed=attempt)
    return sampler if sampler.seed is None else replace(sampler, seed=sampler.seed + attempt)


def _read(text: str, ended: bool, shape: Shape, max_tokens: int | None) -> Any:
    """The instance; `ended`: the text ends where it should."""
    if not ended:
        limit = f"max_tokens ({max_tokens})" if max_tokens is not None else "the model's context"
        advice = "raise max_tokens" if max_tokens is not None else "give it a shorter prompt"
        raise Truncated(f"{limit} ended the JSON text before its value did: {advice}", text=text)
    return read_text(text, shape)


async def _write_guided(
    generate: Generate, shape: Shape, max_tokens: int | None, sampler: AnySampler
) -> tuple[str, bool]:
    generation = generate(max_tokens, sampler=sampler, schema=shape.schema())
    try:
        text = await generation.whole()
    finally:
        generation.end()
    scanner = JsonScanner()
    scanner.feed(text)
    return text, scanner.done or generation.stop_reason != "length"


async def _write_freely(
    sequence: TokenSequence, generate: Generate, shape: Shape, max_tokens: int | None, sampler: AnySampler
) -> tuple[str, bool]:
    """The first value of a text; the context ends where it does."""
    start = len(sequence.tokens)
    generation = generate(max_tokens, sampler=sampler)
    search = _ValueSearch(shape.schema().get("type"))
    try:
        async for piece in generation:
            search.feed(piece)
            if search.end is not None:
                break
    finally:
        generation.end()
    if search.end is not None:
        _cut(sequence, start, search.end)
    return search.value, search.end is not None or generation.stop_reason != "length"


class _ValueSearch:
    """Finds the first JSON value of a text."""

    def __init__(self, kind: str | None) -> None:
        self._opening = {"object": "{", "array": "["}.get(kind or "")
        self._text = ""
        self._begin: int | None = None
        self._scanner = JsonScanner()
        self.end: int | None = None
        """Characters up to the end of the value, once it has come."""

    @property
    def value(self) -> str:
        """The text of the value so far."""
        return self._text[self._begin or 0 : self.end]

    def feed(self, piece: str) -> None:
        at = len(self._text)
        self._text += piece
        if self._begin is None:
            at = self._find()
        if self._begin is not None:
            end = self._scanner.feed(self._text[at:])
            self.end = None if end is None else at + end

    def _find(self) -> int:
        """Where the value begins. What stands in front of a list or object is left out."""
        lead = len(self._text) - len(self._text.lstrip())
        place = lead if self._opening is None else self._text.find(self._opening)
        self._begin = place if 0 <= place < len(self._text) else None
        return place


def _cut(sequence: TokenSequence, start: int, length: int) -> None:
    """Keeps the first `length` characters after the first `start` tokens."""
    tokens = sequence.tokens[start:]
    text = sequence.detokenize(tokens)
    if len(text) <= length:
        return
    low, high = 0, len(tokens)
    while low < high:  # the most tokens whose text is within it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _is_within(sequence, tokens[:middle], text[:length]) else (low, middle - 1)
    kept = sequence.detokenize(tokens[:low])
    sequence.truncate(start + low)
    sequence.tokens += sequence.tokenize(text[len(kept) : length], special_tokens=False)


def _is_within(sequence: TokenSequence, tokens: list[int], text: str) -> bool:
    return text.startswith(sequence.detokenize(tokens))
