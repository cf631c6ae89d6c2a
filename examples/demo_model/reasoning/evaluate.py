"""Measure a folder with the second demo model on held-out problems of each reasoning task.

    python -m examples.demo_model.reasoning.evaluate --model pie_inference/demo_reasoner --json scores.json

The exported weights are loaded with `transformers` and computed in float32; decoding is greedy. Problems are drawn with
another seed, and only those that training never shows: `held_out` of each generator. A talk of several answers is right
if each of them is.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from examples.demo_model import arithmetic, lists
from examples.demo_model.data import IGNORED, encode, stack
from examples.demo_model.generate import Generator
from examples.demo_model.reasoning import lookups, merging, programs, puzzles, sums
from examples.demo_model.talk import Document, Skill, Talk
from examples.demo_model.topics import TOPICS

SEED = "evaluation"
Judge = Callable[[str, str, str], bool]
"""Whether an answer is right: the question, what training would say, the answer. None: only the same text is right."""


def solves(asked: str, expected: str, answer: str) -> bool:
    """Whether the lines are steps from the numbers asked for to 24."""
    state = tuple(int(number) for number in asked.removeprefix("Make 24: ").split(","))
    for line in answer.splitlines():
        written, _, left = line.partition(" left ")
        step = next((one for one in puzzles.steps(state) if str(one) == written), None)
        if step is None:
            return False
        state = step.after(state)
        if left != (puzzles.written(state) if len(state) > 1 else ""):
            return False
    return state == (puzzles.GOAL,)


def own_points(asked: str, expected: str, answer: str) -> bool:
    """Whether an outline has as many points as it should, all different and of one topic."""
    points = [line.partition(". ")[2] for line in answer.splitlines()]
    known = ({heading for heading, _ in topic} for topic in TOPICS.values())
    full = len(points) == len(expected.splitlines()) == len(set(points))
    return full and any(set(points) <= headings for headings in known)


def two_numbers(talk: Talk) -> None:
    """A sum that training never works out, asked as the parts of nested sums are added."""
    sums = [problem for problem in arithmetic.held_out_problems() if problem.operator == "+"]
    problem = talk.rng.choice(sums)
    talk.exchange(f"What is {problem}?", arithmetic.steps(problem))


def _chains(task: Callable[..., None], *lengths: int, held_out: bool = True) -> Skill:
    return partial(task, lengths=lengths, held_out=held_out)


TASKS: dict[str, tuple[Skill, Judge | None]] = {
    "make 24, one sample": (partial(puzzles.make_24, played=(0,), held_out=True), solves),
    "make 24 of three numbers": (partial(puzzles.make_24, played=(1,), held_out=True), solves),
    "make 24 of two numbers": (partial(puzzles.make_24, played=(2,), held_out=True), solves),
    "parts of ten of 31 sums": (partial(sums.nested_sums, leaves=(32,), held_out=True), None),
    "straight answer, 4 digits": (partial(sums.straight_sum, leaves=(4,), held_out=True), None),
    "straight answer, 8 digits": (partial(sums.straight_sum, leaves=(8,), held_out=True), None),
    "straight answer, 16 digits": (partial(sums.straight_sum, leaves=(16,), held_out=True), None),
    "sum of two numbers": (two_numbers, None),
    "sort 8 digits": (partial(merging.sort_digits, lengths=(8,), held_out=True), None),
    "sort 16 digits": (partial(merging.sort_digits, lengths=(16,), held_out=True), None),
    "sort 32 digits": (partial(merging.sort_digits, lengths=(32,), held_out=True), None),
    "merge 8 and 8 digits": (partial(merging.merge_digits, lengths=(8,), equal=1.0, held_out=True), None),
    "merge 16 and 16 digits": (partial(merging.merge_digits, lengths=(16,), equal=1.0, held_out=True), None),
    "merge notes of 1 to 3 facts": (partial(merging.merge_notes, lengths=(1, 2, 3), held_out=True), None),
    "merge notes of 4 to 6 facts": (partial(merging.merge_notes, lengths=(4, 5, 6), held_out=True), None),
    "1 to 2 look-ups": (_chains(lookups.with_tools, 1, 2, held_out=False), None),
    "3 to 5 look-ups": (_chains(lookups.with_tools, 3, 4, 5, held_out=False), None),
    "6 to 8 look-ups": (_chains(lookups.with_tools, 6, 7, 8, held_out=False), None),
    "1 to 2 look-ups, unseen tools": (_chains(lookups.with_tools, 1, 2), None),
    "3 to 5 look-ups, unseen tools": (_chains(lookups.with_tools, 3, 4, 5), None),
    "6 to 8 look-ups, unseen tools": (_chains(lookups.with_tools, 6, 7, 8), None),
    "code, unseen functions": (partial(programs.code, held_out=True), None),
    "swarm's member, 1 to 4 questions": (_chains(lookups.swarm_member, *range(1, 9)), None),
    "answer from 1 to 4 facts": (_chains(lookups.from_facts, 1, 2, 3, 4), None),
    "answer from 5 to 8 facts": (_chains(lookups.from_facts, 5, 6, 7, 8), None),
    "total": (partial(sums.total, held_out=True), None),
    "check, and correction": (partial(sums.check, held_out=True), None),
    "judge of two totals": (partial(sums.judge, held_out=True), None),
    "outline": (lists.outline, own_points),
    "point written out": (lists.expand_point, None),
}


class Evaluation:
    """Runs tasks, and keeps what was wrong."""

    def __init__(self, folder: Path, count: int) -> None:
        self._generator = Generator(folder)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))  # the generator's one pads
        self._count = count
        self.wrong: list[dict[str, Any]] = []

    def score(self, name: str) -> float:
        """The share of talks that are right."""
        skill, judge = TASKS[name]
        rng = random.Random(f"{SEED}/{name}")
        talks = [Talk(rng) for _ in range(self._count)]
        for talk in talks:
            skill(talk)
        wrong = self._not_exact(talks) if judge is None else self._refused(talks, judge)
        self.wrong += [{"task": name, **told} for told in wrong.values()]
        return 1 - len(wrong) / self._count

    @torch.no_grad()
    def _not_exact(self, talks: Sequence[Talk], batch: int = 16) -> dict[int, dict[str, Any]]:
        """The talks in which greedy decoding says something else than training. One pass over a talk tells."""
        tokenizer = self._tokenizer
        rows = encode(tokenizer, [Document(messages=tuple(talk.messages)) for talk in talks])
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
        wrong = {}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            ids, targets = (torch.from_numpy(array) for array in stack([rows[index] for index in chosen]))
            said = self._generator.model(input_ids=ids).logits.argmax(-1)
            missed = (said != targets) & (targets != IGNORED)
            for row, index in enumerate(chosen):
                if (bad := missed[row]).any():
                    wrong[index] = {
                        "talk": tokenizer.decode(ids[row].tolist(), skip_special_tokens=False),
                        "expected": tokenizer.decode(targets[row][bad].tolist()),
                        "answer": tokenizer.decode(said[row][bad].tolist()),
                    }
        return wrong

    def _refused(self, talks: Sequence[Talk], judge: Judge) -> dict[int, dict[str, str]]:
        """The talks whose first answer the judge does not take."""
        prompts = [talk.messages[:1] for talk in talks]
        wrong = {}
        for index, answer in enumerate(self._generator.answer(prompts, 64)):
            asked, expected = (message.content for message in talks[index].messages[:2])
            if not judge(asked, expected, answer.text):
                wrong[index] = {"talk": asked, "expected": expected, "answer": answer.text}
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="talks of each task")
    parser.add_argument("--only", default="", help="tasks whose names have this in them")
    parser.add_argument("--json", type=Path, help="where to write the scores")
    parser.add_argument("--wrong", type=Path, help="where to write the wrong answers")
    arguments = parser.parse_args()
    evaluation = Evaluation(arguments.model, arguments.count)
    scores: dict[str, float] = {}
    for name in TASKS:
        if arguments.only in name:
            scores[name] = evaluation.score(name)
            print(f"{name:45} {scores[name]:.3f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(scores, indent=2) + "\n")
    if arguments.wrong:
        arguments.wrong.write_text(json.dumps(evaluation.wrong, indent=1) + "\n")


if __name__ == "__main__":
    main()
