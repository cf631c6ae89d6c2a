"""Compiled grammars and matchers, which say what may come next: llguidance behind a small interface.

Theory of operation. A guest writes grammars, so all that is done with them is bounded. The engine calls itself for what
nests, on the native stack, and an overflow would end the process: a grammar of `MOST_TEXT` characters fits a stack of
`stack.STACK` bytes (the deepest ones overflow 8 MB), so it is compiled on a thread that has one. What a step costs has
a bound in the engine (`_LIMITS`), which does not hold for all: so compiling includes `_rehearse`, which refuses
grammars that are too slow, and makes those faster that are not, because the engine keeps what it has found out.
`Matcher.seconds` counts the rest.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from .sources import GrammarError, in_words, unforced

SLOWEST_STEP = 0.05
"""Seconds of processor time of one step. Usual grammars take 0.01 to 0.1 ms, and a few ms now and then."""
REHEARSALS = 3
REHEARSED_STEPS = 40
FASTEST_PACE = 1e-6
"""Seconds that accepting a token takes at least."""
WORD = 32
"""Tokens: the mask of the engine has whole words of so many."""

_LIMITS = LLParserLimits(
    max_items_in_row=1000,
    initial_lexer_fuel=300_000,
    step_lexer_fuel=20_000,
    step_max_items=20_000,
    max_lexer_states=10_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class Vocabulary:
    """The tokens of a model, as grammars see them."""

    def __init__(self, tokenizer: bytes, size: int, stop: Sequence[int]) -> None:
        """From tokenizer.json; `size` is the model's vocabulary, `stop` its stop tokens. Takes a second for 128k
        tokens. Raises GrammarError."""
        text = _for_engine(tokenizer, size)
        self.size = size
        self.never: int | None = None  # a token that the engine takes for one that ends a text, and is none
        try:
            ends = [token for token in stop if 0 <= token < size]
            self.inner = LLTokenizer(text, n_vocab=size, eos_token=ends or None)
            if not ends:
                special = (token for token in range(size) if self.inner.is_special_token(token))
                self.never = next(special, 0)
                self.inner = LLTokenizer(text, n_vocab=size, eos_token=self.never)
        except ValueError as error:
            raise GrammarError(f"grammars do not work with the tokenizer of this model: {error}") from None
        self.words = -(-self.inner.vocab_size // WORD)
        tokens = filter(self.inner.is_special_token, range(self.inner.vocab_size))
        self._special = [*filter(None, (self.inner.decode_str([token]) for token in tokens))]  # some have none

    def readable(self, source: str) -> str:
        """A grammar as the engine has to read it: it would force the special token whose text stands in one, which is
        no text."""
        plain = source.replace("\\", "")  # those of a regular expression
        return unforced(source) if any(text in plain for text in self._special) else source

    def masks(self, count: int) -> NDArray[np.uint32]:
        """Room for what `Matcher.write_mask` writes, uint32 [count, words]."""
        return np.zeros((count, self.words), np.uint32)

    def trim(self, masks: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The written masks without what is no token, uint8 [count, ceil(size / 8)], in the same memory."""
        bits = masks.view(np.uint8)[:, : -(-self.size // 8)]
        if self.size % 8:
            bits[:, -1] &= 0xFF >> (8 - self.size % 8)
        if self.never is not None:
            bits[:, self.never >> 3] &= ~(1 << (self.never & 7)) & 0xFF
        return bits


class _Described(msgspec.Struct):
    """A tokenizer.json without its vocabulary, which takes long to read."""

    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[dict[str, Any]] = []
    padding: Any = None
    truncation: Any = None


def _for_engine(tokenizer: bytes, size: int) -> str:
    """A tokenizer.json as the engine can use it: without tokens that the model lacks, and without what fills texts up,
    cuts them, or puts a space before them. It knows the spaces of Metaspace by another name. Raises GrammarError."""
    try:
        told = msgspec.json.decode(tokenizer, type=_Described)
    except msgspec.DecodeError as error:
        raise GrammarError(f"tokenizer.json cannot be read: {error}") from None
    kinds = {one["type"]: one for one in _parts(told.decoder, "decoders")}
    if not kinds.keys() & {"ByteLevel", "ByteFallback"}:
        raise GrammarError(
            f"grammars do not work with the tokenizer of this model, whose decoder is {' + '.join(kinds) or None}: "
            "they know ByteLevel and ByteFallback; generate without a grammar, and check the text"
        )
    changes: dict[str, Any] = {name: None for name in ("padding", "truncation") if getattr(told, name)}
    if spaces := kinds.get("Metaspace"):
        replace = {"type": "Replace", "pattern": {"String": spaces.get("replacement", "▁")}, "content": " "}
        changes["decoder"] = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}]}
    for one in _parts(told.pre_tokenizer, "pretokenizers"):
        if one["type"] == "ByteLevel" and one.get("add_prefix_space"):
            one["add_prefix_space"] = False
            changes["pre_tokenizer"] = told.pre_tokenizer
    added = [token for token in told.added_tokens if token["id"] < size]
    if len(added) == len(told.added_tokens) and not changes:
        return tokenizer.decode()
    whole = msgspec.json.decode(tokenizer)
    vocab = whole["model"]["vocab"]
    known = vocab[:size] if isinstance(vocab, list) else {text: n for text, n in vocab.items() if n < size}
    return msgspec.json.encode(
        whole | changes | {"added_tokens": added, "model": whole["model"] | {"vocab": known}}
    ).decode()


def _parts(one: Any, within: str) -> list[Any]:
    """What a decoder or a pre-tokenizer consists of."""
    return one.get(within, [one]) if one else []


class Grammar:
    """A compiled grammar. Its matchers do not touch each other."""

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        """`source` is from `source_of`. Takes 1 to 1000 ms, and a deep stack. Raises GrammarError."""
        self.vocabulary = vocabulary
        self.source = source
        self._first = LLMatcher(vocabulary.inner, vocabulary.readable(source), log_level=0, limits=_LIMITS)
        self._check(self._first)
        self._lock = threading.Lock()
        self.pace = FASTEST_PACE
        """Seconds of processor time to accept a token, about; in the slowest rehearsal."""
        self._rehearse()

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise GrammarError(in_words(matcher.get_error()))

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""
        with self._lock:
            return Matcher(self.vocabulary, self._first.deep_copy())

    def _rehearse(self) -> None:
        """Walks through the grammar at random, always the same way. Raises GrammarError if no text fits, or a step
        takes too long."""
        for seed in range(REHEARSALS):
            one, choose = self.matcher(), random.Random(seed)
            walked: list[int] = []
            for _ in range(REHEARSED_STEPS):
                before = time.thread_time()
                token = self._rehearse_step(one, choose)
                if token is None:
                    break
                walked.append(token)
                _check_pace(time.thread_time() - before)
            self._note_pace(one, walked)
            self._first = one.inner

    def _rehearse_step(self, one: Matcher, choose: random.Random) -> int | None:
        """The token that the matcher has accepted; None at the end."""
        if one.is_over:
            return None
        tokens = np.flatnonzero(np.unpackbits(one.mask(), bitorder="little"))
        if one.at == 0 and not len(tokens):
            raise GrammarError("the grammar allows no text")
        token = int(choose.choice(tokens)) if len(tokens) else None
        if token is None or not one.accept((token,)):
            return None
        one.forced()
        return token

    def _note_pace(self, one: Matcher, walked: Sequence[int]) -> None:
        """How long the matcher takes to accept these tokens once more. Leaves it at the beginning."""
        one.rewind()
        before = time.thread_time()
        one.accept(walked)
        self.pace = max(self.pace, (time.thread_time() - before) / max(len(walked), 1))
        one.rewind()


def _check_pace(seconds: float) -> None:
    if seconds > SLOWEST_STEP:
        raise GrammarError(
            f"the grammar takes {1000 * seconds:.0f} ms for a token, more than {1000 * SLOWEST_STEP:.0f}: use shorter "
            "constants, and fewer or shorter repetitions"
        )


class Matcher:
    """Where a text is in a grammar, after the tokens that it has accepted. Not thread-safe."""

    __slots__ = ("_mask_bytes", "_vocabulary", "at", "inner", "seconds")

    def __init__(self, vocabulary: Vocabulary, inner: LLMatcher) -> None:
        self.inner = inner
        self.at = 0  # tokens accepted
        self.seconds = 0.0  # that its steps have taken
        self._vocabulary = vocabulary
        self._mask_bytes = vocabulary.words * WORD // 8

    def fork(self) -> Matcher:
        """One that goes on from here by itself."""
        other = Matcher(self._vocabulary, self.inner.deep_copy())
        other.at = self.at
        return other

    def accept(self, tokens: Sequence[int]) -> int:
        """Accepts tokens up to the first that may not come; how many. Raises GrammarError."""
        before = time.perf_counter()
        count: int = self.inner.try_consume_tokens(list(tokens))
        self.at += count
        self._count(before)
        return count

    def accept_one(self, token: int) -> bool:
        """Accepts a token, if it may come. Raises GrammarError."""
        before = time.perf_counter()
        if not self.inner.try_consume_tokens([token]):
            self._count(before)
            return False
        self.at += 1
        self.seconds += time.perf_counter() - before
        return True

    def rollback(self, count: int) -> None:
        """Takes back the last tokens."""
        if count:
            self.inner.rollback(count)
            self.at -= count
            self._check()

    def rewind(self) -> None:
        """To the beginning."""
        self.inner.reset()
        self.at = 0
        self._check()

    def mask(self) -> NDArray[np.uint8]:
        """Bits of the tokens that may come next, lowest bit first, uint8 [ceil(size / 8)]. Raises GrammarError."""
        masks = self._vocabulary.masks(1)
        self.write_mask(masks.ctypes.data, time.thread_time())
        bits: NDArray[np.uint8] = self._vocabulary.trim(masks)[0]
        return bits

    def write_mask(self, address: int, before: float) -> float:
        """Writes the words of the mask, 4 bytes each, to `address`, and leaves other threads running meanwhile: so it
        is timed by the processor time of this thread, in seconds, which is `before` now. Gives what it is then. Raises
        GrammarError."""
        self.inner.unsafe_compute_mask_ptr(address, self._mask_bytes)
        after = time.thread_time()
        self.seconds += after - before
        self._check()
        return after

    def forces(self, count: int) -> bool:
        """Whether so many tokens, or more, must come next."""
        before = time.perf_counter()
        found = len(self.inner.compute_ff_bytes()) >= count  # a token has a byte at least; this is much the cheaper
        enough = found and len(self.inner.compute_ff_tokens()) >= count
        self._count(before)
        return enough

    def forced(self) -> list[int]:
        """Tokens that must come next, as the tokenizer writes their text; empty where there is a choice."""
        before = time.perf_counter()
        tokens: list[int] = self.inner.compute_ff_tokens()
        self._count(before)
        return tokens

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow but a stop token."""
        return bool(self.inner.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self.inner.is_accepting())

    def _count(self, before: float) -> None:
        self.seconds += time.perf_counter() - before
        self._check()

    def _check(self) -> None:
        if self.inner.is_error():
            raise GrammarError(in_words(self.inner.get_error()))
