"""A byte-level BPE tokenizer of any size, made in seconds and without a corpus."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from pie_inference.testing import byte_tokenizer

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
WEIGHTS = (127, 91, 82, 75, 70, 67, 63, 61, 60, 43, 40, 28, 28, 24, 24, 22, 20, 20, 19, 15, 10, 8, 2, 2, 1, 1)
"""Per mille in English texts."""
LONGEST_WORD = 12
SIGNS = (
    'Ġ"',
    'Ġ{"',
    'Ġ["',
    'Ġ[{"',
    '":',
    '",',
    '"}',
    '"},',
    '{"',
    "},",
    '["',
    '[{"',
    '"]',
    '"],',
    '"]}',
    '"]},',
    "],",
    "]},",
    "{}",
)
"""What JSON has between its values, as the tokenizers of trained models have it."""
DIGITS = 3
SEED = 1


def bpe_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json with the bytes and special tokens of `byte_tokenizer`, and behind them tokens that are merged
    from two others each: signs of JSON, numbers of three digits, and words of random letters, half of them behind a
    space. Always the same."""
    start: dict[str, Any] = json.loads(byte_tokenizer.tokenizer_json())
    vocabulary: dict[str, int] = dict(start["model"]["vocab"])
    used = len(vocabulary) + len(start["added_tokens"])
    merges: list[list[str]] = []
    for parts in _texts(random.Random(SEED)):
        for left, right in zip(_beginnings(parts), parts[1:], strict=False):
            if left + right not in vocabulary and used < vocab_size:
                vocabulary[left + right] = used
                merges.append([left, right])
                used += 1
        if used == vocab_size:
            break
    return {**start, "model": {**start["model"], "vocab": vocabulary, "merges": merges}}


def _texts(choose: random.Random) -> Iterator[Sequence[str]]:
    """Texts, letter by letter: all beginnings of each become tokens."""
    yield from SIGNS
    yield from (f"{number:0{digits}}" for digits in range(2, DIGITS + 1) for number in range(10**digits))
    while True:
        word = "".join(choose.choices(LETTERS, WEIGHTS, k=choose.randint(2, LONGEST_WORD)))
        yield choose.choice(("", "Ġ")) + choose.choice((word, word, word.capitalize()))


def _beginnings(parts: Sequence[str]) -> Iterator[str]:
    text = ""
    for part in parts:
        text += part
        yield text
