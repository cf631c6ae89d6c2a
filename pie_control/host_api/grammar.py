"""grammar.wit: what may come next, handled by the host; `decode-with-matcher` is a call (pie_control/calls/grammar).

What may take longer than about a millisecond runs on a thread, while the guest is suspended.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import QuotaExceeded
from ..services.grammars import Grammar, Matcher
from .guest import Guest
from .suspending import suspending, when_done

MOST_GRAMMARS = 32
"""Of one inferlet at a time: a compiled grammar takes some megabytes at most."""


class _Compiled(NamedTuple):
    """What the future of `grammar-compile` gives."""

    grammar: Grammar


def _run(guest: Guest, is_short: bool, work: Callable[[], Any]) -> Any:
    return work() if is_short else guest.inferlet.run_aside(work)


def grammar_compile(guest: Guest, queue: int, kind: str, text: str, options: str) -> int:
    grammars = guest.model_of(queue).grammars
    found, future = grammars.find(kind, text, options), guest.futures.new(len(text))
    if found is not None:
        guest.inferlet.resolve(future, _Compiled(found))
        return future
    try:
        guest.inferlet.resolve_aside(future, lambda: _Compiled(grammars.compile(kind, text, options)))
    except BaseException:
        guest.futures.forget(future)
        raise
    return future


def take_grammar(guest: Guest, future: int) -> int:
    if guest.count_handles(Grammar) >= MOST_GRAMMARS:
        raise QuotaExceeded(f"{MOST_GRAMMARS} grammars exist: destroy some first")
    return guest.add_handle(guest.futures.take(future, _Compiled).grammar)


@suspending
def await_grammar(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: take_grammar(guest, future))


def destroy_grammar(guest: Guest, grammar: int) -> None:
    guest.drop_handle(grammar, Grammar)


def grammar_matcher(guest: Guest, grammar: int) -> int:
    return guest.add_handle(Matcher(guest.handle(grammar, Grammar)))


def fork_matcher(guest: Guest, matcher: int) -> int:
    return guest.add_handle(guest.handle(matcher, Matcher).fork())


def destroy_matcher(guest: Guest, matcher: int) -> None:
    guest.handle(matcher, Matcher).close()
    guest.drop_handle(matcher, Matcher)


@suspending
def grammar_mask(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, Matcher)
    return _run(guest, one.is_short(mask=True), lambda: base64.b64encode(one.mask()).decode())


@suspending
def grammar_accept(guest: Guest, matcher: int, tokens: list[int]) -> Any:
    one = guest.handle(matcher, Matcher)
    return _run(guest, one.is_short(len(tokens)), lambda: one.accept(tokens))


@suspending
def grammar_rollback(guest: Guest, matcher: int, count: int) -> Any:
    one = guest.handle(matcher, Matcher)
    return _run(guest, one.is_short(count), lambda: one.rollback(count))


@suspending
def grammar_forced(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, Matcher)
    return _run(guest, one.is_short(), one.forced)


@suspending
def grammar_state(guest: Guest, matcher: int) -> Any:
    one = guest.handle(matcher, Matcher)
    return _run(guest, one.is_short(), one.state)
