"""The mixture of the second demo model: all reasoning tasks, and a part of the first model's documents."""

from __future__ import annotations

import random

from examples.demo_model import chat, lists
from examples.demo_model.data import draw_document, short_turns
from examples.demo_model.reasoning import lookups, merging, programs, puzzles, sums
from examples.demo_model.talk import Document, Skill, Talk

FIRST_MODEL = 0.15
"""The share of documents that are the first model's."""
REPEATED: dict[Skill, float] = {
    puzzles.make_24: 10,
    merging.sort_digits: 5,
    merging.merge_digits: 7,
    sums.total: 8,
    chat.sum_question: 12,
}
"""Short tasks: one to three of a kind in a document, so that rows are filled."""
ALONE: dict[Skill, float] = {
    merging.merge_notes: 8,
    sums.nested_sums: 8,
    sums.straight_sum: 0.3,
    sums.check: 4,
    sums.judge: 1.5,
    lookups.with_tools: 20,
    lookups.swarm_member: 4,
    lookups.from_facts: 4,
    programs.code: 12,
    lists.outline: 4,
    lists.expand_point: 4,
}


def draw_reasoning(rng: random.Random) -> Document:
    """A document of the mixture."""
    if rng.random() < FIRST_MODEL:
        return draw_document(rng, turns=short_turns)
    skills = REPEATED | ALONE
    skill = rng.choices(list(skills), list(skills.values()))[0]
    talk = Talk(rng)
    for _ in range(rng.choice((1, 1, 2, 3)) if skill in REPEATED else 1):
        skill(talk)
    return Document(messages=tuple(talk.messages))
