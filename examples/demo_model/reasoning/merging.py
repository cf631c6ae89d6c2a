"""Sorting digits, merging sorted digits, and merging notes. One question in eight, by its hash, is held out."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

from examples.demo_model.chat import FOODS
from examples.demo_model.reasoning.lookups import draw_name
from examples.demo_model.talk import Talk
from examples.demo_model.world import CITIES, COLOURS, PLACE_BY_NAME, THING_NOUNS, WORKERS

SORTED = (*range(2, 17), 4, 6, 8, 8, 8, 8, 8, 16, 32)
MERGED = (*range(1, 17), 8, 8, 8, 16, 16)


def is_held_out(question: str) -> bool:
    return zlib.crc32(question.encode()) % 8 == 0


def draw_digits(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(length))


def in_order(digits: str) -> str:
    return "".join(sorted(digits))


def sort_question(rng: random.Random, length: int) -> tuple[str, str]:
    digits = draw_digits(rng, length)
    return f"Sort: {digits}", in_order(digits)


def merge_question(rng: random.Random, first: int, second: int) -> tuple[str, str]:
    """Two sorted lists of these lengths, and the merged list."""
    one, other = (in_order(draw_digits(rng, length)) for length in (first, second))
    return f"Merge: {one} {other}", in_order(one + other)


def sort_digits(talk: Talk, lengths: Sequence[int] = SORTED, *, held_out: bool = False) -> None:
    length = talk.rng.choice(lengths)
    _ask(talk, lambda: sort_question(talk.rng, length), held_out)


def merge_digits(talk: Talk, lengths: Sequence[int] = MERGED, equal: float = 0.6, *, held_out: bool = False) -> None:
    """Two lists, a share `equal` of them of equal length."""
    first = talk.rng.choice(lengths)
    second = first if talk.rng.random() < equal else talk.rng.randint(1, 16)
    _ask(talk, lambda: merge_question(talk.rng, first, second), held_out)


def _ask(talk: Talk, draw: Callable[[], tuple[str, str]], held_out: bool) -> None:
    while is_held_out((drawn := draw())[0]) != held_out:
        pass
    talk.exchange(*drawn)


# Notes


def draw_fact(rng: random.Random) -> str:
    """A sentence about somebody."""
    who = draw_name(rng)
    return rng.choice(
        (
            f"{who} has a {rng.choice(COLOURS)} {rng.choice(THING_NOUNS)}.",
            f"{who} is at the {rng.choice(list(PLACE_BY_NAME))}.",
            f"{who} likes {rng.choice(FOODS)}.",
            f"{who} lives in {rng.choice(CITIES)}.",
            f"{who} works as a {rng.choice(WORKERS)}.",
        )
    )


def draw_notes(rng: random.Random, first: int, second: int, shared: int) -> tuple[list[str], list[str]]:
    """Two notes with so many facts, `shared` of them in both."""
    facts: dict[str, None] = {}
    while len(facts) < first + second - shared:
        facts[draw_fact(rng)] = None
    listed = list(facts)
    one = listed[:first]
    other = listed[first:] + rng.sample(one, shared)
    rng.shuffle(other)
    return one, other


def merged(one: list[str], other: list[str]) -> str:
    return " ".join([*one, *(fact for fact in other if fact not in one)])


def notes_question(one: list[str], other: list[str]) -> str:
    return f"Merge these notes.\n1. {' '.join(one)}\n2. {' '.join(other)}"


def merge_notes(talk: Talk, lengths: Sequence[int] = range(1, 7), *, held_out: bool = False) -> None:
    """Two notes of so many facts each, none to two of them in both."""
    rng = talk.rng
    while True:
        first = rng.choice(lengths)
        second = first if rng.random() < 0.5 else rng.choice(lengths)
        shared = min(first, second, rng.choice((0, 0, 1, 1, 2)))
        one, other = draw_notes(rng, first, second, shared)
        if is_held_out(question := notes_question(one, other)) == held_out:
            break
    talk.exchange(question, merged(one, other))
