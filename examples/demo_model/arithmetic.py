"""Addition and subtraction of numbers from 0 to 99, worked out digit by digit.

The answer to "47 + 38" is

    Ones: 7 + 8 = 15, write 5, carry 1.
    Tens: 4 + 3 + 1 = 8.
    Answer: 85

and a subtraction whose second number is larger first swaps the numbers and says so. One pair of numbers in eight is held out:
`held_out` decides by a hash of the unordered pair and the operator, so "38 + 47" is held out with "47 + 38". Training never works
out a held-out problem, but it may appear in requests to tools with their results, and in votes on sums of single digits.
"""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from examples.demo_model.grammar import fill
from examples.demo_model.world import CHILDREN

HELD_OUT_ONE_IN = 8
THINGS = (
    "apples nuts shells eggs coins carrots berries buttons pears flowers stones books stamps marbles candles".split()
)


@dataclass(frozen=True)
class Problem:
    """`left operator right` with operands from 0 to 99; `operator` is "+" or "-"."""

    left: int
    operator: str
    right: int

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"

    @property
    def result(self) -> int:
        return self.left + self.right if self.operator == "+" else self.left - self.right


def held_out(problem: Problem) -> bool:
    """Whether the problem (and the one with its numbers swapped) is never worked out in the training data."""
    low, high = sorted((problem.left, problem.right))
    return zlib.crc32(f"{low}{problem.operator}{high}".encode()) % HELD_OUT_ONE_IN == 0


def held_out_problems() -> Iterator[Problem]:
    """All held-out problems, in order."""
    for operator in "+-":
        for left in range(100):
            for right in range(100):
                if held_out(problem := Problem(left, operator, right)):
                    yield problem


def draw_problem(rng: random.Random) -> Problem:
    """A problem of the training part; both numbers have two digits four times out of five."""
    while True:
        low = 10 if rng.random() < 0.7 else 0
        problem = Problem(rng.randint(low, 99), rng.choice("+-"), rng.randint(low, 99))
        if not held_out(problem):
            return problem


def steps(problem: Problem) -> str:
    """The worked answer, ending in "Answer: N"."""
    left, right = problem.left, problem.right
    if problem.operator == "+":
        return "\n".join((*_addition(left, right), f"Answer: {problem.result}"))
    lines = []
    if left < right:
        left, right = right, left
        lines.append(f"{right} is less than {left}, so take {left} - {right} and make it negative.")
    lines += _subtraction(left, right)
    return "\n".join((*lines, f"Answer: {problem.result}"))


def _addition(left: int, right: int) -> list[str]:
    ones = left % 10 + right % 10
    carry = ones // 10
    tens = left // 10 + right // 10 + carry
    first = f"Ones: {left % 10} + {right % 10} = {ones}, write {ones % 10}, carry {carry}."
    return [first, f"Tens: {left // 10} + {right // 10} + {carry} = {tens}."]


def _subtraction(left: int, right: int) -> list[str]:
    """The lines of a subtraction with `left >= right`."""
    borrow = int(left % 10 < right % 10)
    top = left % 10 + 10 * borrow
    first = f"Ones: {top} - {right % 10} = {top - right % 10}, borrow {borrow}."
    return [first, f"Tens: {left // 10} - {right // 10} - {borrow} = {left // 10 - right // 10 - borrow}."]


QUESTIONS = (
    "What is {p}?",
    "What is {p}?",
    "{p} = ?",
    "{p}",
    "{p} =",
    "[Calculate|Compute|Work out|Solve] {p}.",
    "[Please|Can you] [calculate|compute] {p}[.|, please.]",
    "How much is {p}?",
    "What is {p}? [Show the steps|Step by step, please|Think step by step].",
)
WORD_QUESTIONS = {
    "+": ("What is {l} plus {r}?", "Add {l} and {r}.", "What is the sum of {l} and {r}?"),
    "-": ("What is {l} minus {r}?", "Subtract {r} from {l}.", "What do you get when you take {r} from {l}?"),
}
DIRECT_QUESTIONS = (
    "What is {p}? [Answer with the number only|Just the number, please|Only the number].",
    "{p} = ? [Just the number|Only the number].",
)
WORD_PROBLEMS = {
    "+": (
        "{n} has {l} {t} and gets {r} more. How many {t} does {n} have now?",
        "There are {l} {t} in one box and {r} {t} in another box. How many {t} are there?",
        "{n} finds {l} {t} in the morning and {r} {t} in the evening. How many {t} is that?",
    ),
    "-": (
        "{n} has {l} {t} and gives away {r}. How many {t} are left?",
        "There are {l} {t} in a basket. {n} takes {r} of them. How many {t} are left?",
    ),
}


def question(rng: random.Random, problem: Problem) -> tuple[str, str]:
    """A chat question about the problem and its answer."""
    slots = {"p": problem, "l": problem.left, "r": problem.right, "n": rng.choice(CHILDREN), "t": rng.choice(THINGS)}
    kind = rng.random()
    if kind < 0.12:
        return fill(rng, rng.choice(DIRECT_QUESTIONS), slots), str(problem.result)
    if kind < 0.27 and problem.result >= 0:
        return fill(rng, rng.choice(WORD_PROBLEMS[problem.operator]), slots), steps(problem)
    if kind < 0.5:
        return fill(rng, rng.choice(WORD_QUESTIONS[problem.operator]), slots), steps(problem)
    return fill(rng, rng.choice(QUESTIONS), slots), steps(problem)


def plain_text(rng: random.Random) -> str:
    """A document without a chat: "47 + 38 =", the steps and the answer."""
    problem = draw_problem(rng)
    return f"{problem} {rng.choice(('=', '=', '=', '= '))}\n{steps(problem)}"
