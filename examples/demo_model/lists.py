"""Chat skills about lists: facts, ideas, outlines and their points, votes on options."""

# ruff: noqa: E501 - tables of words and templates read best one entry a line
from __future__ import annotations

from collections.abc import Mapping, Sequence

from examples.demo_model.grammar import upper_first
from examples.demo_model.talk import Talk, person_name
from examples.demo_model.topics import IDEAS, SITUATIONS, TOPICS

FACTS = {topic: [sentence for _, sentence in points] for topic, points in TOPICS.items()}
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five"}


def numbered(lines: list[str]) -> str:
    return "\n".join(f"{index}. {line}" for index, line in enumerate(lines, start=1))


def _count(talk: Talk) -> tuple[int, object]:
    """A number from 2 to 5, and how it is written in the question."""
    count = talk.rng.randint(2, 5)
    return count, talk.rng.choice((count, COUNTS[count]))


def _list_some(talk: Talk, table: Mapping[str, Sequence[str]], *templates: str) -> None:
    """A request for `n` lines about a subject `t` of the table, answered with a numbered list."""
    subject = talk.rng.choice(list(table))
    count, written = _count(talk)
    ask = talk.pick(*templates, n=written, t=subject)
    talk.exchange(ask, numbered(talk.rng.sample(table[subject], count)))


def facts(talk: Talk) -> None:
    _list_some(
        talk, FACTS, "[Write|List|Give me|Name] {n} facts about {t}.", "Tell me {n} things about {t}.",
        "[What are {n} facts|Can you write {n} facts] about {t}?",
    )  # fmt: skip


def ideas(talk: Talk) -> None:
    _list_some(
        talk, IDEAS, "[Write|List|Give me|Name] {n} ideas for {t}.", "I need {n} ideas for {t}.",
        "Can you give me {n} ideas for {t}?",
    )  # fmt: skip


def single_fact(talk: Talk) -> None:
    topic = talk.rng.choice(list(TOPICS))
    ask = talk.pick(
        "Tell me [something|a fact|one fact] about {t}.",
        "What do you know about {t}?",
        "Write one sentence about {t}.",
        t=topic,
    )
    talk.exchange(ask, talk.rng.choice(TOPICS[topic])[1], styled=True)


def outline(talk: Talk) -> None:
    """An outline of short points, after which the user may ask to write out a point."""
    topic = talk.rng.choice(list(TOPICS))
    count, written = _count(talk)
    points = talk.rng.sample(TOPICS[topic], count)
    ask = talk.pick("[Write|Give|Make] an outline of {n} points about {t}.", "[Write|Give me|List] {n} points about {t}.", "Write a skeleton with {n} points about {t}.",
                    n=written, t=topic)  # fmt: skip
    talk.exchange(ask, numbered([heading for heading, _ in points]))
    for _ in range(talk.rng.choice((0, 1, 2))):
        index = talk.rng.randrange(count)
        talk.exchange(talk.pick("Expand point {i}.", "Write point {i} in one sentence.", i=index + 1), points[index][1])


def expand_point(talk: Talk) -> None:
    """A point of an outline written out, with everything in one question (as parallel calls ask it)."""
    topic = talk.rng.choice(list(TOPICS))
    heading, sentence = talk.rng.choice(TOPICS[topic])
    ask = talk.pick(
        "Expand this point about {t} in one sentence: {h}", "Write one sentence about {t}. Point: {h}",
        "Topic: {t}. Point {i}: {h}. Expand the point.", t=topic, h=heading, i=talk.rng.randint(1, 5),
    )  # fmt: skip
    talk.exchange(ask, sentence)


def choose_option(talk: Talk) -> None:
    """The best of some listed options, answered with its number or with its words."""
    rng = talk.rng
    situation, best = rng.choice(SITUATIONS)
    options = rng.sample(
        [other for _, other in SITUATIONS if other != best and not other.startswith(best.split()[0])], rng.randint(1, 3)
    )
    options.insert(rng.randint(0, len(options)), best)
    who = person_name(rng)
    listed = numbered(options)
    number = options.index(best) + 1
    told = situation.format(n=who)
    if rng.random() < 0.6:
        ask = talk.pick(
            "Which option is best? Answer with the number.",
            "Which is best? Give only the number.",
            "Choose the best option. Answer with its number.",
        )
        talk.exchange(f"{told}\n{listed}\n{ask}", f"Best: {number}")
    else:
        talk.exchange(f"{told} What is best?\n{listed}", f"{number}. {best}")


def judge_option(talk: Talk) -> None:
    """A yes-or-no vote on one proposal, and proposals without options."""
    situation, best = talk.rng.choice(SITUATIONS)
    told = situation.format(n=person_name(talk.rng))
    if talk.rng.random() < 0.3:
        talk.exchange(
            told + talk.pick(" What should one do?", " What is a good idea?", " Propose one step."),
            upper_first(best) + ".",
        )
        return
    good = talk.rng.random() < 0.5
    proposal = (
        best if good else talk.rng.choice([other for _, other in SITUATIONS if other.split()[0] != best.split()[0]])
    )
    ask = talk.pick(
        "Is it a good idea to {p}? Answer yes or no.",
        "Proposal: {p}. Is this a good idea? Answer yes or no.",
        p=proposal,
    )
    talk.exchange(f"{told} {ask}", "Yes." if good else "No.")
