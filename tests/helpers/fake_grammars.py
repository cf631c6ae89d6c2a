"""Grammars of the host for tests of the SDK: the same engine, over the bytes and special tokens of the toy model."""

from __future__ import annotations

import functools
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from pie_control.calls.fused.matching import least_forced
from pie_inference.grammars import engine
from pie_inference.grammars.sources import GrammarError, source_of
from pie_inference.grammars.stack import start_deep
from pie_inference.testing import byte_tokenizer


@functools.cache
def vocabulary() -> engine.Vocabulary:
    """Tokens 0 to 255 are bytes, the end token is the second special one."""
    return engine.Vocabulary(byte_tokenizer.tokenizer_json(), byte_tokenizer.VOCAB_SIZE, (byte_tokenizer.END,))


def compiled(kind: str, text: str, **options: bool) -> engine.Grammar:
    """Compiled on a thread that may nest deep. Raises GrammarError."""
    grammar: engine.Grammar = deep(lambda: engine.Grammar(vocabulary(), source_of(kind, text, **options)))
    return grammar


def deep(work: Callable[[], Any]) -> Any:
    """What `work` gives, called on a thread with a deep stack."""
    found = SimpleNamespace(value=None, error=None)

    def run() -> None:
        try:
            found.value = work()
        except BaseException as error:
            found.error = error

    thread: threading.Thread = start_deep(run)
    thread.join()
    if found.error is not None:
        raise found.error
    return found.value


def bits(matcher: engine.Matcher) -> list[int]:
    """Tokens that may come next."""
    found: list[int] = np.flatnonzero(np.unpackbits(matcher.mask(), bitorder="little")).tolist()
    return found


class FakeMatcher:
    """A handle: a matcher, and what it has accepted."""

    def __init__(self, grammar: engine.Grammar, tokens: list[int]) -> None:
        self.grammar = grammar
        self.tokens = list(tokens)

    def inner(self) -> engine.Matcher:
        inner = self.grammar.matcher()
        assert inner.accept(self.tokens) == len(self.tokens)
        return inner

    def accept(self, tokens: list[int]) -> int:
        count = self.inner().accept(tokens)
        self.tokens += tokens[:count]
        return count

    def rollback(self, count: int) -> None:
        assert count <= len(self.tokens)
        del self.tokens[len(self.tokens) - count :]

    def mask(self) -> str:
        return b64encode(self.inner().mask().tobytes()).decode()


def constrained(matcher: FakeMatcher, token: int, made: list[int], stop: Sequence[int]) -> int:
    """The token, or the next one that may come after those made; one of `stop` where the text may end."""
    one = FakeMatcher(matcher.grammar, [*matcher.tokens, *made]).inner()
    if token in stop and one.is_accepting:
        return token
    allowed = bits(one)
    return min(allowed, key=lambda other: (other < token, other))


def is_over(matcher: FakeMatcher, made: list[int], skip: int) -> bool:
    """Whether a run ends with the last of the tokens made."""
    one = FakeMatcher(matcher.grammar, matcher.tokens).inner()
    one.accept(made)
    return one.is_over or 0 < least_forced(skip) <= len(one.forced())


__all__ = ["FakeMatcher", "GrammarError", "bits", "compiled", "constrained", "deep", "is_over", "vocabulary"]
