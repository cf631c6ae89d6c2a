"""Grammars over the bytes and special tokens of models without weights."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from pie_inference.grammars import engine
from pie_inference.grammars.sources import source_of
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
