"""The training mixture: documents of all skills, their token ids, and batches.

Everything is drawn from a generator seeded with the seed and the shard's number, so a shard is the same on every
machine. Only what the model itself has to say is learned (assistant messages, plain texts); the other positions of a
row have the target -100.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from examples.demo_model import arithmetic, chat, lists, stories, structured, tools
from examples.demo_model.grammar import fill, made_up_word
from examples.demo_model.talk import PLAIN, STYLES, Document, Message, Skill, Style, Talk
from examples.demo_model.tokenizer import BEGIN, END, MAX_LENGTH, PAD, role_token, token_id

IGNORED = -100
SHARD_DOCUMENTS = 12_000
LONG_SHARE = 0.01
Batch = tuple[np.ndarray, np.ndarray]

CHAT_SKILLS: dict[Skill, float] = {
    chat.greeting: 3,
    chat.thanks: 2,
    chat.who_are_you: 3,
    chat.fact: 12,
    chat.yes_or_no: 5,
    chat.sum_check: 2,
    chat.sum_question: 26,
    chat.refusal: 4,
    chat.tell_memory: 4,
    chat.ask_memory: 10,
    chat.who_has: 5,
    chat.repeat: 3,
    chat.tell_story: 3,
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
    chat.sum_question: 6,
    chat.refusal: 3,
    chat.ask_memory: 4,
    structured.draw: 2,
    lists.facts: 1,
}


@dataclass(frozen=True)
class Mixture:
    """Shares of the documents (not of the tokens)."""

    story: float = 0.13
    plain_sum: float = 0.16
    tools: float = 0.25
    chat: float = 0.46


@dataclass(frozen=True)
class Row:
    """Token ids, and the target of each position (the next id or `IGNORED`); both have the row's length."""

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
        if rng.random() < 0.6:
            talk.bot = rng.choice(("Pip", "Bramble", "Robin", "Otto", made_up_word(rng).capitalize()))
        talk.style = rng.choice(STYLES)
        if system := persona_text(rng, talk.bot, talk.style):
            talk.messages.append(Message("system", system))
    _converse(talk, CHAT_SKILLS, turns)
    return Document(messages=tuple(talk.messages))


def persona_text(rng: random.Random, bot: str, style: Style) -> str:
    name = fill(rng, "[You are {b}.|Your name is {b}.|You are {b}, a friendly helper.]", {"b": bot}) if bot else ""
    neutral = "[You are a helpful assistant.|Answer the questions of the user.|You are a friendly helper.|]"
    manner = fill(rng, style.prompt or ("" if bot else neutral))
    return " ".join(part for part in (name, manner) if part)


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


def draw_mixed(rng: random.Random) -> Document:
    """A document of the first model's mixture; one in a hundred is a talk of many turns."""
    return draw_document(rng, turns=long_turns if rng.random() < LONG_SHARE else short_turns)


def training_texts(seed: int, documents: int) -> Iterator[str]:
    """The texts that train the tokenizer: those of the mixture, message by message."""
    rng = random.Random(f"{seed}/tokenizer")
    for _ in range(documents):
        document = draw_document(rng, turns=short_turns)
        yield from [message.content for message in document.messages] or [document.text]


def encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Row]:
    """Each document as one row of its own length."""
    texts = [piece.text for document in documents for piece in _pieces(document)]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    rows = []
    for document in documents:
        ids, learned = [token_id(BEGIN)], [False]
        for piece in _pieces(document):
            head = [token_id(token) for token in piece.head]
            body = next(encoded).ids + [token_id(token) for token in piece.tail]
            ids += head + body
            learned += [False] * len(head) + [piece.learn] * len(body)
        array, mask = np.array(ids, dtype=np.int64), np.array(learned)
        targets = np.full_like(array, IGNORED)
        targets[:-1] = np.where(mask[1:], array[1:], IGNORED)
        rows.append(Row(array, targets))
    return rows


@dataclass(frozen=True)
class _Piece:
    """A part of a document that is tokenized separately, with the special tokens around it."""

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


def batches(
    tokenizer: Tokenizer,
    *,
    seed: int,
    unit_tokens: int,
    units: int,
    draw: Callable[[random.Random], Document] = draw_mixed,
    shard_documents: int = SHARD_DOCUMENTS,
) -> Iterator[list[Batch]]:
    """Endless steps of `units` batches (ids, targets: [rows, length]), each of about `unit_tokens` tokens.

    A row holds one document, as at inference, so that no stranger's text precedes a token. The documents of a batch are
    of about the same length; what does not fill a batch is dropped. `draw` makes a document;
    they are drawn `shard_documents` at a time.
    """
    for shard in itertools.count():
        rng = random.Random(f"{seed}/{shard}")
        documents = [draw(rng) for _ in range(shard_documents)]
        groups = _in_groups(encode(tokenizer, documents), unit_tokens)
        rng.shuffle(groups)
        for start in range(0, len(groups) - units + 1, units):
            yield [stack(group) for group in groups[start : start + units]]


def row_length(size: int) -> int:
    """The padded length of a document: there should be few, since each new shape costs time on a CPU."""
    step = 32 if size <= 512 else 256
    return min(MAX_LENGTH, -(-size // step) * step)


def _in_groups(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Full groups of rows of equal padded length, about `tokens` tokens each."""
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(row_length(len(row.ids)), []).append(row)
    groups = []
    for length, members in sorted(by_length.items()):
        count = max(1, tokens // length)
        groups += [members[start : start + count] for start in range(0, len(members) - count + 1, count)]
    return groups


def stack(rows: Sequence[Row]) -> Batch:
    """Rows as one batch of the padded length of the longest."""
    length = row_length(max(len(row.ids) for row in rows))
    ids = np.full((len(rows), length), token_id(PAD), dtype=np.int64)
    targets = np.full((len(rows), length), IGNORED, dtype=np.int64)
    for index, row in enumerate(rows):
        size = min(len(row.ids), length)
        ids[index, :size], targets[index, :size] = row.ids[:size], row.targets[:size]
    return ids, targets
