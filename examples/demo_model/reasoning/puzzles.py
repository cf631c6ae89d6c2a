"""Make 24 of four numbers: proposals, one step of arithmetic a line.

A state is the numbers that are left. A step takes two of them and puts their result at the end; results are whole
numbers from 0 to 99. One puzzle in eight (four numbers, in any order) is held out.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, combinations_with_replacement

from examples.demo_model.talk import Talk

GOAL = 24
State = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """`left operator right = result`; for `+` and `*`, `left` is not the smaller one."""

    left: int
    operator: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}={self.result}"

    def after(self, state: State) -> State:
        """What is left of the numbers."""
        rest = list(state)
        rest.remove(self.left)
        rest.remove(self.right)
        return (*rest, self.result)


def steps(state: State) -> list[Step]:
    """All steps from a state, each once."""
    found: dict[Step, None] = {}
    for one, other in combinations(state, 2):
        high, low = max(one, other), min(one, other)
        results = {"+": high + low, "*": high * low, "-": high - low}
        if low and high % low == 0:
            results["/"] = high // low
        found |= {Step(high, operator, low, result): None for operator, result in results.items() if result <= 99}
    return list(found)


def can_reach(state: State) -> bool:
    """Whether the numbers can become 24."""
    return _reaches(tuple(sorted(state)))


@cache
def _reaches(state: State) -> bool:
    if len(state) == 1:
        return state == (GOAL,)
    return any(can_reach(step.after(state)) for step in steps(state))


def good_steps(state: State) -> list[Step]:
    """The steps after which 24 can still be reached."""
    return [step for step in steps(state) if can_reach(step.after(state))]


@cache
def puzzles(*, held_out: bool) -> tuple[State, ...]:
    """The puzzles that can be solved, those for training or those for evaluation."""
    numbers = combinations_with_replacement(range(1, 10), 4)
    return tuple(state for state in numbers if is_held_out(state) == held_out and can_reach(state))


def is_held_out(state: State) -> bool:
    return zlib.crc32(written(tuple(sorted(state))).encode()) % 8 == 0


def written(state: State) -> str:
    return ",".join(map(str, state))


def solution(rng: random.Random, state: State) -> str:
    """The lines from a state to 24, drawn among those that get there."""
    lines = []
    while len(state) > 1:
        step = rng.choice(good_steps(state))
        state = step.after(state)
        lines.append(f"{step} left {written(state)}" if len(state) > 1 else str(step))
    return "\n".join(lines)


def shuffled(rng: random.Random, *, held_out: bool = False) -> State:
    """A puzzle, its numbers in any order."""
    state = list(rng.choice(puzzles(held_out=held_out)))
    rng.shuffle(state)
    return tuple(state)


def make_24(talk: Talk, played: Sequence[int] = (0, 0, 1, 2), *, held_out: bool = False) -> None:
    """A puzzle, or what is left of one after so many steps on the way to 24."""
    state = shuffled(talk.rng, held_out=held_out)
    for _ in range(talk.rng.choice(played)):
        state = talk.rng.choice(good_steps(state)).after(state)
    talk.exchange(f"Make 24: {written(state)}", solution(talk.rng, state))
