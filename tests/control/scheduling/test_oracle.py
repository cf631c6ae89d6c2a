"""Random calls of several queues on full pools, against an interpreter that runs each call where it is made.

The properties in test_properties.py compare the scheduler with itself; this one is independent of it: it knows nothing
of commands, waves or physical memory. Positions are arbitrary, pages have holes and are listed in any order, several
queues use the same page, memory is given back while commands are in flight, and inferlets of two classes are ended
for lack of it or wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.calls.values import Token
from pie_control.errors import CallError
from pie_control.resources.quotas import Quota
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, Reason, TOnly
from pie_control.tenants.tenant import DEFAULT_STANDING, ServiceClass, Standing
from pie_control.testing.fake_model import SCORE_RANGE, hash_key, mix
from pie_inference.testing import byte_tokenizer
from tests.helpers.scheduling import Inferlet, World, greedy, name_token

BATCH = Standing(service_class=ServiceClass.BATCH)
POLICIES: list[DispatchPolicy] = [Adaptive(), Adaptive(max_in_flight=3, surplus=0), Eager(), KOnly(5), TOnly(2.0)]
SIZE = 4  # slots of a page
VOCABULARY = mix(np.arange(byte_tokenizer.VOCAB_SIZE))
POWERS = np.multiply.accumulate(np.full(1024, 0x9E3779B97F4A7C15, np.uint64))

Key = tuple[int, int]
"""What a slot or embed holds, and its position."""


class Interpreter:
    """What calls mean, if each takes effect where it is made."""

    def __init__(self) -> None:
        self.pages: dict[int, list[Key | None]] = {}
        self.embeds: dict[int, Key] = {}
        self.tokens: dict[int, int] = {}  # by future

    def embed(self, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int]) -> None:
        hashes = mix(np.array(tokens)).tolist()
        self.embeds.update(zip(embeds, zip(hashes, positions, strict=True), strict=True))

    def forward(
        self, context: Sequence[int], inputs: Sequence[int], pages: Sequence[int], outputs: Sequence[int]
    ) -> None:
        read = [self.embeds[embed] for embed in inputs]
        seen = [key for page in context for key in self.pages[page] if key is not None]
        free = [(page, slot) for page in pages for slot in range(SIZE) if self.pages[page][slot] is None]
        own: list[Key] = []
        results: list[Key] = []
        for value, position in read:
            own.append((value, position))
            visible = [_hashed(*key) for key in [key for key in seen if key[1] < position] + own]
            digest = np.sum(np.array(visible, np.uint64) * POWERS[: len(visible)])
            results.append((int(mix(_unsigned(int(digest)))[0]), position))
        if pages:
            for (page, slot), key in zip(free, own, strict=False):
                self.pages[page][slot] = key
        self.embeds.update(zip(outputs, results[len(results) - len(outputs) :], strict=True))

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        values = [self.pages[slot // SIZE][slot % SIZE] for slot in source]
        for slot, value in zip(target, values, strict=True):
            self.pages[slot // SIZE][slot % SIZE] = value

    def trim(self, pages: Sequence[int], keep: int) -> None:
        for place, page in enumerate(pages):
            kept = max(0, keep - place * SIZE)
            self.pages[page][kept:] = [None] * len(self.pages[page][kept:])

    def sample(self, embed: int, future: int) -> None:
        value, _ = self.embeds[embed]
        scores = (mix(_unsigned(value) ^ VOCABULARY) >> np.uint64(11)).astype(np.float64) * (SCORE_RANGE / 2**53)
        self.tokens[future] = int(scores.argmax())


def _hashed(value: int, position: int) -> int:
    return int(hash_key(_unsigned(value), np.array([position]))[0])


def _unsigned(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


def _flat(addresses: Sequence[int]) -> list[int]:
    return [number for address in addresses for number in (address, 1)]


@dataclass
class Program:
    """Makes calls at random, and the same ones at an interpreter. One that is refused has no effect at either."""

    inferlet: Inferlet
    choice: random.Random
    meaning: Interpreter = field(default_factory=Interpreter)
    queues: list[int] = field(default_factory=list)
    references: list[tuple[int, int]] = field(default_factory=list)  # (future, queue)
    refused: int = 0

    def __post_init__(self) -> None:
        self.queues = [self.inferlet.create_queue() for _ in range(self.choice.randint(1, 3))]
        self.allocate_pages(self.choice.choice(self.queues), 6)
        self.allocate_embeds(self.choice.choice(self.queues), 48)

    @property
    def pages(self) -> list[int]:
        return list(self.meaning.pages)

    def allocate_pages(self, queue: int, count: int) -> None:
        first = self.inferlet.call("alloc", queue, "kvpage", count)
        self.meaning.pages.update((page, [None] * SIZE) for page in range(first, first + count))

    def allocate_embeds(self, queue: int, count: int) -> None:
        first = self.inferlet.call("alloc", queue, "emb", count)
        self.embeds = [*getattr(self, "embeds", []), *range(first, first + count)]

    def step(self) -> None:
        often = [self.embed, self.forward, self.forward, self.sample]
        act = self.choice.choice(
            [*often, *often, self.copy, self.trim, self.exchange, self.grow, self.queue, self.sync]
        )
        try:
            act(self.choice.choice(self.queues))
        except CallError:
            self.refused += 1

    def embed(self, queue: int) -> None:
        choice = self.choice
        embeds = choice.sample(self.embeds, choice.randint(1, min(20, len(self.embeds))))
        start = choice.randint(0, 40)
        positions = (
            [start + n for n in range(len(embeds))]
            if choice.random() < 0.5
            else choice.choices(range(40), k=len(embeds))
        )
        tokens = [choice.randrange(256) for _ in embeds]
        names = list(tokens)
        own = [future for future, of in self.references if of == queue]
        if own and choice.random() < 0.5:
            future = choice.choice(own)
            tokens[0], names[0] = self.meaning.tokens[future], name_token(future)
        self.inferlet.call("embed_txt", queue, names, positions, _flat(embeds))
        self.meaning.embed(tokens, positions, embeds)

    def forward(self, queue: int) -> None:
        choice = self.choice
        filled = list(self.meaning.embeds)
        inputs = choice.sample(filled, choice.randint(1, min(len(filled), 24)))
        context = choice.sample(self.pages, choice.randint(0, len(self.pages)))
        pages = choice.sample(self.pages, choice.randint(0, len(self.pages)))
        outputs = choice.sample(self.embeds, choice.choice([0, 1, 1, min(2, len(inputs)), len(inputs)]))
        self.inferlet.call("forward", queue, _flat(context), _flat(inputs), _flat(pages), _flat(outputs))
        self.meaning.forward(context, inputs, pages, outputs)

    def copy(self, queue: int) -> None:
        slots = [page * SIZE + slot for page in self.pages for slot in range(SIZE)]
        full = [slot for slot in slots if self.meaning.pages[slot // SIZE][slot % SIZE] is not None]
        count = self.choice.randint(1, min(len(full), 6))
        source, target = self.choice.sample(full, count), self.choice.sample(slots, count)
        self.inferlet.call("copy_kvpage", queue, _flat(source), _flat(target))
        self.meaning.copy(source, target)

    def trim(self, queue: int) -> None:
        pages = self.choice.sample(self.pages, self.choice.randint(1, len(self.pages)))
        keep = self.choice.randint(0, len(pages) * SIZE)
        self.inferlet.call("trim_kvpage", queue, _flat(pages), keep)
        self.meaning.trim(pages, keep)

    def sample(self, queue: int) -> None:
        embed = self.choice.choice(list(self.meaning.embeds))
        future = self.inferlet.call("sample", queue, embed, greedy())
        self.meaning.sample(embed, future)
        self.references.append((future, queue))

    def exchange(self, queue: int) -> None:
        """Gives memory back, and asks another queue for as much."""
        other = self.choice.choice(self.queues)
        if self.choice.random() < 0.6:
            pages = self.choice.sample(self.pages, self.choice.randint(1, min(3, len(self.pages))))
            self.inferlet.call("dealloc", queue, "kvpage", _flat(pages))
            for page in pages:
                del self.meaning.pages[page]
            self.allocate_pages(other, len(pages))
        else:
            embeds = self.choice.sample(self.embeds, 3)
            self.inferlet.call("dealloc", queue, "emb", _flat(embeds))
            self.embeds = [embed for embed in self.embeds if embed not in embeds]
            for embed in embeds:
                self.meaning.embeds.pop(embed, None)
            self.allocate_embeds(other, 3)

    def grow(self, queue: int) -> None:
        self.allocate_pages(queue, self.choice.randint(1, 3))

    def queue(self, queue: int) -> None:
        if len(self.queues) > 1 and self.choice.random() < 0.5:
            self.inferlet.destroy_queue(queue)
            self.queues.remove(queue)
            self.references = [one for one in self.references if one[1] != queue]
        elif len(self.queues) < 4:
            self.queues.append(self.inferlet.create_queue())

    def sync(self, queue: int) -> None:
        self.inferlet.call("synchronize", queue)

    def check(self, complete: bool) -> None:
        """Whether what was answered is right; `complete`: and everything was."""
        answers = self.inferlet.answers
        for future, token in self.meaning.tokens.items():
            if complete or isinstance(answers.get(future), Token):
                assert answers[future] == Token(token), future
        assert not complete or set(answers) == self.inferlet.accepted


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), late=st.sampled_from([0, 0, 3]))
def test_calls_mean_the_same_whatever_is_batched_evicted_or_waits(seed: int, late: int) -> None:
    choice = random.Random(seed)
    tokens = choice.choice([5, 8])
    world = World(
        choice.choice(POLICIES),
        quota=Quota(pages=choice.choice([8, 12]), embeds=choice.choice([50, 60])),
        page_size=SIZE,
        num_pages=choice.choice([18, 20, 22]) + 2,
        num_embeds=choice.choice([110, 130, 400]),
        max_batch_tokens=tokens,
        max_batch_rows=choice.choice([1, 3, 64]),
        num_token_slots=64,
        max_context=400,
    )
    world.lateness = lambda: choice.randint(0, late)
    programs = []
    for number in range(3):
        inferlet = world.open(standing=choice.choice([DEFAULT_STANDING, DEFAULT_STANDING, BATCH]))
        programs.append(Program(inferlet, random.Random(seed * 7 + number)))
    for _ in range(40):
        if alive := [one for one in programs if one.inferlet.owner in world.inferlets]:
            with suppress(IndexError, ValueError):  # nothing to choose from
                choice.choice(alive).step()
        world.some_turns(choice)
    world.finish()
    _end_those_who_are_waited_for(world, programs)
    for program in programs:
        ending = program.inferlet.ending
        assert ending is None or ending.reason is Reason.EVICTED
        program.check(complete=ending is None and not program.inferlet.space.ended)


def _end_those_who_are_waited_for(world: World, programs: Sequence[Program]) -> None:
    """A batch job waits for memory of interactive inferlets, and for nothing else. Once these are gone it goes on."""
    standings = {owner: one.standing for owner, one in vars(world.scheduler)["_memory"]._holdings.items()}
    alive = [one.inferlet for one in programs if one.inferlet.owner in world.inferlets]
    stuck = [one for one in alive if one.space.waiting]
    if not stuck:
        return
    assert all(standings[one.owner] == BATCH for one in stuck), "an interactive inferlet waits for ever"
    interactive = [one for one in alive if standings[one.owner] != BATCH]
    assert interactive, "batch jobs wait for each other"
    for inferlet in interactive:
        world.close(inferlet)
    world.finish()
    assert not any(one.space.waiting for one in stuck if one.ending is None), "a batch job waits for nobody"
    for inferlet in interactive:
        assert set(inferlet.answers) == inferlet.accepted, "an interactive inferlet was not served before it was closed"
