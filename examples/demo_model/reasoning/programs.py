"""Short programs over functions of unknown results (CodeACT), and what their output or traceback leads to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from examples.demo_model.reasoning.lookups import any_word, draw_words, new_word
from examples.demo_model.talk import Message, Talk

KINDS = ("total", "highest", "lowest", "above", "difference")
NO_SUM = "TypeError: unsupported operand type(s) for +: 'int' and 'str'"
NO_DIFFERENCE = "TypeError: unsupported operand type(s) for -: 'str' and 'str'"
NO_ORDER = "TypeError: '>' not supported between instances of 'str' and 'int'"
OTHER_ERRORS = ("TimeoutError: timed out", "ConnectionError: try again", "RuntimeError: no answer", "OSError: busy")


@dataclass(frozen=True)
class Task:
    """A question about the values that a function has for things; `limit` counts for the kind "above" only."""

    kind: str
    word: str
    things: tuple[str, ...]
    values: Mapping[str, int]
    limit: int

    @property
    def question(self) -> str:
        first, last = ", ".join(self.things[:-1]), self.things[-1]
        match self.kind:
            case "total":
                return f"What is the total {self.word} of {first} and {last}?"
            case "highest" | "lowest":
                return f"Which has the {self.kind} {self.word}: {first} or {last}?"
            case "above":
                return f"How many of {first} and {last} have a {self.word} above {self.limit}?"
        return f"How much is the {self.word} of {first} above that of {last}?"

    def program(self, name: str, *, texts: bool = False) -> str:
        """The program, with the function's name; `texts`: the function's results are made numbers."""
        listed = "[" + ", ".join(f'"{thing}"' for thing in self.things) + "]"
        call = "int({}({}))".format if texts else "{}({})".format
        match self.kind:
            case "total":
                return f"print(sum({call(name, 'x')} for x in {listed}))"
            case "highest" | "lowest":
                return f"print({'max' if self.kind == 'highest' else 'min'}({listed}, key={name}))"
            case "above":
                return f"print(sum({call(name, 'x')} > {self.limit} for x in {listed}))"
        one, other = (f'"{thing}"' for thing in self.things)
        return f"print({call(name, one)} - {call(name, other)})"

    @property
    def output(self) -> str:
        values = [self.values[thing] for thing in self.things]
        match self.kind:
            case "total":
                return str(sum(values))
            case "highest" | "lowest":
                return (max if self.kind == "highest" else min)(self.things, key=self.values.__getitem__)
            case "above":
                return str(sum(value > self.limit for value in values))
        return str(values[0] - values[1])

    @property
    def error(self) -> str:
        """The traceback's last line if the function's results are texts; "" if the program runs all the same."""
        return {"total": NO_SUM, "above": NO_ORDER, "difference": NO_DIFFERENCE}.get(self.kind, "")


def draw_task(rng: random.Random, word: str) -> Task:
    kind = rng.choice(KINDS)
    things: dict[str, None] = {}
    while len(things) < (2 if kind == "difference" else rng.randint(2, 5)):
        things[any_word(rng) if rng.random() < 0.5 else new_word(rng)] = None
    values = dict(zip(things, rng.sample(range(1, 99), len(things)), strict=True))
    return Task(kind, word, tuple(things), values, rng.randint(2, 90))


def system_text(rng: random.Random, names: Mapping[str, str]) -> str:
    """The functions by the words of what they tell."""
    lines = [f"{name}(x): tells the {word}" for word, name in names.items()]
    rng.shuffle(lines)
    return "\n".join(("Python:", *lines))


def draw_names(rng: random.Random, *, held_out: bool = False) -> dict[str, str]:
    """Functions by the word of what they tell, one to three."""
    words = draw_words(rng, rng.choice((1, 2, 3)), held_out=held_out)
    return {word: rng.choice((word, word, f"get_{word}")) for word in words}


def code(talk: Talk, *, held_out: bool = False) -> None:
    """A question, a program, its output and the answer; sometimes a traceback and another program come first."""
    rng = talk.rng
    names = draw_names(rng, held_out=held_out)
    task = draw_task(rng, rng.choice(list(names)))
    talk.messages.append(Message("system", system_text(rng, names)))
    talk.user(task.question)
    texts = bool(task.error) and rng.random() < 0.3
    program = task.program(names[task.word])
    if rng.random() < 0.1:
        _run(talk, program, rng.choice(OTHER_ERRORS))
    if texts:
        _run(talk, program, task.error)
        program = task.program(names[task.word], texts=True)
    _run(talk, program, task.output)
    talk.assistant(f"Answer: {task.output}")


def _run(talk: Talk, program: str, output: str) -> None:
    talk.assistant(f"<code>{program}</code>")
    talk.messages.append(Message("tool", output))
