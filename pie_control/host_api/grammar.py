"""grammar.wit: what may come next, handled by the host. Decode runs take a matcher (pie_control/calls/fused/decode.py).

What may take longer than about a millisecond runs on a thread, while the guest is suspended.
"""

from __future__ import annotations

import base64
from typing import Any

from ..errors import QuotaExceeded
from ..services.grammars import Advanced, Grammar, GrammarMatcher
from ..services.tokenizer import SHORT_TOKENS, Detokenizer
from .guest import Guest
from .suspending import short_or_aside, suspending, when_done

MOST_MATCHED = 256
"""Grammars of the matchers of one inferlet."""


def open_matcher(guest: Guest, queue: int, kind: str, text: str, options: str) -> int:
    inferlet, grammars = guest.inferlet, guest.model_of(queue).grammars
    with inferlet.waits.issuing(len(text)) as future:
        if found := grammars.find(kind, text, options):
            inferlet.waits.resolve(future, found)
        else:
            inferlet.background.resolve(future, lambda: grammars.compile(kind, text, options))
    return future


def _add(guest: Guest, matcher: GrammarMatcher) -> int:
    return guest.add_handle(matcher, matcher.close)


def _take_matcher(guest: Guest, future: int) -> tuple[int, bool]:
    grammar: Grammar = guest.futures.take(future, Grammar)
    held = {one.grammar for one in guest.handles_of(GrammarMatcher)}
    if len(held) >= MOST_MATCHED and grammar not in held:
        raise QuotaExceeded(f"there are matchers of {MOST_MATCHED} grammars: drop some first")
    return _add(guest, GrammarMatcher(grammar)), grammar.advances


@suspending
def await_matcher(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_matcher(guest, future))


def fork_matcher(guest: Guest, matcher: int) -> int:
    return _add(guest, guest.handle(matcher, GrammarMatcher).fork())


@suspending
def grammar_mask(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, GrammarMatcher)
    return short_or_aside(guest, one.is_short(mask=True), lambda: base64.b64encode(one.mask()).decode())


@suspending
def advance_matcher(guest: Guest, matcher: int, detokenizer: int, tokens: list[int], skip: int, most: int) -> Any:
    one = guest.handle(matcher, GrammarMatcher)
    text = guest.handle(detokenizer, Detokenizer) if detokenizer else None
    if not one.is_short(len(tokens)):
        return guest.inferlet.waits.run_aside(lambda: _with_texts(one.advance(tokens, skip, most), text))
    found = one.advance(tokens, skip, most)
    return short_or_aside(guest, len(found.forced) <= SHORT_TOKENS, lambda: _with_texts(found, text))


def _with_texts(found: Advanced, text: Detokenizer | None) -> tuple[int, list[int], list[str], bool]:
    texts = [] if text is None else [text.push_one(token) for token in found.forced]
    return found.accepted, found.forced, texts, found.over


@suspending
def grammar_rollback(guest: Guest, matcher: int, count: int) -> Any:
    one = guest.handle(matcher, GrammarMatcher)
    return short_or_aside(guest, one.is_short(count), lambda: one.rollback(count))


@suspending
def grammar_forced(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, GrammarMatcher)
    return short_or_aside(guest, one.is_short(), one.forced)


@suspending
def grammar_state(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, GrammarMatcher)
    return short_or_aside(guest, one.is_short(), one.state)
