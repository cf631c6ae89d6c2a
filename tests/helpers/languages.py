"""Grammars of few texts, and which tokens may come next: found by looking through all the texts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pie_control.calls.fused.matching import Matcher
from pie_inference.grammars.engine import Vocabulary
from pie_inference.grammars.library import GrammarLibrary
from pie_inference.grammars.rows import Constraints
from pie_inference.grammars.sources import source_of
from pie_inference.testing import byte_tokenizer
from tests.helpers.guard import HANG_SECONDS

END = byte_tokenizer.END


@dataclass(frozen=True)
class Language:
    """A grammar with all its texts."""

    kind: str
    text: str
    words: frozenset[bytes]

    @property
    def source(self) -> str:
        return source_of(self.kind, self.text)

    def allowed(self, text: bytes) -> list[int]:
        """Tokens that may come next."""
        longer = {word[len(text)] for word in self.words if len(word) > len(text) and word.startswith(text)}
        return sorted(longer) + [END] * (text in self.words)

    def is_over(self, text: bytes) -> bool:
        """Whether nothing can follow but a stop token."""
        return self.allowed(text) == [END]


def _words(*parts: Sequence[str]) -> frozenset[bytes]:
    return frozenset("".join(chosen).encode() for chosen in itertools.product(*parts))


_PAIRS = ["ab", "cd", "abab", "abcd", "cdab", "cdcd"]
LANGUAGES = (
    Language("regex", "(ab|cd){1,2}[xy]?", _words(_PAIRS, ["", "x", "y"])),
    Language(
        "regex", "[p-z]{1,2}-[0-9]", _words([chr(n) for n in range(112, 123)], ["", *"pqrstuvwxyz"], "-", "0123456789")
    ),
    Language("lark", 'start: ("ab" | "abc" | "b" "c"~1..3) "."', _words(["ab", "abc", "bc", "bcc", "bccc"], ".")),
    Language("json-schema", '{"enum": ["red", "green", 7, 70]}', frozenset([b'"red"', b'"green"', b"7", b"70"])),
)


class Standing(Matcher):
    """A matcher that has accepted a text."""

    def __init__(self, language: Language, text: bytes, vocabulary: int) -> None:
        self.source, self.tokens, self.vocabulary_size = language.source, list(text), vocabulary


@cache
def compiled(vocabulary: int) -> GrammarLibrary:
    """With all languages, so that no run is told that its grammar is not ready."""
    library = GrammarLibrary(lambda: Vocabulary(byte_tokenizer.tokenizer_json(vocabulary), vocabulary, (END,)))
    deadline = time.monotonic() + HANG_SECONDS
    for language in LANGUAGES:
        while library.try_get(language.source) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    return library


def have_compiled(constraints: Constraints, vocabulary: int) -> None:
    """A worker's grammars are compiled before it is asked for them."""
    vars(constraints)["_library"] = compiled(vocabulary)
