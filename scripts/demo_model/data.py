"""The training mixture: documents of all skills, their token ids, and rows of packed documents.

Everything is drawn from a generator seeded with the seed and the shard's number, so a shard is the same on every
machine. A shard's documents are packed whole into rows; only what the model itself has to say is learned (assistant
messages, plain texts), the rest of a row has the target -100.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from scripts.demo_model import arithmetic, chat, lists, stories, structured, tools
from scripts.demo_model.grammar import fill, made_up_word
from scripts.demo_model.talk import PLAIN, STYLES, Document, Message, Skill, Style, Talk
from scripts.demo_model.tokenizer import BEGIN, END, role_token

IGNORED = -100
Batch = tuple[np.ndarray, np.ndarray]

CHAT_SKILLS: dict[Skill, float] = {
    chat.greeting: 3,
    chat.thanks: 2,
    chat.who_are_you: 3,
    chat.fact: 12,
    chat.yes_or_no: 5,
    chat.sum_check: 2,
    chat.sum_question: 14,
    chat.refusal: 4,
    chat.tell_memory: 4,
    chat.ask_memory: 10,
    chat.who_has: 5,
    chat.repeat: 3,
    chat.tell_story: 4,
    chat.story_questions: 5,
    structured.draw: 13,
    lists.facts: 4,
    lists.ideas: 3,
    lists.single_fact: 3,
    lists.outline: 3,
    lists.expand_point: 3,
    lists.choose_option: 5,
    lists.judge_option: 4,
}
BESIDE_TOOLS: dict[Skill, float] = {
    chat.greeting: 3,
    chat.thanks: 3,
    chat.who_are_you: 2,
    chat.fact: 8,
    chat.yes_or_no: 2,
    chat.sum_question: 4,
    chat.refusal: 3,
    chat.ask_memory: 4,
    structured.draw: 2,
    lists.facts: 1,
}


@dataclass(frozen=True)
class Mixture:
    """Shares of the documents (not of the tokens)."""

    story: float = 0.16
    plain_sum: float = 0.07
    tools: float = 0.25
    chat: float = 0.52


@dataclass(frozen=True)
class Shape:
    """The shape of a batch."""

    rows: int
    length: int


@dataclass(frozen=True)
class Row:
    """Token ids and what to learn at each position (the next id or `IGNORED`); both of the row's length."""

    ids: np.ndarray
    targets: np.ndarray


def draw_document(
    rng: random.Random, *, turns: Callable[[random.Random], int], mixture: Mixture = Mixture()
) -> Document:
    kind = rng.random()
    if kind < mixture.story:
        return _with_cut(rng, stories.plain_text(rng))
    if kind < mixture.story + mixture.plain_sum:
        return _with_cut(rng, arithmetic.plain_text(rng))
    if kind < mixture.story + mixture.plain_sum + mixture.tools:
        return tool_chat(rng, turns(rng))
    return plain_chat(rng, turns(rng))


def _with_cut(rng: random.Random, text: str) -> Document:
    draw = rng.random()
    if draw < 0.3 and text.startswith("Hello, "):
        return Document(text=text, cut=len("Hello, "))
    return Document(text=text, cut=rng.randrange(min(120, len(text))) if draw < 0.3 else 0)


def short_turns(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 1, 2, 2, 3, 4))


def long_turns(rng: random.Random) -> int:
    return rng.randint(6, 22)


def plain_chat(rng: random.Random, turns: int) -> Document:
    """A talk of several exchanges, half of the time under a system message with a name, a style or both."""
    talk = Talk(rng)
    if rng.random() < 0.5:
        talk.bot = (
            rng.choice(("Pip", "Bramble", "Robin", "Otto", made_up_word(rng).capitalize()))
            if rng.random() < 0.6
            else ""
        )
        talk.style = rng.choice(STYLES)
        if system := persona_text(rng, talk.bot, talk.style):
            talk.messages.append(Message("system", system))
    _converse(talk, CHAT_SKILLS, turns)
    return Document(messages=tuple(talk.messages))


def persona_text(rng: random.Random, bot: str, style: Style) -> str:
    name = fill(rng, "[You are {b}.|Your name is {b}.|You are {b}, a friendly helper.]", {"b": bot}) if bot else ""
    neutral = (
        ""
        if bot or style.prompt
        else "[You are a helpful assistant.|Answer the questions of the user.|You are a friendly helper.|]"
    )
    return " ".join(part for part in (name, fill(rng, style.prompt or neutral)) if part)


def tool_chat(rng: random.Random, turns: int) -> Document:
    """A talk whose system message lists tools; some requests fit no tool."""
    toolbox = tools.draw_toolbox(rng)
    talk = Talk(rng)
    talk.bot = rng.choice(("", "", "", "Pip", "Robin", made_up_word(rng).capitalize()))
    talk.messages.append(
        Message("system", tools.system_text(rng, toolbox, persona_text(rng, talk.bot, PLAIN) if talk.bot else ""))
    )
    skills = dict(BESIDE_TOOLS)
    if tools.arithmetic_tools(toolbox):
        del skills[chat.sum_question]
    if tools.covers_unknowns(toolbox):
        del skills[chat.refusal]
    skills[tools.tool_skill(toolbox)] = 2.4 * sum(skills.values())
    _converse(talk, skills, turns)
    return Document(messages=tuple(talk.messages))


def _converse(talk: Talk, skills: dict[Skill, float], turns: int) -> None:
    names, weights = list(skills), list(skills.values())
    before = len(talk.messages)
    for _ in range(turns):
        talk.rng.choices(names, weights)[0](talk)
    if len(talk.messages) == before:
        chat.greeting(talk)


def encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Row]:
    """Each document as one row of its own length."""
    texts = [piece.text for document in documents for piece in _pieces(document)]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    begin = tokenizer.token_to_id(BEGIN)
    rows = []
    for document in documents:
        ids, learned = [begin], [False]
        for piece in _pieces(document):
            head = [tokenizer.token_to_id(token) for token in piece.head]
            body = next(encoded).ids + [tokenizer.token_to_id(token) for token in piece.tail]
            ids += head + body
            learned += [False] * len(head) + [piece.learn] * len(body)
        array, mask = np.array(ids, dtype=np.int64), np.array(learned)
        targets = np.full_like(array, IGNORED)
        targets[:-1] = np.where(mask[1:], array[1:], IGNORED)
        rows.append(Row(array, targets))
    return rows


@dataclass(frozen=True)
class _Piece:
    """A part of a document that is tokenized by itself, with the special tokens around it."""

    head: tuple[str, ...]
    text: str
    tail: tuple[str, ...]
    learn: bool


def _pieces(document: Document) -> list[_Piece]:
    if document.messages:
        return [
            _Piece((role_token(message.role),), message.content, (END,), message.role == "assistant")
            for message in document.messages
        ]
    first = [_Piece((), document.text[: document.cut], (), True)] if document.cut else []
    return [*first, _Piece((), document.text[document.cut :], (END,), True)]


def pack(rows: Sequence[Row], length: int, pad: int, open_bins: int = 1024) -> list[Row]:
    """Whole documents into rows of `length`; a document goes where it leaves the least room. Longer ones are cut."""
    bins: list[list[Row]] = []
    room: list[int] = []
    full: list[Row] = []
    for row in rows:
        size = min(len(row.ids), length)
        fitting = [(room[index] - size, index) for index in range(len(bins)) if room[index] >= size]
        if fitting:
            index = min(fitting)[1]
            bins[index].append(row)
            room[index] -= size
        else:
            bins.append([row])
            room.append(length - size)
        if len(bins) > open_bins:
            index = min(range(len(bins)), key=room.__getitem__)
            full.append(_join(bins.pop(index), length, pad))
            room.pop(index)
    return full + [_join(parts, length, pad) for parts in bins]


def _join(parts: list[Row], length: int, pad: int) -> Row:
    ids = np.full(length, pad, dtype=np.int64)
    targets = np.full(length, IGNORED, dtype=np.int64)
    start = 0
    for part in parts:
        size = min(len(part.ids), length - start)
        ids[start : start + size] = part.ids[:size]
        targets[start : start + size] = part.targets[:size]
        start += size
    return Row(ids, targets)


def stack(rows: Sequence[Row]) -> Batch:
    return np.stack([row.ids for row in rows]), np.stack([row.targets for row in rows])


def batches(
    tokenizer: Tokenizer, pad: int, *, seed: int, shapes: tuple[Shape, ...], long: bool = False
) -> Iterator[list[Batch]]:
    """Endless steps; each has one batch (ids, targets) of every shape, the shapes sorted by length.

    A document that needs long rows goes there, and short documents fill the rest of these rows. What is left of a shard
    when one shape runs out is dropped. `long` draws talks of many turns.
    """
    name, turns, count = ("long", long_turns, 600) if long else ("short", short_turns, 12_000)
    for shard in itertools.count():
        rng = random.Random(f"{seed}/{name}/{shard}")
        encoded = encode(tokenizer, [draw_document(rng, turns=turns) for _ in range(count)])
        parts = []
        for shape in reversed(shapes):
            shorter = max((other.length for other in shapes if other.length < shape.length), default=0)
            chosen, encoded = _choose_for(encoded, shorter, shape.length)
            packed = pack(chosen, shape.length, pad)
            rng.shuffle(packed)
            parts.append(
                [packed[start : start + shape.rows] for start in range(0, len(packed) - shape.rows + 1, shape.rows)]
            )
        for rows_of_step in zip(*parts, strict=False):
            yield [stack(rows) for rows in rows_of_step]


def _choose_for(rows: list[Row], shorter: int, length: int) -> tuple[list[Row], list[Row]]:
    """The rows longer than `shorter`, then as many others as fit beside them, and the remaining ones."""
    long = [row for row in rows if len(row.ids) > shorter]
    rest = [row for row in rows if len(row.ids) <= shorter]
    room = sum(max(0, length - len(row.ids)) for row in long)
    fillers = 0
    while fillers < len(rest) and room > 0:
        room -= len(rest[fillers].ids)
        fillers += 1
    return long + rest[:fillers], rest[fillers:]
