import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from inferlet_sdk import Context, Sampler, gather, inferlet

LENGTH, TRIES = 8, 3
Thought = tuple[str, str]
"""What the model has made of a text, and that text."""


@inferlet
async def main(args, digits: str = "83719204462058173950263748150926", notes: Sequence[str] = ()):
    """Sorts digits, or merges notes (graph of thought): the model tries each part three times, the program scores the
    tries, and the best ones are merged two by two in the same way."""
    if notes:
        text = await merge(args.model, [(note, note) for note in notes], merge_notes, lost_facts)
    else:
        if not (digits.isascii() and digits.isdecimal()):
            sys.exit(f"digits: give digits alone, such as 8371, not {digits!r}")
        parts = [digits[start : start + LENGTH] for start in range(0, len(digits), LENGTH)]
        done = await gather(*(best(args.model, f"Sort: {part}", part, misplaced) for part in parts))
        text = await merge(args.model, done, lambda one, other: f"Merge: {one} {other}", misplaced)
    await args.send(text + "\n")
    return text


def merge_notes(one: str, other: str) -> str:
    return f"Merge these notes.\n1. {one}\n2. {other}"


async def merge(
    model: str, parts: list[Thought], question: Callable[[str, str], str], errors: Callable[[str, str], int]
) -> str:
    """Two by two, until one is left."""
    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        asked = [(question(one[0], other[0]), f"{one[1]} {other[1]}") for one, other in pairs]
        left = parts[2 * len(pairs) :]
        parts = [*await gather(*(best(model, *one, errors) for one in asked)), *left]
    return parts[0][0]


async def best(model: str, question: str, source: str, errors: Callable[[str, str], int]) -> Thought:
    """The try with the fewest errors."""
    async with Context(model).fill_chat("user", question) as ctx:
        sampler = Sampler(temperature=0.5, seed=1)
        found = await ctx.best_of(TRIES, 300, sampler=sampler, score=lambda text: -errors(source, text))
    return found[0].text, source


def misplaced(source: str, text: str) -> int:
    """How many digits are too many, are missing, or come before a smaller one."""
    wanted, given = Counter(source.replace(" ", "")), Counter(text)
    differ = (wanted - given).total() + (given - wanted).total()
    return differ + sum(one > other for one, other in pairwise(text))


def lost_facts(source: str, text: str) -> int:
    """How many sentences are missing, too many, or there twice."""
    wanted, given = (Counter(one.strip() for one in notes.split(".") if one.strip()) for notes in (source, text))
    return len(wanted - given) + (given - Counter(wanted.keys())).total()
