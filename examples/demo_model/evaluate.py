"""Measure a folder with the demo model on held-out problems.

    python -m examples.demo_model.evaluate --model pie_inference/demo_model --json scores.json

The exported weights are loaded with `transformers` and computed in float32; decoding is greedy. Problems come from
the generators of the training data with another seed; what must be unseen is unseen by construction: pairs of numbers
that `arithmetic.held_out` keeps back, the tools of `tools.HELD_OUT`, and made-up tool names that `tools` keeps back.
Facts of the small world are the same as in training: that score tells what has been learned by heart.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.demo_model import arithmetic, chat, lists, structured, tools
from examples.demo_model.generate import Answer, Generator
from examples.demo_model.story_checks import perplexity, story_scores
from examples.demo_model.talk import Message, Skill, Talk

SEED = "evaluation"


@dataclass(frozen=True)
class Case:
    """A prompt (a chat up to the assistant's turn, or a plain text) and the right answer."""

    messages: tuple[Message, ...]
    expected: str
    text: str = ""


def case_of(talk: Talk) -> Case:
    """The talk's last assistant message as the expected answer to what precedes it."""
    *before, last = talk.messages
    return Case(tuple(before), last.content)


def skill_case(*skills: Skill, fillers: tuple[Skill, ...] = ()) -> Callable[[random.Random], Case]:
    """Cases of a skill; `skills` run in order, with up to two of `fillers` before the last one."""

    def draw(rng: random.Random) -> Case:
        talk = Talk(rng)
        for skill in skills[:-1]:
            skill(talk)
        for _ in range(rng.randint(0, 2) if fillers else 0):
            rng.choice(fillers)(talk)
        skills[-1](talk)
        return case_of(talk)

    return draw


def _sum_cases(rng: random.Random, count: int, operator: str, prompt: str) -> list[Case]:
    problems = [problem for problem in arithmetic.held_out_problems() if problem.operator == operator]
    cases = []
    for problem in rng.sample(problems, count):
        asked = prompt.format(p=problem)
        chat_form = not prompt.endswith("=")
        messages = (Message("user", asked),) if chat_form else ()
        cases.append(Case(messages, str(problem.result), "" if chat_form else asked))
    return cases


def final_number(text: str) -> str:
    """The text after "Answer: " in the last line, or the whole text if it is only a number."""
    return text.strip().splitlines()[-1].removeprefix("Answer: ") if text.strip() else ""


def _one_use(rng: random.Random, tool: tools.Tool) -> tools.Use:
    """A request whose result is not an error."""
    while (use := tools.draw_use(rng, tool)).result.startswith("Error"):
        pass
    return use


def tool_case(draw: Callable[[random.Random], tools.Tool], *, answer: bool = False) -> Callable[[random.Random], Case]:
    """A request for a tool listed among others, and its call; with `answer` also the result, and the answer with it."""

    def case(rng: random.Random) -> Case:
        tool = draw(rng)
        use = _one_use(rng, tool)
        system = Message("system", tools.system_text(rng, tools.draw_toolbox(rng, tool)))
        asked = (system, Message("user", use.ask))
        if not answer:
            return Case(asked, use.call)
        return Case((*asked, Message("assistant", use.call), Message("tool", use.result)), use.answer)

    return case


def no_tool_case(rng: random.Random) -> Case:
    """A question of the small world under a list of tools that do not help."""
    talk = Talk(rng, messages=[Message("system", tools.system_text(rng, tools.draw_toolbox(rng)))])
    chat.fact(talk)
    return case_of(talk)


FILLERS: tuple[Skill, ...] = (chat.fact, chat.thanks, chat.yes_or_no)
EXACT_CASES: dict[str, Callable[[random.Random], Case]] = {
    "json, exact object": skill_case(structured.from_text),
    "tool call, tools of the training data": tool_case(lambda rng: rng.choice(tools.TOOLS)),
    "tool call, unseen tools": tool_case(lambda rng: rng.choice(tools.HELD_OUT)),
    "tool call, unseen made-up tools": tool_case(lambda rng: tools.made_up_tool(rng, held_out=True)),
    "answer with the tool's result": tool_case(tools.draw_tool, answer=True),
    "plain answer when no tool fits": no_tool_case,
    "recall of what the user said": skill_case(chat.tell_memory, chat.ask_memory, fillers=FILLERS),
    "who has what": skill_case(chat.who_has),
    "facts of the small world": skill_case(chat.fact),
    "yes or no": skill_case(chat.yes_or_no),
    "sum and question about a story": skill_case(chat.story_questions),
    "repeat": skill_case(chat.repeat),
    "best option": skill_case(lists.choose_option),
    "vote on a proposal": skill_case(lists.judge_option),
}
SUM_PROMPTS = {
    "chat": "What is {p}?",
    "plain": "{p} =",
    "number only": "What is {p}? Only the number.",
}


class Evaluation:
    """Runs all groups, and collects the scores and the number of answers that ended by themselves."""

    def __init__(self, generator: Generator, count: int) -> None:
        self._generator = generator
        self._count = count
        self._ended: list[bool] = []
        self.wrong: list[dict[str, str]] = []

    def run(self) -> dict[str, float]:
        scores: dict[str, float] = {}
        for form, prompt in SUM_PROMPTS.items():
            for operator, word in (("+", "addition"), ("-", "subtraction")):
                cases = _sum_cases(random.Random(f"{SEED}/{form}{operator}"), self._count, operator, prompt)
                scores[f"{word}, {form}"] = self._share(
                    cases, self._answers(cases), lambda case, text: final_number(text) == case.expected
                )
        for name, draw in EXACT_CASES.items():
            rng = random.Random(f"{SEED}/{name}")
            cases = [draw(rng) for _ in range(self._count)]
            answers = self._answers(cases)
            scores[name] = self._share(cases, answers, lambda case, text: text == case.expected)
            if name.startswith("json"):
                scores |= json_scores(cases, answers)
        scores["answers that end with <|end|>"] = sum(self._ended) / len(self._ended)
        return (
            scores
            | story_scores(self._generator, self._count // 2)
            | {"story perplexity per token": perplexity(self._generator)}
        )

    def _answers(self, cases: list[Case]) -> list[Answer]:
        answers = self._generator.answer([case.messages or case.text for case in cases])
        self._ended += [answer.ended for answer in answers]
        return answers

    def _share(self, cases: list[Case], answers: list[Answer], right: Callable[[Case, str], bool]) -> float:
        hits = 0
        for case, answer in zip(cases, answers, strict=True):
            if right(case, answer.text):
                hits += 1
            else:
                asked = case.text or case.messages[-1].content
                self.wrong.append({"asked": asked, "expected": case.expected, "answer": answer.text})
        return hits / len(cases)


def json_scores(cases: list[Case], answers: list[Answer]) -> dict[str, float]:
    """The share of answers that are flat JSON objects, and the share of expected fields that they have."""
    valid = fields = right = 0
    for case, answer in zip(cases, answers, strict=True):
        expected = json.loads(case.expected)
        fields += len(expected)
        try:
            written = json.loads(answer.text)
        except json.JSONDecodeError:
            continue
        flat = isinstance(written, dict) and not any(isinstance(value, dict | list) for value in written.values())
        valid += flat
        right += sum(written.get(key, ...) == value for key, value in expected.items()) if flat else 0
    return {"json, valid and flat": valid / len(cases), "json, fields right": right / fields}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="problems in each group")
    parser.add_argument("--json", type=Path, help="where to write the scores")
    parser.add_argument("--wrong", type=Path, help="where to write the wrong answers")
    arguments = parser.parse_args()
    evaluation = Evaluation(Generator(arguments.model), arguments.count)
    scores = evaluation.run()
    for name, score in scores.items():
        print(f"{name:45} {score:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(scores, indent=2) + "\n")
    if arguments.wrong:
        arguments.wrong.write_text(json.dumps(evaluation.wrong, indent=1) + "\n")


if __name__ == "__main__":
    main()
