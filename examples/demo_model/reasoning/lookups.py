"""Questions that go from relation to relation: with tools (ReACT), in a swarm, and with all facts at hand.

"What is Mia's friend's boss's home?" starts at Mia. A part of the names and relations is made up. Some words of
relations, and one made-up word in eight, are held out: neither they nor tools that are called so appear in training.
"""

# ruff: noqa: SIM905 - tables of words read best one entry a line
from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from examples.demo_model.grammar import made_up_word
from examples.demo_model.knowledge import FACTS
from examples.demo_model.talk import Message, Talk
from examples.demo_model.tools import is_held_out_name
from examples.demo_model.topics import TOPICS
from examples.demo_model.world import ADULTS, ANIMALS, CHILDREN, CITIES, PLACES

RELATIONS = (
    "friend neighbour teacher cousin helper pet keeper home caretaker owner boss city father mother doctor dog cat"
    " horse boat house garden street river school job colour food song book tree star team captain king guide room ship"
    " size price age level rank code phone village farm road door"
).split()
HELD_OUT_RELATIONS = "sister tailor baker island flag guard bridge queen hobby garage uncle ticket".split()
BEINGS = (*ADULTS, *CHILDREN, *ANIMALS)
TOLD = " ".join(sentence for points in TOPICS.values() for _, sentence in points) + " ".join(
    known.full for known in FACTS
)
WORDS: list[str] = sorted(set(re.findall(r"\b[a-z]{3,9}\b", TOLD)) - {*HELD_OUT_RELATIONS})
"""Words that the first model knows; as names of relations, functions and things they teach to copy what is told."""
PARAMETERS = ("person", "name", "thing", "x", "who")
LENGTHS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)
ERRORS = ("Error: try again", "Error: no answer", "Error: timeout", "Error 503")


def short_word(rng: random.Random) -> str:
    """A made-up word; mostly a short one of one or two simple syllables."""
    if rng.random() < 0.25:
        return made_up_word(rng, 2)
    start, end = rng.choice("bdfghjklmnprstvwz"), rng.choice("bdfgklmnprstxz")
    return start + rng.choice("aeiou") + end + rng.choice(("", "a", "e", "i", "o", "en", "ar"))


def spliced_word(rng: random.Random) -> str:
    """The beginning of one of `WORDS` and the end of another: a word that looks like English and that nobody knows."""
    start, end = rng.choice(WORDS), rng.choice(WORDS)
    return start[: rng.randint(1, min(4, len(start)))] + end[-rng.randint(2, min(5, len(end))) :]


def new_word(rng: random.Random) -> str:
    """A word that no text knows."""
    return (short_word if rng.random() < 0.4 else spliced_word)(rng)


def draw_name(rng: random.Random) -> str:
    """A capitalised name, sometimes made up."""
    draw = rng.random()
    if draw < 0.6:
        return rng.choice(BEINGS).name
    return rng.choice(CITIES) if draw < 0.7 else new_word(rng).capitalize()


def any_word(rng: random.Random, *, held_out: bool = False) -> str:
    """One of `WORDS`; one in eight of them is held out."""
    while is_held_out_name(word := rng.choice(WORDS)) != held_out:
        pass
    return word


def draw_word(rng: random.Random, *, held_out: bool = False) -> str:
    """The word of a relation or function: a usual one, any other, or one that is made up."""
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(HELD_OUT_RELATIONS if held_out else RELATIONS)
    if kind < 0.5:
        return any_word(rng, held_out=held_out)
    while is_held_out_name(word := new_word(rng)) != held_out or word in HELD_OUT_RELATIONS:
        pass
    return word


def draw_words(rng: random.Random, count: int, *, held_out: bool = False) -> list[str]:
    """So many different words."""
    words: dict[str, None] = {}
    while len(words) < count:
        words[draw_word(rng, held_out=held_out)] = None
    return list(words)


@dataclass(frozen=True)
class Chain:
    """`values[0]` is where the question starts, and `relations[i]` of `values[i]` is `values[i + 1]`."""

    values: tuple[str, ...]
    relations: tuple[str, ...]

    def wanted(self, start: int = 0) -> str:
        """What is looked for after `start` steps, as "Mia's friend's boss"."""
        return "'s ".join((self.values[start], *self.relations[start:]))

    def question(self, start: int = 0) -> str:
        return f"What is {self.wanted(start)}?"

    def fact(self, step: int) -> str:
        return f"{self.values[step]}'s {self.relations[step]} is {self.values[step + 1]}."

    @property
    def answer(self) -> str:
        return f"Answer: {self.values[-1]}"


def draw_chain(rng: random.Random, length: int, *, held_out: bool = False) -> Chain:
    """A chain of so many steps through different names; relations may come again. It may end in a place or number."""
    names: dict[str, None] = {}
    while len(names) < length + 1:
        names[draw_name(rng)] = None
    values = list(names)
    if rng.random() < 0.2:
        values[-1] = str(rng.randint(1, 99)) if rng.random() < 0.3 else rng.choice(PLACES).name
    words = draw_words(rng, rng.randint((length + 1) // 2, length), held_out=held_out)
    relations = words + [rng.choice(words) for _ in range(length - len(words))]
    rng.shuffle(relations)
    return Chain(tuple(values), tuple(relations))


# With tools


def tool_name(rng: random.Random, relation: str, *, held_out: bool = False) -> str:
    """The name of a tool for a relation: mostly with its word."""
    while True:
        name = rng.choice(
            (relation, relation, relation, relation, relation, f"get_{relation}", f"find_{relation}", short_word(rng))
        )
        if name.endswith(relation) or is_held_out_name(name) == held_out:
            return name


def toolbox(rng: random.Random, relations: Sequence[str], *, held_out: bool = False) -> dict[str, str]:
    """The names of tools by their relations, some more than are needed."""
    words = dict.fromkeys([*relations, *draw_words(rng, rng.choice((0, 0, 1, 2, 3)), held_out=held_out)])
    names: dict[str, str] = {}
    for word in words:
        while (name := tool_name(rng, word, held_out=held_out)) in names.values():
            pass
        names[word] = name
    return names


def tools_text(rng: random.Random, names: dict[str, str]) -> str:
    lines = [f"{name}({rng.choice(PARAMETERS)}): tells the {relation}" for relation, name in names.items()]
    rng.shuffle(lines)
    return "\n".join(("Tools:", *lines))


def look_up(talk: Talk, chain: Chain, *, held_out: bool = False, errors: float = 0.06) -> None:
    """The talk of a chain: the tools, the question, calls with their results, the answer."""
    names = toolbox(talk.rng, chain.relations, held_out=held_out)
    talk.messages.append(Message("system", tools_text(talk.rng, names)))
    talk.user(chain.question())
    for step, relation in enumerate(chain.relations):
        call = f'{chain.wanted(step)}: <tool>{names[relation]}("{chain.values[step]}")</tool>'
        while talk.rng.random() < errors:
            talk.assistant(call)
            talk.messages.append(Message("tool", talk.rng.choice(ERRORS)))
        talk.assistant(call)
        talk.messages.append(Message("tool", chain.values[step + 1]))
    talk.assistant(chain.answer)


def with_tools(talk: Talk, lengths: Sequence[int] = LENGTHS, *, held_out: bool = False) -> None:
    look_up(talk, draw_chain(talk.rng, talk.rng.choice(lengths), held_out=held_out), held_out=held_out)


# In a swarm


def swarm_member(talk: Talk, lengths: Sequence[int] = LENGTHS, *, held_out: bool = False) -> None:
    """A member that knows some facts gets questions: it passes, tells what remains of the question, or the answer."""
    rng = talk.rng
    chains = [draw_chain(rng, rng.choice(lengths), held_out=held_out) for _ in range(rng.choice((1, 1, 2, 3)))]
    steps = [rng.randrange(len(chain.relations)) for chain in chains]
    known = " ".join(chain.fact(step) for chain, step in zip(chains, steps, strict=True))
    talk.messages.append(Message("system", f"You know: {known}"))
    for _ in range(rng.choice((1, 2, 3, 4))):
        chain, step = rng.choice(list(zip(chains, steps, strict=True)))
        if rng.random() < 0.5:
            last = step + 1 == len(chain.relations)
            talk.exchange(chain.question(step), chain.answer if last else chain.question(step + 1))
        else:
            talk.exchange(_unknown(rng, chain, step).question(step), "Pass.")


def _unknown(rng: random.Random, chain: Chain, step: int) -> Chain:
    """The chain with another name or relation at a step, often both."""
    values, relations, kind = list(chain.values), list(chain.relations), rng.random()
    if kind < 0.75:
        values[step] = draw_name(rng)
    if kind > 0.5 or values[step] in chain.values:
        while (word := draw_word(rng)) in chain.relations:
            pass
        relations[step] = word
    return Chain(tuple(values), tuple(relations))


def from_facts(talk: Talk, lengths: Sequence[int] = LENGTHS, *, held_out: bool = False) -> None:
    """All facts of a chain, and some others, in any order; the answer takes them one by one."""
    rng = talk.rng
    chain = draw_chain(rng, rng.choice(lengths), held_out=held_out)
    others = [draw_chain(rng, 1) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    needed = [chain.fact(step) for step in range(len(chain.relations))]
    facts = [*needed, *(other.fact(0) for other in others if other.values[0] not in chain.values)]
    rng.shuffle(facts)
    talk.exchange(f"{' '.join(facts)}\n{chain.question()}", "\n".join((*needed, chain.answer)))
