"""The mixture of the second demo model: all reasoning tasks, and a part of the first model's documents."""

from __future__ import annotations

import random

from examples.demo_model import chat, lists
from examples.demo_model.data import draw_document, short_turns
from examples.demo_model.reasoning import lookups, merging, programs, puzzles, sums
from examples.demo_model.talk import Document, Skill, Talk

FIRST_MODEL = 0.1
"""The share of documents that are the first model's."""
REPEATED: dict[Skill, float] = {
    puzzles.make_24: 10,
    merging.sort_digits: 6,
    merging.merge_digits: 8,
    sums.total: 8,
    chat.sum_question: 14,
}
"""Short tasks: one to three of a kind in a document, so that rows are filled."""
ALONE: dict[Skill, float] = {
    merging.merge_notes: 6,
    sums.nested_sums: 8,
    sums.straight_sum: 0.3,
    sums.check: 4,
    sums.judge: 0.5,
    lookups.with_tools: 18,
    lookups.swarm_member: 1,
    lookups.from_facts: 2,
    programs.code: 10,
    lists.outline: 5,
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
