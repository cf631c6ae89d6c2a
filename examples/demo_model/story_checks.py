"""Mechanical checks of generated stories, and the perplexity of held-out ones."""

from __future__ import annotations

import itertools
import math
import random
import re

import torch

from examples.demo_model import stories
from examples.demo_model.generate import Generator
from examples.demo_model.tokenizer import BEGIN, END
from examples.demo_model.world import ADULTS, ANIMALS, THING_ADJECTIVES, THING_NOUNS

STARTS = (
    "Once upon a time", "One morning", "In the village", "Hello, ", "Hello", "It was a winter morning", "Long ago",
    "Mia", "Leo was", "There once was", "Once upon a time, in the village of Alderbrook, there lived a girl named",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z]+")
_TITLE = re.compile(r"\b([A-Z][a-z]+) the ((?:[a-z]+ )?[a-z]+)")


def story_scores(generator: Generator, count: int) -> dict[str, float]:
    """Shares of sampled stories (temperature 0.7) that pass each check."""
    rng = random.Random("story starts")
    torch.manual_seed(0)
    starts = [rng.choice(STARTS) for _ in range(count)]
    answers = generator.answer(starts, limit=480, temperature=0.7)
    texts = [start + answer.text for start, answer in zip(starts, answers, strict=True)]
    known = known_words()
    return {
        "story ends by itself": sum(answer.ended for answer in answers) / count,
        "story's sentences are closed": sum(closed(text) for text in texts) / count,
        "story has only known words": sum(set(_WORD.findall(text)) <= known for text in texts) / count,
        "story keeps people and animals as they are": sum(same_beings(text) for text in texts) / count,
        "story keeps things as they are": sum(same_things(text) for text in texts) / count,
    }


def known_words(documents: int = 6000) -> set[str]:
    rng = random.Random("known words")
    return {word for _ in range(documents) for word in _WORD.findall(stories.plain_text(rng))}


def closed(text: str) -> bool:
    """The text ends with a full stop (or a letter's signature), and its quotation marks come in pairs."""
    last = text.rstrip().splitlines()[-1] if text.strip() else ""
    signed = "\n" in text.strip() and len(last.split()) == 1
    return (signed or last.endswith((".", "!", "?", '"'))) and text.count('"') % 2 == 0


def same_beings(text: str) -> bool:
    """Each "Rosa the ..." in the story agrees with the world."""
    kinds = {being.name: being.kind for being in (*ADULTS, *ANIMALS)}
    for name, title in _TITLE.findall(text):
        if name in kinds and not (title == kinds[name] or title.startswith(kinds[name].split()[0])):
            return False
    return True


def same_things(text: str) -> bool:
    """No thing of the story has two adjectives at different places."""
    seen: dict[str, str] = {}
    words = _WORD.findall(text.lower())
    for adjective, noun in itertools.pairwise(words):
        if noun in THING_NOUNS and adjective in THING_ADJECTIVES and seen.setdefault(noun, adjective) != adjective:
            return False
    return True


@torch.no_grad()
def perplexity(generator: Generator, documents: int = 100) -> float:
    """Perplexity per token over stories from a seed that training does not use."""
    rng = random.Random("held-out stories")
    total, tokens = 0.0, 0
    for _ in range(documents):
        text = BEGIN + stories.plain_text(rng) + END
        ids = generator.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        loss = generator.model(ids, labels=ids).loss
        total += float(loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return math.exp(total / tokens)
