"""Grammars as values, and matchers, which say what may come next in a text.

`Context.generate` takes a `schema`, a `regex` or a `grammar` itself. A `Matcher` is for programs that go on with a
constrained text after something else, or choose tokens themselves:

    matcher = await Grammar.of_regex("[0-9]+(-[0-9]+)*").matcher()
    await ctx.generate_until(grammar=matcher, max_tokens=5)
    other, branch = matcher.fork(), ctx.fork()
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from inferlet_sdk import bindings, traits
from inferlet_sdk.dropped import drop, give_back
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.texts import json_text
from inferlet_sdk.traits.arguments import flag, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.grammar.matchers import Advanced, GrammarState, OpenedMatcher


def _written(schema: Mapping[Any, Any]) -> str:
    try:
        return json_text(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"schema: it cannot be written as JSON: {error}") from None


@dataclass(frozen=True)
class Grammar:
    """A JSON Schema, a regular expression or a grammar in the syntax of Lark. The host compiles it once, however many
    use it."""

    kind: str
    """"json-schema", "regex" or "lark"."""
    text: str
    whitespace: bool = False
    """Whether JSON may have any whitespace; by default it is written as `json.dumps` does."""

    @classmethod
    def of_schema(cls, schema: object, *, whitespace: bool = False) -> Grammar:
        """JSON that keeps to a JSON Schema: a dict, or its text."""
        if isinstance(schema, str):
            text = checked_text(schema, "schema")
        elif isinstance(schema, Mapping):
            text = _written(schema)
        else:
            raise wrong("schema", "a JSON Schema, as a dict or its text", schema)
        return cls("json-schema", text, flag(whitespace, "whitespace"))

    @classmethod
    def of_regex(cls, pattern: object) -> Grammar:
        """A text of which a regular expression matches all."""
        return cls("regex", checked_text(pattern, "regex"))

    @classmethod
    def of_lark(cls, text: object) -> Grammar:
        """A text that a grammar in the syntax of Lark derives from its rule `start`."""
        if not isinstance(text, str):
            raise wrong("grammar", "a Grammar, a Matcher or the text of a grammar", text)
        return cls("lark", checked_text(text, "grammar"))

    async def matcher(self, model: str | None = None) -> Matcher:
        """A matcher at the beginning, for a model (default: the first of `available_models()`). Raises InvalidArgument
        if the grammar is wrong; the message says where."""
        give_back()
        with queues_of(model if model is not None else traits.available_models()[0]).some() as queue:
            opening = self.open(queue)
        return Matcher((await opening).matcher)

    def open(self, queue: int) -> HostFuture[OpenedMatcher]:
        """A matcher of the host for the model of a queue (`traits.open_matcher`)."""
        return traits.open_matcher(queue, self.kind, self.text, whitespace=self.whitespace)


class Matcher:
    """Stands behind the tokens that it has accepted."""

    _closed = True  # until it is made

    def __init__(self, number: int) -> None:
        """`number` is that of the host (`traits.open_matcher`)."""
        self._number = number
        self._host = bindings.host
        self._closed = False

    def __del__(self) -> None:
        if not self._closed:
            drop(self, self._host)

    @property
    def number(self) -> int:
        """For the calls of `traits`."""
        if self._closed:
            raise InvalidState("the matcher is closed: fork it before closing, or make a new one")
        return self._number

    def accept(self, tokens: Sequence[int]) -> int:
        """Accepts tokens up to the first that may not come; returns how many."""
        return traits.grammar_accept(self.number, tokens)

    def advance(self, tokens: Sequence[int], skip: int, most: int, detokenizer: int) -> Advanced:
        """Accepts tokens, and those that are forced behind them (`traits.advance_matcher`)."""
        return traits.advance_matcher(self.number, detokenizer, tokens, skip, most)

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens."""
        traits.grammar_rollback(self.number, count)

    def forced(self) -> list[int]:
        """Tokens that come next because there is no choice."""
        return traits.grammar_forced(self.number)

    def mask(self) -> bytes:
        """Bits of the tokens that may come next, lowest bit first: `allowed` of `sample`."""
        return b64decode(traits.grammar_mask(self.number))

    def allows(self, token: int) -> bool:
        """Whether a token may come next. A program that asks for many looks at `mask`."""
        mask = self.mask()
        return 0 <= token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)

    @property
    def state(self) -> GrammarState:
        """Where it stands."""
        return traits.grammar_state(self.number)

    def fork(self) -> Matcher:
        """One that has accepted the same tokens, and goes on by itself: for a fork of a context."""
        give_back()
        return Matcher(traits.fork_matcher(self.number))

    def close(self) -> None:
        """Frees it. Idempotent."""
        if not self._closed:
            self._closed = True
            traits.destroy_matcher(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
