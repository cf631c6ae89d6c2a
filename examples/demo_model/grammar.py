"""A tiny template language for the generated texts.

A template is plain text with three kinds of holes, filled in this order:

- `<rule>`: one of the templates listed under that name, drawn at random; rules may use rules,
- `[one|two|three]`: one of the alternatives, drawn at random; alternatives may nest,
- `{slot.attribute}`: Python's `str.format` over the slots of the caller.

After that the text is tidied: each sentence starts with a capital letter.
"""

# ruff: noqa: SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

Rules = Mapping[str, Sequence[str]]

_RULE = re.compile(r"<(\w+)>")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SENTENCE_START = re.compile(r"(^|[.!?] |\n)([a-z])")


def choose(rng: random.Random, template: str, rules: Rules | None = None) -> str:
    """Resolve the rules and alternatives of a template; slots stay."""
    while rules and "<" in template:
        template = _RULE.sub(lambda match: rng.choice(rules[match[1]]), template, count=1)
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template


def fill(
    rng: random.Random, template: str, slots: Mapping[str, object] | None = None, rules: Rules | None = None
) -> str:
    """Resolve a template to a text whose sentences start with capitals."""
    text = choose(rng, template, rules)
    if slots is not None:
        text = text.format_map(slots)
    return capitalise(text)


def capitalise(text: str) -> str:
    """Upper-case the first letter of each sentence; a word after a closing quote is left alone."""
    return _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)


def upper_first(text: str) -> str:
    return text[0].upper() + text[1:]


_SYLLABLE_STARTS = "b br c ch d dr f g gr h j k l m n p pl qu r s sh st t tr v w y z".split()
_SYLLABLE_VOWELS = "a e i o u ai ee ia oo ou".split()
_SYLLABLE_ENDS = ["", "", "", "n", "r", "l", "s", "x", "m", "t", "nd", "ck"]


def made_up_word(rng: random.Random, syllables: int | None = None) -> str:
    """A pronounceable lower-case word that most likely does not exist; it teaches the model to copy unseen words."""
    count = syllables or rng.choice((2, 2, 3))
    parts = []
    for index in range(count):
        end = rng.choice(_SYLLABLE_ENDS) if index == count - 1 else rng.choice(("", "", "n", "r", "l"))
        parts.append(rng.choice(_SYLLABLE_STARTS) + rng.choice(_SYLLABLE_VOWELS) + end)
    return "".join(parts)
