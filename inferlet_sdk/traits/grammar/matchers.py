"""Grammars and matchers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue, flag, queue_number, whole
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import tokens as token_list

__all__ = [
    "Advanced",
    "GrammarState",
    "OpenedMatcher",
    "advance_matcher",
    "destroy_matcher",
    "fork_matcher",
    "grammar_accept",
    "grammar_forced",
    "grammar_mask",
    "grammar_rollback",
    "grammar_state",
    "open_matcher",
]

KINDS = ("json-schema", "regex", "lark")


@dataclass(frozen=True)
class GrammarState:
    """Where a matcher stands."""

    accepting: bool
    """Whether the text may end here."""
    over: bool
    """Whether nothing can follow but a stop token."""
    tokens: int
    """How many it has accepted."""


class OpenedMatcher(NamedTuple):
    """A matcher at the beginning. `advances`: `advance_matcher` has something to do before a run begins."""

    matcher: int
    advances: bool


class Advanced(NamedTuple):
    """`accepted`: how many of the tokens; `forced`: those behind them that it has accepted as well, with the text that
    each completes; `over`: nothing can follow but a stop token."""

    accepted: int
    forced: list[int]
    texts: list[str]
    over: bool


def open_matcher(queue: int | HasQueue, kind: str, text: str, *, whitespace: bool = False) -> HostFuture[OpenedMatcher]:
    """A matcher at the beginning of a grammar: `kind` is "json-schema" (the text is the schema), "regex" or "lark".
    `whitespace`: whether JSON may have any whitespace; by default it is written as `json.dumps` does.

    What was compiled before is there at once. The future fails with InvalidArgument if the grammar is wrong; the
    message says where.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is none of {', '.join(KINDS)}")
    options = json.dumps({"whitespace": True}) if flag(whitespace, "whitespace") else ""
    given = queue_number(queue), kind, checked_text(text, "text"), options
    return HostFuture(call(bindings.grammar.open_matcher, *given), _opened)


def _opened(future: int) -> OpenedMatcher:
    return OpenedMatcher(*bindings.grammar.await_matcher(future))


def fork_matcher(matcher: int) -> int:
    """A matcher that has accepted the same tokens, and goes on by itself."""
    return int(call(bindings.grammar.fork_matcher, whole(matcher, "matcher")))


def destroy_matcher(matcher: int) -> None:
    """Frees a matcher."""
    call(bindings.core.drop, whole(matcher, "matcher"))


def advance_matcher(matcher: int, detokenizer: int, tokens: Sequence[int], skip: int, most: int) -> Advanced:
    """Accepts tokens; and if it accepts all, and `skip` tokens or more are forced behind them (0: none count; 1: 10 or
    more, as in `decode`), these as well, but `most` at most. Without a `detokenizer` (0) there are no texts."""
    numbers = whole(skip, "skip"), whole(most, "most")
    handles = whole(matcher, "matcher"), whole(detokenizer, "detokenizer")
    return Advanced(*call(bindings.grammar.advance_matcher, *handles, token_list(tokens), *numbers))


def grammar_mask(matcher: int) -> str:
    """The tokens that may come next, packed as base64: what `decode` and `sample` of the host take."""
    return str(call(bindings.grammar.grammar_mask, whole(matcher, "matcher")))


def grammar_accept(matcher: int, tokens: Sequence[int]) -> int:
    """Accepts tokens up to the first that may not come; returns how many."""
    return advance_matcher(matcher, 0, tokens, 0, 0).accepted


def grammar_rollback(matcher: int, count: int) -> None:
    """Takes back the last `count` tokens."""
    call(bindings.grammar.grammar_rollback, whole(matcher, "matcher"), whole(count, "count"))


def grammar_forced(matcher: int) -> list[int]:
    """Tokens that come next because there is no choice."""
    return list(call(bindings.grammar.grammar_forced, whole(matcher, "matcher")))


def grammar_state(matcher: int) -> GrammarState:
    """Where a matcher stands."""
    told: Mapping[str, Any] = json.loads(call(bindings.grammar.grammar_state, whole(matcher, "matcher")))
    return GrammarState(told["accepting"], told["over"], told["tokens"])
