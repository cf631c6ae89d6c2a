"""The grammars that a worker has compiled. It never waits for one: other rows of a wave would wait as well."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from .engine import Grammar, Vocabulary
from .sources import MOST_TEXT, GrammarError
from .stack import start_deep

MOST_GRAMMARS = 256
MOST_CHARACTERS = 32 * MOST_TEXT
"""Characters of all grammars that are kept. Compiled, one takes up to a hundred bytes for each of its characters."""
MOST_AT_A_TIME = 2
"""Grammars that are compiled at a time, beside the model."""


class GrammarLibrary:
    """Grammars by their source; those not used for the longest time are dropped."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        """`make_vocabulary` is called once, on another thread."""
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._found: OrderedDict[str, Grammar | GrammarError] = OrderedDict()
        self._characters = 0
        self._compiling: set[str] = set()
        self._lock = threading.Lock()
        self._making = threading.Lock()

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What they are made for; None until the first one is compiled."""
        return self._vocabulary

    def try_get(self, source: str) -> Grammar | None:
        """The grammar, or None while it is compiled, which this begins. Raises GrammarError if that failed."""
        with self._lock:
            found = self._found.get(source)
            if found is not None:
                self._found.move_to_end(source)
            elif source not in self._compiling and len(self._compiling) < MOST_AT_A_TIME:
                start_deep(lambda: self._compile(source))  # which waits for the lock
                self._compiling.add(source)
        if isinstance(found, GrammarError):
            raise found
        return found

    def _compile(self, source: str) -> None:
        found: Grammar | GrammarError
        try:
            found = Grammar(self._of_model(), source)
        except GrammarError as error:
            found = error
        except Exception as error:  # whatever ends this thread: those who wait for the grammar would wait for ever
            found = GrammarError(f"the grammar could not be compiled: {error!r}")
        with self._lock:
            self._compiling.discard(source)
            self._found[source] = found
            self._characters += len(source)
            while len(self._found) > MOST_GRAMMARS or (len(self._found) > 1 and self._characters > MOST_CHARACTERS):
                self._characters -= len(self._found.popitem(last=False)[0])

    def _of_model(self) -> Vocabulary:
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary
