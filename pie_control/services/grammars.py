"""Grammars of inferlets: compiled on threads beside the event loop, and kept for those that come with the same text.

A matcher is a grammar and the tokens that it has accepted; everything else can be found out again. So only those that
were used last keep what the engine has found out.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from pie_inference.grammars import engine
from pie_inference.grammars.sources import MOST_TEXT, GrammarError, source_of
from pie_inference.protocol import ModelDescription

from ..calls.fused import matching
from ..errors import InvalidArgument, QuotaExceeded, Unsupported
from ..texts import cut_middle
from .nesting import check_depth

MOST_GRAMMARS = 128
MOST_CHARACTERS = 16 * MOST_TEXT
"""Most characters of all grammars of a model that are kept."""
MOST_LIVE = 128
"""Matchers of a model that keep what the engine has found out: kilobytes each, and some megabytes at most."""
MOST_MESSAGE = 2000
"""Characters of what is said about a grammar."""
SHORT_GRAMMAR = 4096
"""Characters of one that takes less than about a millisecond for what does not look at tokens; and for a mask over"""
SHORT_VOCABULARY = 1 << 14
SHORT_SECONDS = 0.0005
"""To accept tokens, at the pace of the grammar. A thread takes longer to begin than a usual grammar for 100 tokens."""


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of this name (grammar.wit)."""

    whitespace: bool = False


class Grammar:
    """A compiled grammar. `most`: tokens that a matcher of it accepts; `advances`: whether one
    at the beginning has something to do before a run (`Matcher.advance`)."""

    __slots__ = ("advances", "engine", "live", "most")

    def __init__(self, compiled: engine.Grammar, most: int, live: Live) -> None:
        """Raises GrammarError."""
        first = compiled.matcher()
        self.engine = compiled
        self.most = most
        self.live = live
        self.advances = first.forces(matching.USUALLY_PAYS) or first.is_over


class Advanced(NamedTuple):
    """`accepted`: how many of the tokens; `forced`: those behind them that were accepted as well; `over`: nothing can
    follow but a stop token."""

    accepted: int
    forced: list[int]
    over: bool


class Live:
    """The matchers that keep what the engine has found out. Used by several threads."""

    def __init__(self) -> None:
        self._last: OrderedDict[GrammarMatcher, None] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, matcher: GrammarMatcher) -> None:
        with self._lock:
            self._last[matcher] = None
            self._last.move_to_end(matcher)
            while len(self._last) > MOST_LIVE:
                self._last.popitem(last=False)[0].forget()

    def drop(self, matcher: GrammarMatcher) -> None:
        with self._lock:
            self._last.pop(matcher, None)


class GrammarMatcher(matching.Matcher):
    """A handle of an inferlet. What is not `is_short` belongs on a thread. Errors are InvalidArgument."""

    def __init__(self, grammar: Grammar, tokens: Sequence[int] = ()) -> None:
        self.grammar = grammar
        self.source = grammar.engine.source
        self.tokens = list(tokens)
        self.vocabulary_size = grammar.engine.vocabulary.size
        self._engine: engine.Matcher | None = None
        self._closed = False

    def is_short(self, tokens: int = 0, mask: bool = False) -> bool:
        """Whether it takes less than about a millisecond to accept so many tokens, or to say what is asked."""
        if self._engine is None:
            tokens += len(self.tokens)
        small = len(self.source) <= SHORT_GRAMMAR and tokens * self.grammar.engine.pace <= SHORT_SECONDS
        return small and (not mask or self.grammar.engine.vocabulary.size <= SHORT_VOCABULARY)

    def forget(self) -> None:
        self._engine = None

    def close(self) -> None:
        """Gives back what it holds. Idempotent."""
        self._closed = True
        self.grammar.live.drop(self)
        self.forget()

    def fork(self) -> GrammarMatcher:
        """One that has accepted the same tokens."""
        other, inner = GrammarMatcher(self.grammar, self.tokens), self._engine
        if inner is not None:
            other._engine = inner.fork()
            self.grammar.live.use(other)
        return other

    def _live(self) -> engine.Matcher:
        inner = self._engine
        if inner is None:
            inner = self.grammar.engine.matcher()
            if inner.accept(self.tokens) < len(self.tokens):
                raise GrammarError("the matcher has lost its place: make a new one")
            self._engine = inner
        if not self._closed:  # its inferlet may have ended meanwhile
            self.grammar.live.use(self)
        return inner

    def accept(self, tokens: Sequence[int]) -> int:
        """Accepts tokens up to the first that may not come; how many."""
        if len(self.tokens) + len(tokens) > self.grammar.most:
            raise QuotaExceeded(f"a matcher accepts {self.grammar.most} tokens at most, as many as a context has")
        try:
            count = self._live().accept(tokens)
        except GrammarError as error:
            self.forget()
            raise _refused(error) from None
        self.tokens += tokens[:count]
        return count

    def rollback(self, count: int) -> None:
        """Takes back the last tokens."""
        if count > len(self.tokens):
            raise InvalidArgument(f"{count} tokens are to be taken back, and {len(self.tokens)} were accepted")
        self.tokens = self.tokens[: len(self.tokens) - count]
        inner = self._engine  # another thread may take it away meanwhile
        if inner is not None:
            try:
                inner.rollback(count)
            except GrammarError:
                self.forget()

    def mask(self) -> bytes:
        """Bits of the tokens that may come next, lowest bit first."""
        try:
            return self._live().mask().tobytes()
        except GrammarError as error:
            self.forget()
            raise _refused(error) from None

    def forced(self) -> list[int]:
        """Tokens that must come next."""
        try:
            return self._live().forced()
        except GrammarError as error:
            self.forget()
            raise _refused(error) from None

    def advance(self, tokens: Sequence[int], skip: int, most: int) -> Advanced:
        """Accepts tokens; and if it accepts all, and so many are forced behind them as `skip` says (grammar.wit), those
        as well, but `most` at most."""
        least, accepted, forced = matching.least_forced(skip), self.accept(tokens), []
        if least and most and accepted == len(tokens):
            found = self.forced()
            forced = found[:most] if len(found) >= least else []
            self.accept(forced)
        try:
            return Advanced(accepted, forced, self._live().is_over)
        except GrammarError as error:
            raise _refused(error) from None

    def state(self) -> str:
        """What it stands for, as JSON (grammar.wit)."""
        try:
            inner = self._live()
        except GrammarError as error:
            raise _refused(error) from None
        told = {"accepting": inner.is_accepting, "over": inner.is_over, "tokens": len(self.tokens)}
        return msgspec.json.encode(told).decode()


class Grammars:
    """The grammars of one model on a host. `compile` may run on several threads."""

    def __init__(self, description: ModelDescription) -> None:
        self._description = description
        self._vocabulary: engine.Vocabulary | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str, str], Grammar] = OrderedDict()
        self._characters = 0
        self._live = Live()
        self._compiling: dict[tuple[str, str, str], threading.Lock] = {}
        self._waiting: Counter[tuple[str, str, str]] = Counter()  # who compile one, or wait for who does

    def find(self, kind: str, text: str, options: str) -> Grammar | None:
        """One that is compiled."""
        with self._lock:
            found = self._found.get((kind, text, options))
            if found is not None:
                self._found.move_to_end((kind, text, options))
            return found

    def compile(self, kind: str, text: str, options: str) -> Grammar:
        """Takes 1 to 1000 ms; the first time a second more. Of those who come with the same text at once, one compiles
        it. Raises InvalidArgument, Unsupported."""
        key = kind, text, options
        with self._alone(key):
            found = self.find(*key)
            if found is not None:
                return found
            vocabulary = self._of_model()
            try:
                compiled = engine.Grammar(vocabulary, _source(*key))
                grammar = Grammar(compiled, self._description.max_context, self._live)
            except GrammarError as error:
                raise _refused(error) from None
            self._keep(key, grammar)
            return grammar

    @contextmanager
    def _alone(self, key: tuple[str, str, str]) -> Iterator[None]:
        """Waits for others who compile the same."""
        with self._lock:
            own = self._compiling.setdefault(key, threading.Lock())
            self._waiting[key] += 1
        try:
            with own:
                yield
        finally:
            with self._lock:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key], self._compiling[key]

    def _of_model(self) -> engine.Vocabulary:
        one = self._description
        with self._making:
            if self._vocabulary is None:
                try:
                    self._vocabulary = engine.Vocabulary(one.tokenizer, one.vocab_size, one.stop_tokens)
                except GrammarError as error:
                    raise Unsupported(str(error)) from None
            return self._vocabulary

    def _keep(self, key: tuple[str, str, str], grammar: Grammar) -> None:
        with self._lock:
            if key not in self._found:
                self._characters += len(key[1])
            self._found[key] = grammar
            while len(self._found) > MOST_GRAMMARS or self._characters > MOST_CHARACTERS:
                (_, text, _), _ = self._found.popitem(last=False)
                self._characters -= len(text)


def _source(kind: str, text: str, options: str) -> str:
    try:
        given = msgspec.json.decode(options or "{}", type=_Options)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"options are a JSON object with whitespace: {error}") from None
    if kind == "json-schema":
        check_depth(text, "the schema")
    return source_of(kind, text, whitespace=given.whitespace)


def _refused(error: GrammarError) -> InvalidArgument:
    return InvalidArgument(cut_middle(str(error), MOST_MESSAGE))
