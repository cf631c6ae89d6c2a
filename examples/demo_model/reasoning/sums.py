"""Sums: nested ones, whose parts are sums, and totals step by step, with drafts that are checked, corrected and judged.

One total in eight is held out, and so is one tree of sums in eight, by a hash of what the user sees.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate

from examples.demo_model.talk import Message, Talk

DEPTH = 5
LARGEST = 99
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
Sums = Mapping[str, tuple[str, str]]


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % 8 == 0


# Nested sums


def value(sums: Sums, part: str) -> int:
    """What a part comes to: a digit, or the letter of a sum."""
    return sum(value(sums, one) for one in sums[part]) if part in sums else int(part)


def depth(sums: Sums, part: str) -> int:
    """The number of sums on the longest way to a digit."""
    return 1 + max(depth(sums, one) for one in sums[part]) if part in sums else 0


def draw_sums(rng: random.Random, leaves: int) -> tuple[str, dict[str, tuple[str, str]]]:
    """The first letter, and the sums of a tree with so many digits (2 to 32): at most 5 deep, and at most 99 in all."""
    letters = iter(rng.sample(LETTERS, leaves - 1))
    root = next(letters)
    open_parts = [(root, 0, 1), (root, 1, 1)]
    parts: dict[str, list[str]] = {root: ["", ""]}
    for letter in letters:
        owner, place, level = open_parts.pop(rng.choice([i for i, one in enumerate(open_parts) if one[2] < DEPTH]))
        parts[owner][place], parts[letter] = letter, ["", ""]
        open_parts += [(letter, 0, level + 1), (letter, 1, level + 1)]
    highest = min(9, 2 * LARGEST // leaves - 1)
    while sum(digits := [rng.randint(1, highest) for _ in open_parts]) > LARGEST:
        pass
    for (owner, place, _), digit in zip(open_parts, digits, strict=True):
        parts[owner][place] = str(digit)
    return root, {letter: (one, other) for letter, (one, other) in parts.items()}


def system_text(rng: random.Random, sums: Sums) -> str:
    lines = [f"{letter}={one}+{other}" for letter, (one, other) in sums.items()]
    rng.shuffle(lines)
    return "\n".join(("Sums:", *lines))


def _draw_tree(rng: random.Random, leaves: int, *, held_out: bool) -> tuple[str, Sums, str]:
    while True:
        root, sums = draw_sums(rng, leaves)
        if is_held_out(text := system_text(rng, sums)) == held_out:
            return root, sums, text


def nested_sums(
    talk: Talk, leaves: Sequence[int] = (2, 3, 3, 4, 4, 5, 6, 8, 10, 12, 16, 32), *, held_out: bool = False
) -> None:
    """What some of the sums consist of."""
    _, sums, text = _draw_tree(talk.rng, talk.rng.choice(leaves), held_out=held_out)
    talk.messages.append(Message("system", text))
    for letter in talk.rng.sample(list(sums), min(len(sums), 10)):
        talk.exchange(f"{letter}?", f"{letter}={'+'.join(sums[letter])}")


def straight_sum(talk: Talk, leaves: Sequence[int] = range(2, 17), *, held_out: bool = False) -> None:
    """The value of a whole tree in one go."""
    root, sums, text = _draw_tree(talk.rng, talk.rng.choice(leaves), held_out=held_out)
    talk.messages.append(Message("system", text))
    talk.exchange(f"{root}? Only the number.", str(value(sums, root)))


# Totals


def draw_numbers(rng: random.Random, *, held_out: bool) -> list[int]:
    """Two to five numbers from 1 to 60, at most 199 together."""
    while True:
        numbers = [rng.randint(1, rng.choice((9, 30, 60))) for _ in range(rng.randint(2, 5))]
        if sum(numbers) <= 199 and is_held_out(asked(numbers)) == held_out:
            return numbers


def asked(numbers: list[int]) -> str:
    return f"Total: {','.join(map(str, numbers))}"


def worked(numbers: list[int], wrong_step: int = 0, error: int = 0) -> str:
    """The steps and the answer; from step `wrong_step` (1 and more) on all results are `error` off."""
    sums = list(accumulate(numbers))
    shown = [one + (error if 0 < wrong_step <= step else 0) for step, one in enumerate(sums)]
    lines = [f"{shown[step - 1]}+{numbers[step]}={shown[step]}" for step in range(1, len(sums))]
    return "\n".join((*lines, f"Answer: {shown[-1]}"))


def total(talk: Talk, *, held_out: bool = False) -> None:
    numbers = draw_numbers(talk.rng, held_out=held_out)
    talk.exchange(asked(numbers), worked(numbers))


def draw_wrong(rng: random.Random, numbers: list[int]) -> tuple[int, int]:
    """A step and an error that a draft has there."""
    step = rng.randrange(1, len(numbers))
    low = sum(numbers[: step + 1])
    return step, rng.choice([error for error in (-10, -2, -1, 1, 2, 10) if low + error > 0])


def check(talk: Talk, *, held_out: bool = False) -> None:
    """A draft, which is right half of the time; its check, and the correction if it is wrong."""
    numbers = draw_numbers(talk.rng, held_out=held_out)
    step, error = draw_wrong(talk.rng, numbers) if talk.rng.random() < 0.6 else (0, 0)
    ask = f"{asked(numbers)}\nDraft:\n{worked(numbers, step, error)}\nCheck."
    if not step:
        talk.exchange(ask, "Right.")
        return
    before = sum(numbers[:step])
    talk.exchange(ask, f"Wrong: {before}+{numbers[step]}={before + numbers[step]}")
    talk.exchange("Correct.", worked(numbers))


def judge(talk: Talk, *, held_out: bool = False) -> None:
    """Two answers to a total, one of them right."""
    numbers = draw_numbers(talk.rng, held_out=held_out)
    both = [worked(numbers), worked(numbers, *draw_wrong(talk.rng, numbers))]
    right = talk.rng.randrange(2)
    if right:
        both.reverse()
    talk.exchange(f"{asked(numbers)}\nA:\n{both[0]}\nB:\n{both[1]}\nWho is right?", "AB"[right])
