"""The texts of the second demo model are right: arithmetic, order, facts, calls and programs are checked."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from examples.demo_model.data import encode
from examples.demo_model.export import export
from examples.demo_model.model import DemoLlama, ModelConfig
from examples.demo_model.reasoning import lookups, merging, programs, puzzles, sums
from examples.demo_model.reasoning.evaluate import TASKS, own_points, solves
from examples.demo_model.reasoning.mixture import ALONE, REPEATED, draw_reasoning
from examples.demo_model.talk import Document, Message, Skill, Talk
from examples.demo_model.tools import is_held_out_name
from examples.demo_model.train import load
from tests.helpers.tree import DEMO_MODEL

EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


def talks(skill: Skill, count: int = 200) -> list[list[Message]]:
    """The messages of a skill, each talk from a seed of its own."""
    found = []
    for seed in range(count):
        skill(talk := Talk(random.Random(seed)))
        found.append(talk.messages)
    return found


def in_pairs(messages: list[Message]) -> list[tuple[Message, Message]]:
    return list(zip(messages[::2], messages[1::2], strict=True))


def holds(equation: str) -> bool:
    found = EQUATION.fullmatch(equation)
    assert found is not None, equation
    left, operator, right, result = found.groups()
    return float(result) == float(eval(f"{left}{operator}{right}"))


def test_documents_depend_on_the_seed_alone_and_fit_the_model() -> None:
    first, again, other = ([draw_reasoning(random.Random(f"{seed}/{i}")) for i in range(200)] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    assert max(len(row.ids) for row in encode(tokenizer, first)) < 1536


@pytest.mark.parametrize("skill", [*REPEATED, *ALONE])
def test_chats_alternate_and_end_with_an_answer(skill: Skill) -> None:
    follows = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "tool"}, "tool": {"assistant"}}
    for messages in talks(skill, 50):
        roles = [message.role for message in messages]
        assert all(after in follows[before] for before, after in itertools.pairwise(roles))
        assert roles[0] in {"system", "user"}
        assert roles[-1] == "assistant"


# Puzzles


def test_the_lines_of_a_puzzle_lead_to_24() -> None:
    for ask, answer in talks(puzzles.make_24):
        assert solves(ask.content, "", answer.content)
        assert all(holds(line.partition(" left ")[0]) for line in answer.content.splitlines())


@pytest.mark.parametrize(
    "answer",
    [
        "8-4=4 left 7,8,4\n8*4=32 left 7,32",
        "8-4=5 left 7,8,5\n7-5=2 left 8,2\n8*2=16",
        "9*3=27",
        "8-4=4 left 8,7,4",
        "",
    ],
)
def test_lines_that_do_not_lead_to_24_are_seen(answer: str) -> None:
    assert solves("Make 24: 4,7,8,8", "", "8-4=4 left 7,8,4\n7-4=3 left 8,3\n8*3=24")
    assert not solves("Make 24: 4,7,8,8", "", answer)


def test_good_steps_are_those_from_which_trying_everything_finds_24() -> None:
    def tried(numbers: tuple[float, ...]) -> bool:
        if len(numbers) == 1:
            return numbers[0] == 24
        for one, other, *rest in itertools.permutations(numbers):
            whole = [one + other, one * other, one - other] + ([one / other] if other and one % other == 0 else [])
            if any(0 <= result <= 99 and tried((*rest, result)) for result in whole):
                return True
        return False

    rng = random.Random(0)
    for _ in range(200):
        state = tuple(rng.randint(1, 12) for _ in range(3))
        good = puzzles.good_steps(state)
        for step in puzzles.steps(state):
            assert (step in good) == tried(step.after(state))


def test_held_out_puzzles_are_not_drawn() -> None:
    held_out = {tuple(sorted(state)) for state in puzzles.puzzles(held_out=True)}
    assert len(held_out) > 30
    assert not held_out & set(puzzles.puzzles(held_out=False))
    assert tuple(sorted(puzzles.shuffled(random.Random(0), held_out=True))) in held_out


# Sums


def test_parts_of_sums_are_told_and_come_to_the_straight_answer() -> None:
    for system, ask, answer in talks(sums.straight_sum):
        lines = dict(line.split("=") for line in system.content.splitlines()[1:])
        while letters := set(re.findall(r"[A-Za-z]", expression := lines[ask.content[0]])):
            for letter in letters:
                lines[ask.content[0]] = expression = expression.replace(letter, f"({lines[letter]})")
        assert eval(expression) == int(answer.content) <= sums.LARGEST
    for system, *exchanges in talks(sums.nested_sums):
        for ask, answer in in_pairs(exchanges):
            assert answer.content in system.content.splitlines()
            assert ask.content == f"{answer.content[0]}?"


def test_trees_of_sums_are_at_most_five_deep() -> None:
    rng = random.Random(0)
    for leaves in range(2, 33):
        root, tree = sums.draw_sums(rng, leaves)
        assert len(tree) == leaves - 1
        assert sums.depth(tree, root) <= sums.DEPTH


def test_totals_their_checks_and_judgements_are_right() -> None:
    for ask, answer in talks(sums.total):
        numbers = [int(number) for number in ask.content.removeprefix("Total: ").split(",")]
        *lines, last = answer.content.splitlines()
        assert all(map(holds, lines))
        assert last == f"Answer: {sum(numbers)}"
    for ask, answer, *corrected in talks(sums.check):
        bad = [line for line in EQUATION.finditer(ask.content) if not holds(line[0])]
        if not bad:
            assert answer.content == "Right."
            continue
        assert answer.content == f"Wrong: {bad[0][1]}+{bad[0][3]}={int(bad[0][1]) + int(bad[0][3])}"
        assert corrected[1].content == sums.worked([int(n) for n in re.findall(r"\d+", ask.content.splitlines()[0])])
    for ask, answer in talks(sums.judge):
        first, second = ask.content.split("A:\n")[1].split("B:\n")
        wrong = "B" if all(holds(line[0]) for line in EQUATION.finditer(first)) else "A"
        assert {answer.content, wrong} == {"A", "B"}
        assert not all(holds(line[0]) for line in EQUATION.finditer(second if wrong == "B" else first))


# Sorting and merging


def test_digits_are_sorted_and_merged() -> None:
    for ask, answer in talks(merging.sort_digits) + talks(merging.merge_digits):
        lists = ask.content.split(": ")[1].split(" ")
        assert answer.content == "".join(sorted("".join(lists)))
        assert len(lists) == 1 or all(one == "".join(sorted(one)) for one in lists)


def test_merged_notes_have_each_fact_once() -> None:
    for ask, answer in talks(merging.merge_notes):
        notes = [line[3:].removesuffix(".").split(". ") for line in ask.content.splitlines()[1:]]
        facts = answer.content.removesuffix(".").split(". ")
        assert len(facts) == len(set(facts))
        assert set(facts) == {fact for note in notes for fact in note}


# Look-ups


def followed(question: str, facts: Mapping[tuple[str, str], str]) -> str:
    value, *relations = question.removeprefix("What is ").removesuffix("?").split("'s ")
    for relation in relations:
        value = facts[value, relation]
    return value


def test_calls_use_the_listed_tools_one_step_after_the_other() -> None:
    for system, ask, *rest in talks(lookups.with_tools):
        relations = dict(re.findall(r"^(\w+)\(\w+\): tells the (\w+)$", system.content, re.M))
        facts: dict[tuple[str, str], str] = {}
        for said, result in itertools.pairwise(rest):
            if result.role == "tool":
                [(wanted, name, value)] = re.findall(r"^(.+): <tool>(\w+)\(\"(\w+)\"\)</tool>$", said.content)
                assert wanted.split("'s ")[:2] == [value, relations[name]]
                if not result.content.startswith("Error"):
                    facts[value, relations[name]] = result.content
        assert rest[-1].content == f"Answer: {followed(ask.content, facts)}"


def known(text: str) -> dict[tuple[str, str], str]:
    return {(who, what): value for who, what, value in re.findall(r"(\w+)'s (\w+) is ([\w ]+)\.", text)}


def test_members_of_a_swarm_pass_what_they_do_not_know() -> None:
    kinds = set()
    for system, *exchanges in talks(lookups.swarm_member):
        facts = known(system.content)
        for ask, answer in in_pairs(exchanges):
            value, first, *others = ask.content.removeprefix("What is ").removesuffix("?").split("'s ")
            found = facts.get((value, first))
            remains = f"What is {chr(39).join((found or '', ''))}s {(chr(39) + 's ').join(others)}?"
            expected = "Pass." if found is None else remains if others else f"Answer: {found}"
            assert answer.content == expected
            kinds.add(expected[:2])
    assert kinds == {"Pa", "Wh", "An"}


def test_answers_from_facts_follow_the_facts() -> None:
    for ask, answer in talks(lookups.from_facts):
        facts, question = ask.content.splitlines()
        *steps, last = answer.content.splitlines()
        assert last == f"Answer: {followed(question, known(facts))}"
        assert all(step in facts for step in steps)
        assert len(steps) == question.count("'s")


def test_held_out_words_are_in_no_tool_and_no_question() -> None:
    def words(skill: Callable[..., None]) -> set[str]:
        texts = [message.content for messages in talks(skill, 300) for message in messages[:2]]
        return {word for text in texts for word in re.findall(r"\w+", text)}

    for skill in (lookups.with_tools, programs.code):
        assert not words(skill) & set(lookups.HELD_OUT_RELATIONS)
    listed = "\n".join(messages[0].content for messages in talks(lookups.with_tools, 300))
    made_up = set(re.findall(r"tells the (\w+)", listed)) - set(lookups.RELATIONS)
    assert len(made_up) > 100
    assert not any(map(is_held_out_name, made_up))


# Programs


def run(program: str, name: str, task: programs.Task, texts: bool) -> str:
    """The output of a program, or the last line of its traceback."""
    values = {thing: str(value) if texts else value for thing, value in task.values.items()}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            exec(program, {name: values.__getitem__})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return output.getvalue().strip()


@pytest.mark.parametrize("kind", programs.KINDS)
def test_programs_run_to_the_output_and_the_traceback_that_texts_tell(kind: str) -> None:
    rng = random.Random(0)
    tasks = [task for task in (programs.draw_task(rng, "price") for _ in range(300)) if task.kind == kind]
    assert len(tasks) > 20
    for task in tasks:
        assert run(task.program("price"), "price", task, texts=False) == task.output
        assert run(task.program("price", texts=True), "price", task, texts=bool(task.error)) == task.output
        if task.error:
            assert run(task.program("price"), "price", task, texts=True) == task.error


# Evaluation and weights


def test_an_outline_has_points_of_its_own() -> None:
    expected = "1. a\n2. b"
    assert own_points("", expected, "1. Baking\n2. The crust")
    assert not own_points("", expected, "1. Baking\n2. Baking")
    assert not own_points("", expected, "1. Baking\n2. Honey")
    assert not own_points("", expected, "1. Baking")


def test_each_task_draws_held_out_problems() -> None:
    for skill, _ in TASKS.values():
        skill(talk := Talk(random.Random(0)))
        assert Document(messages=tuple(talk.messages)).messages[-1].role == "assistant"


def test_a_model_that_is_made_deeper_computes_the_same(tmp_path: Path) -> None:
    sizes = ModelConfig(hidden=64, layers=3, ffn=96)
    export(model := DemoLlama(sizes), tmp_path)
    ids = torch.randint(0, 2048, (1, 20))
    shallow = load(sizes, torch.device("cpu"), tmp_path)
    deep = load(ModelConfig(hidden=64, layers=5, ffn=96), torch.device("cpu"), tmp_path)
    assert len(deep.model.layers) == 5
    assert torch.equal(shallow.model(ids), deep.model(ids))
    assert not torch.equal(model.model(ids), torch.zeros(1, 20, 64))
