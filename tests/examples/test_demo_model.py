"""The demo model's workshop: its texts keep what they promise, and a short training writes a checkpoint that serves."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from examples.demo_model import arithmetic, chat, lists, stories, structured, tools
from examples.demo_model.arithmetic import Problem, held_out
from examples.demo_model.data import IGNORED, batches, draw_document, encode, row_length, short_turns, training_texts
from examples.demo_model.evaluate import Case, final_number, json_scores
from examples.demo_model.export import export
from examples.demo_model.generate import Answer, Generator, Prompt
from examples.demo_model.grammar import fill
from examples.demo_model.knowledge import CLAIMS, FACTS
from examples.demo_model.model import DemoLlama, ModelConfig
from examples.demo_model.story_checks import closed, same_beings, same_things
from examples.demo_model.talk import Document, Message, Skill, Talk
from examples.demo_model.tokenizer import END, SPECIAL, save_tokenizer, token_id, train_tokenizer
from examples.demo_model.topics import SITUATIONS
from examples.demo_model.train import TrainConfig, load, rate_scale, train
from testing.worker_batches import Extend, Keys
from tests.helpers.oracle import Oracle, assert_close

SIZES = ModelConfig(hidden=64, layers=2, ffn=96)
TRAINING = TrainConfig(steps=12, minutes=0, units=2, unit_tokens=256, workers=1)


def draw_documents(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [draw_document(rng, turns=short_turns) for _ in range(count)]


def exchanges(skill: Skill) -> list[tuple[str, str]]:
    """Questions and answers of a skill, each in a talk of its own."""
    found = []
    for seed in range(200):
        talk = Talk(random.Random(seed))
        skill(talk)
        found += [(ask.content, answer.content) for ask, answer in itertools.pairwise(talk.messages[:2])]
    return found


# Texts


def test_a_template_resolves_rules_choices_and_slots() -> None:
    rules = {"greet": ("[hello|hello], {who}",)}
    assert fill(random.Random(0), "<greet>. how are you?", {"who": "Mia"}, rules) == "Hello, Mia. How are you?"


def test_documents_depend_on_the_seed_alone() -> None:
    assert draw_documents(100) == draw_documents(100)
    assert draw_documents(100) != draw_documents(100, seed=1)


def test_no_hole_of_a_template_is_left() -> None:
    for document in draw_documents(1000):
        for text in [message.content for message in document.messages] or [document.text]:
            assert text
            assert not re.search(r"[\[\]|¶]|  |\{\w*\.?\w*\}|<(?!/?tool>)", text), text


def test_chats_alternate_and_end_with_an_answer() -> None:
    for document in draw_documents(500):
        if not document.messages:
            continue
        roles = [message.role for message in document.messages]
        follows = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "tool"}, "tool": {"assistant"}}
        assert all(after in follows[before] for before, after in itertools.pairwise(roles))
        assert roles[0] in {"system", "user"}
        assert roles[-1] == "assistant"


@pytest.mark.parametrize("operator", ["+", "-"])
def test_each_step_of_each_sum_is_right(operator: str) -> None:
    equation = re.compile(r"(\d+) ([+-]) (\d+)(?: ([+-]) (\d+))? = (-?\d+)")
    for left, right in itertools.product(range(100), repeat=2):
        problem = Problem(left, operator, right)
        *lines, answer = arithmetic.steps(problem).splitlines()
        result = left + right if operator == "+" else left - right
        assert answer == f"Answer: {result}"
        for a, first, b, second, c, value in itertools.chain(*map(equation.findall, lines)):
            assert signed(a) + signed(b, first) + signed(c or "0", second) == int(value), (problem, lines)


def signed(digits: str, operator: str = "+") -> int:
    return -int(digits) if operator == "-" else int(digits)


def test_questions_about_sums_end_in_the_result() -> None:
    rng = random.Random(0)
    for _ in range(500):
        problem = arithmetic.draw_problem(rng)
        ask, answer = arithmetic.question(rng, problem)
        assert {str(problem.left), str(problem.right)} == set(re.findall(r"\d+", ask))
        assert final_number(answer) == str(problem.result)


def test_held_out_sums_are_not_drawn() -> None:
    rng = random.Random(0)
    assert not any(held_out(arithmetic.draw_problem(rng)) for _ in range(2000))
    pairs = {(problem.left, problem.operator, problem.right) for problem in arithmetic.held_out_problems()}
    assert pairs == {(right, operator, left) for left, operator, right in pairs}
    assert 0.1 < len(pairs) / 20_000 < 0.15


def test_tool_calls_are_json_arguments_for_a_listed_tool() -> None:
    calls = 0
    for document in draw_documents(1500):
        listed = dict(re.findall(r"^(\w+)\((.*?)\): ", document.messages[0].content, re.M) if document.messages else ())
        asked = ""
        for message in document.messages:
            asked = message.content if message.role == "user" else asked
            if message.role == "assistant" and "<tool>" in message.content:
                [(name, written)] = re.findall(r"^<tool>(\w+)\((.*)\)</tool>$", message.content)
                arguments = json.loads(f"[{written}]")
                assert len(arguments) == len(listed[name].split(", "))
                assert all(str(argument).lower() in asked.lower() for argument in arguments)
                calls += 1
    assert calls > 200


def test_calculating_tools_are_right() -> None:
    rng = random.Random(0)
    expected: dict[str, Callable[[int, int], int]] = {
        "sum": lambda a, b: a + b,
        "difference": lambda a, b: a - b,
        "product": lambda a, b: a * b,
    }
    for tool in (tool for tool in tools.TOOLS if tool.results in expected):
        for use in (tools.draw_use(rng, tool) for _ in range(50)):
            left, right = map(int, re.findall(r"\d+", use.call))
            assert use.result.startswith("Error") or int(use.result) == expected[tool.results](left, right)


def test_held_out_tools_are_not_drawn() -> None:
    rng = random.Random(0)
    drawn = {tools.draw_tool(rng) for _ in range(2000)}
    assert not {tool.line for tool in drawn} & {tool.line for tool in tools.HELD_OUT}
    assert not any(tools.is_held_out_name(tool.name) for tool in drawn - set(tools.TOOLS))
    assert all(tools.is_held_out_name(tools.made_up_tool(rng, held_out=True).name) for _ in range(200))


@pytest.mark.parametrize("skill", [structured.from_text, structured.from_world, structured.invented, structured.counts])
def test_json_answers_are_flat_and_have_the_keys_asked_for(skill: Skill) -> None:
    for ask, answer in exchanges(skill):
        record = json.loads(answer)
        assert isinstance(record, dict)
        assert not any(isinstance(value, dict | list) for value in record.values())
        assert (", ".join(record) if skill is not structured.counts else " ") in ask
        if skill is structured.from_text:
            told = [
                str(value).lower()
                for value in record.values()
                if isinstance(value, str | int) and value not in (True, False)
            ]
            assert all(value in ask.lower() for value in told)


@pytest.mark.parametrize("skill", [lists.facts, lists.ideas, lists.outline])
def test_lists_have_as_many_lines_as_asked_for(skill: Skill) -> None:
    counts = {str(number): number for number in lists.COUNTS} | {word: number for number, word in lists.COUNTS.items()}
    for ask, answer in exchanges(skill):
        [count] = [counts[word] for word in ask.split() if word in counts]
        numbers = [int(line.partition(". ")[0]) for line in answer.splitlines()]
        assert numbers == list(range(1, count + 1))
        assert len({line.partition(". ")[2] for line in answer.splitlines()}) == count


def test_the_best_option_is_the_situation_s() -> None:
    best = {action for _, action in SITUATIONS}
    for ask, answer in exchanges(lists.choose_option):
        options = dict(re.findall(r"^(\d)\. (.*)$", ask, re.M))
        number, _, words = answer.removeprefix("Best: ").partition(". ")
        situation = [action for told, action in SITUATIONS if re.match(re.escape(told).replace(r"\{n\}", r"\w+"), ask)]
        assert [options[number]] == situation
        assert words in {"", options[number]}
        assert set(options.values()) <= best


def test_what_users_tell_of_themselves_is_recalled() -> None:
    for seed in range(200):
        talk = Talk(random.Random(seed))
        chat.tell_memory(talk)
        chat.ask_memory(talk)
        answer = talk.messages[-1].content
        assert any(value in answer for value in talk.memory.values()) or answer.startswith("I do not know")
        assert all(value in talk.messages[0].content for value in talk.memory.values())


def alternatives(template: str) -> list[str]:
    """All texts of a template without rules and slots."""
    choice = re.search(r"\[([^\[\]]*)\]", template)
    if choice is None:
        return [template]
    before, after = template[: choice.start()], template[choice.end() :]
    return [text for option in choice[1].split("|") for text in alternatives(before + option + after)]


def test_no_question_has_two_answers() -> None:
    asked = [(ask, fact.full) for fact in FACTS for ask in alternatives(f"[{fact.ask}]")]
    assert len(dict(asked)) == len(set(asked)) > 500
    assert len(dict(CLAIMS)) == len(set(CLAIMS))


def test_articles_fit_their_nouns() -> None:
    texts = [text for fact in FACTS for text in (*alternatives(f"[{fact.ask}]"), fact.full)] + [
        text for text, _ in CLAIMS
    ]
    assert not [text for text in texts if re.search(r"\ba [aeio]|\ban [^aeiou]", text, re.I)]


def test_stories_pass_the_checks_of_the_evaluation() -> None:
    rng = random.Random(0)
    texts = [stories.plain_text(rng) for _ in range(300)]
    assert all(closed(text) and same_beings(text) for text in texts)
    assert sum(map(same_things, texts)) >= 295  # one plot may hide a map where another map leads


def test_the_checks_of_the_evaluation_see_faults() -> None:
    assert not closed('"Hello," said Mia. "How are you?')
    assert not closed("Mia went to")
    assert not same_beings("Rosa the miller was there.")
    assert not same_things("Mia had a red kite. The blue kite flew away.")


def test_a_journey_ends_with_what_was_picked_up() -> None:
    for seed in range(200):
        story = stories.journey(random.Random(seed))
        bag: list[str] = []
        *moves, end = story.text.split(". ")
        for move in moves[1:]:
            if thing := re.search(r"(?:found|picked up) an? (.*)", move):
                bag.append(thing[1])
            elif thing := re.search(r"(?:left|put down) the (.*) there", move):
                bag.remove(thing[1])
        inside = re.sub(r"\ban? ", "", re.findall(r"with (.*) in h", end)[0])
        assert inside == (stories.join_words(bag) if bag else "nothing")


def test_a_counting_tale_counts_right() -> None:
    words = ["no", "one", *stories.NUMBER_WORDS]
    for seed in range(200):
        story = stories.counting(random.Random(seed))
        first, *rest = story.text.split(". ")
        count = words.index(first.split()[2])
        for told in rest:
            number = next(words.index(word) for word in told.split() if word in words)
            if told.startswith("Now"):
                assert number == count
            else:
                count += number if "more" in told else -number
        [(_, answer)] = story.questions
        assert f" has {words[count]} " in answer


# Token ids and batches


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(training_texts(seed=1, documents=200))


def test_special_tokens_have_the_first_ids(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [token_id(token) for token in SPECIAL]


def test_only_what_the_model_says_is_learned(tokenizer: Tokenizer) -> None:
    messages = (Message("user", "Who are you?"), Message("assistant", "I am Pip."))
    [row] = encode(tokenizer, [Document(messages=messages)])
    written = tokenizer.decode(row.ids.tolist(), skip_special_tokens=False)
    assert written == "<|begin|><|user|>Who are you?<|end|><|assistant|>I am Pip.<|end|>"
    learned = row.targets[row.targets != IGNORED]
    assert tokenizer.decode(learned.tolist(), skip_special_tokens=False) == "I am Pip.<|end|>"
    at = row.targets[:-1] != IGNORED
    assert (row.targets[:-1][at] == row.ids[1:][at]).all()


def test_a_plain_text_is_learned_whole_wherever_it_is_cut(tokenizer: Tokenizer) -> None:
    for cut in (0, 3, 7):
        [row] = encode(tokenizer, [Document("Hello, Mia. How are you?", cut)])
        assert tokenizer.decode(row.ids[1:].tolist(), skip_special_tokens=False) == "Hello, Mia. How are you?" + END
        assert (row.targets[:-1] == row.ids[1:]).all()


def test_batches_repeat_and_are_padded_alike(tokenizer: Tokenizer) -> None:
    def draw(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        steps = batches(tokenizer, seed=seed, unit_tokens=256, units=2, shard_documents=40)
        return [part for step in itertools.islice(steps, 8) for part in step]

    for (ids, targets), (again, _) in zip(draw(1), draw(1), strict=True):
        assert (ids == again).all()
        assert ids.shape == targets.shape
        assert ids.shape[1] == row_length(ids.shape[1])
        assert ids.size <= 256 or len(ids) == 1
    assert any(a.shape != b.shape or (a != b).any() for (a, _), (b, _) in zip(draw(1), draw(2), strict=True))


# Training


def test_the_learning_rate_warms_up_stays_and_falls() -> None:
    config = replace(TRAINING, warmup=0.1, decay=0.5)
    scales = [rate_scale(progress, config) for progress in (0, 0.05, 0.1, 0.5, 0.75, 1)]
    assert scales == pytest.approx([0.01, 0.5, 1, 1, 0.5, 0], abs=0.01)
    assert rate_scale(0.99, replace(config, decay=0)) == 1


class Trained:
    """A run of a few steps and the folder that it saved."""

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        self.folder = folder
        torch.manual_seed(TRAINING.seed)
        self.model = DemoLlama(SIZES)
        steps = batches(tokenizer, seed=1, unit_tokens=TRAINING.unit_tokens, units=TRAINING.units, shard_documents=80)
        self.losses = train(self.model, steps, TRAINING, lambda model: export(model, folder))
        save_tokenizer(tokenizer, folder)


@pytest.fixture(scope="module")
def trained(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon since 2.9")
    return Trained(tokenizer, tmp_path_factory.mktemp("demo_model"))


def test_the_loss_falls(trained: Trained) -> None:
    assert len(trained.losses) == TRAINING.steps
    assert np.isfinite(trained.losses).all()
    assert np.mean(trained.losses[-3:]) < np.mean(trained.losses[:3]) - 0.3


def test_a_run_can_be_continued(trained: Trained) -> None:
    again = load(SIZES, torch.device("cpu"), trained.folder)
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight.float()), name


def test_the_checkpoint_serves_and_equals_transformers(trained: Trained, tokenizer: Tokenizer) -> None:
    oracle = Oracle.of(trained.folder)
    tokens = tokenizer.encode("Once upon a time, there was a girl named Mia.").ids
    expected = oracle.expected(tokens)
    [served] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=SIZES.vocab)
    assert_close(served, expected)
    with torch.inference_mode():
        model = load(SIZES, torch.device("cpu"), trained.folder)
        logits = model.logits(model.model(torch.tensor([tokens])))[0]
    assert_close(logits.log_softmax(-1).numpy(), expected)


# Evaluation


def test_prompts_are_written_as_in_training(trained: Trained, tokenizer: Tokenizer) -> None:
    """The chat template of the folder and the rows of the training agree, and so do plain texts."""
    generator = Generator(trained.folder)
    messages = (Message("system", "Be brief."), Message("user", "Hello!"), Message("assistant", "Hi."))
    [chat_row, plain_row] = encode(tokenizer, [Document(messages=messages), Document("Hello")])
    template = generator.tokenizer.apply_chat_template([vars(message) for message in messages], return_dict=False)
    assert template == chat_row.ids.tolist()
    assert generator.tokenizer("Hello").input_ids == plain_row.ids[:-1].tolist()


def test_answers_are_in_the_order_of_the_prompts(trained: Trained) -> None:
    generator = Generator(trained.folder, batch=2)
    prompts: list[Prompt] = ["Once upon a time, there was a girl", [Message("user", "What is 4 + 5?")], "Mia"]
    together = generator.answer(prompts, limit=4)
    assert together == [generator.answer([prompt], limit=4)[0] for prompt in prompts]


def test_json_is_scored_by_its_fields() -> None:
    case = Case((), '{"name": "Mia", "age": 9}')
    answers = [Answer(text, True) for text in ('{"name": "Mia", "age": 8}', '{"name": {}}', "Mia")]
    scores = json_scores([case] * 3, answers)
    assert scores == {"json, valid and flat": pytest.approx(1 / 3), "json, fields right": pytest.approx(1 / 6)}
