"""Random raw calls of several inferlets, under random waves, beside the interpreter that says what they mean.

Positions are arbitrary and repeat, pages stand in any order and are written by several queues, outputs overlap inputs
and are fed back, batches are so small that forwards are split, pages and embeds run out and inferlets are ended for
it, dispatch is by any policy, several waves are in flight, and address spaces hear of everything late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from pie_control.calls.exports import import_kvpage
from pie_control.calls.output_text.get_logprobs import Logprobs
from pie_control.errors import CallError, Exhausted
from pie_control.resources.kinds import PAGES as PAGE_POOL
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, TOnly
from tests.helpers.issue_order import Exported, HashModel, IssueOrder
from tests.helpers.scheduling import Inferlet, World, greedy, name_token

PAGE_SIZE = 4
PAGES, EMBEDS = 6, 48  # of an inferlet at first
MOST_INPUTS = 24
STEPS = 40
HIGHEST = 40  # position
CLOSE = 1e-5
"""By as much may log-probabilities in float32 differ from those in float64, relative to the largest of them."""

POLICIES: Sequence[Callable[[], DispatchPolicy]] = (
    Adaptive,
    lambda: Adaptive(max_in_flight=3, surplus=0),
    Eager,
    lambda: KOnly(5),
    lambda: TOnly(2.0),
)


def flat(addresses: Sequence[int]) -> list[int]:
    return [number for address in addresses for number in (address, 1)]


def ranges_of(mask: Sequence[Sequence[bool]]) -> list[int]:
    """As `forward_with_mask` takes it: a range for each column."""
    rows = [[n for n, is_seen in enumerate(row) if is_seen] for row in mask]
    return [number for row in rows for number in (len(row), *flat(row))]


class Author:
    """Makes random calls of one inferlet, and the same in the interpreter."""

    def __init__(
        self,
        inferlet: Inferlet,
        choice: random.Random,
        means: IssueOrder,
        made: Counter[str],
        shared: dict[str, Exported],
        settle: Callable[[], None],
    ) -> None:
        """`shared`: what inferlets have exported, by name; `settle`: runs all that waits."""
        self.inferlet = inferlet
        self.shared = shared
        self.settle = settle
        self.imports: set[int] = set()  # futures; what they ask for may be gone
        self.logprobs: dict[int, Sequence[float]] = {}  # by future
        self.means = means
        self.expected: dict[int, int | None] = {}  # by future: the token, or None for one that only gets done
        self.choice = choice
        self.made = made
        self.queues = [inferlet.create_queue() for _ in range(choice.randint(1, 3))]
        self.samples: list[tuple[int, int]] = []  # futures with their queues
        self.embeds: list[int] = []
        self._allocate_pages(self.queues[0], PAGES)
        self._allocate_embeds(self.queues[0], EMBEDS)

    @property
    def alive(self) -> bool:
        return self.inferlet.ending is None

    def step(self) -> None:
        calls = [self.embed_txt] * 2 + [self.forward] * 4 + [self.sample] * 2 + [self.copy_kvpage, self.trim_kvpage]
        calls += [
            self.rewrite,
            self.set_positions,
            self.copy_emb,
            self.mask_kvpage,
            self.export_kvpage,
            self.import_kvpage,
            self.get_logprobs,
            self.free,
            self.create_or_destroy,
            self.synchronize,
            self.prioritize,
        ]
        self.choice.choice(calls)(self.choice.choice(self.queues))

    def attempt(self, accepted: bool, name: str, *arguments: object) -> int | None:
        """Makes a call that must be accepted, or refused. Gives its value."""
        self.made[name if accepted else f"{name} refused"] += 1
        value, refusal = None, None
        try:
            value = self.inferlet.call(name, *arguments)
        except CallError as error:
            refusal = error
        assert accepted == (refusal is None), f"{name}{arguments}: {refusal or 'it was accepted'}"
        return value

    # ---- calls ----

    def embed_txt(self, queue: int) -> None:
        choice = self.choice
        embeds = choice.sample(self.embeds, choice.randint(1, 20))
        first = choice.randint(0, HIGHEST)
        positions = [first + n for n in range(len(embeds))]
        if choice.random() < 0.5:
            positions = [choice.randint(0, HIGHEST) for _ in embeds]
        tokens = [choice.randrange(256) for _ in embeds]
        named = list(tokens)
        own = [future for future, of in self.samples if of == queue]
        if own and choice.random() < 0.5:
            future = choice.choice(own)
            token = self.expected[future]
            assert token is not None
            named[0], tokens[0] = name_token(future), token
        self.attempt(True, "embed_txt", queue, named, positions, flat(embeds))
        self.means.embed_txt(tokens, positions, embeds)

    def set_positions(self, queue: int) -> None:
        choice = self.choice
        filled = [embed for embed in self.embeds if embed in self.means.embeds or choice.random() < 0.01]
        embeds = choice.sample(filled, choice.randint(0, min(len(filled), 12)))
        positions = [choice.randint(0, HIGHEST) for _ in embeds]
        accepted = self.means.set_positions(positions, embeds)
        self.attempt(accepted, "set_positions", queue, positions, flat(embeds))

    def forward(self, queue: int) -> None:
        pages = list(self.means.pages)
        context, targets = (self.choice.sample(pages, self.choice.randint(0, len(pages))) for _ in range(2))
        self._run(queue, context, targets)

    def rewrite(self, queue: int) -> None:
        """Reads pages, empties them and fills them again, in one go."""
        pages = list(self.means.pages)
        pages = self.choice.sample(pages, min(2, len(pages)))
        self._run(queue, pages, [])
        self.attempt(self.means.trim_kvpage(pages, 1), "trim_kvpage", queue, flat(pages), 1)
        self._run(self.choice.choice(self.queues), [], pages)

    def _run(self, queue: int, context: Sequence[int], targets: Sequence[int]) -> None:
        choice = self.choice
        filled = [embed for embed in self.embeds if embed in self.means.embeds]
        if not filled:
            return
        most = choice.choice([3, 8, MOST_INPUTS])
        inputs = choice.sample(filled, choice.randint(1, min(len(filled), most)))
        outputs = self._outputs(inputs)
        if choice.random() < 0.3:
            mask = self._mask(len(self.means.columns(context)), len(inputs))
            accepted = self.means.forward(context, inputs, targets, outputs, mask)
            lists = map(flat, (context, inputs, targets, outputs))
            self.attempt(accepted, "forward_with_mask", queue, *lists, ranges_of(mask))
            return
        accepted = self.means.forward(context, inputs, targets, outputs)
        self.attempt(accepted, "forward", queue, flat(context), flat(inputs), flat(targets), flat(outputs))

    def _mask(self, context: int, inputs: int) -> list[list[bool]]:
        """Anything, or what does not look ahead."""
        choice = self.choice
        share, causal = choice.choice([0.0, 0.3, 0.9, 1.0]), choice.random() < 0.7
        return [
            [(n <= context + row or not causal) and choice.random() < share for n in range(context + inputs)]
            for row in range(inputs)
        ]

    def _outputs(self, inputs: Sequence[int]) -> list[int]:
        """Anywhere, onto inputs in any order, or each onto its own input."""
        choice = self.choice
        count = choice.choice([0, 1, 1, min(2, len(inputs)), len(inputs)])
        match choice.randrange(4):
            case 0:
                return list(inputs[len(inputs) - count :])
            case 1:
                return choice.sample(inputs, count)
            case _:
                return choice.sample(self.embeds, min(count, len(self.embeds)))

    def copy_kvpage(self, queue: int) -> None:
        choice = self.choice
        pages, size = self.means.pages, self.means.page_size
        slots = {page * size + n: key for page, keys in pages.items() for n, key in enumerate(keys)}
        full = [slot for slot, key in slots.items() if key is not None or choice.random() < 0.005]
        count = choice.randint(0, min(len(full), 6))
        source, target = choice.sample(full, count), choice.sample(list(slots), count)
        accepted = self.means.copy_kvpage(source, target)
        self.attempt(accepted, "copy_kvpage", queue, flat(source), flat(target))

    def copy_emb(self, queue: int) -> None:
        choice = self.choice
        filled = [embed for embed in self.embeds if embed in self.means.embeds or choice.random() < 0.01]
        source = choice.sample(filled, choice.randint(0, min(len(filled), 12)))
        target = choice.sample(self.embeds, len(source))
        accepted = self.means.copy_emb(source, target)
        self.attempt(accepted, "copy_emb", queue, flat(source), flat(target))

    def trim_kvpage(self, queue: int) -> None:
        pages = list(self.means.pages)
        pages = self.choice.sample(pages, self.choice.randint(1, len(pages)))
        keep = self.choice.randint(0, len(pages) * self.means.page_size)
        self.attempt(self.means.trim_kvpage(pages, keep), "trim_kvpage", queue, flat(pages), keep)

    def mask_kvpage(self, queue: int) -> None:
        choice, pages = self.choice, self.means.pages
        named = choice.sample(list(pages), choice.randint(1, len(pages)))
        keys = [key for page in named for key in pages[page]]
        full = [place for place, key in enumerate(keys) if key is not None or choice.random() < 0.03]
        places = choice.sample(full, choice.randint(0, len(full)) if choice.random() < 0.7 else 0)
        accepted = self.means.mask_kvpage(named, places)
        self.attempt(accepted, "mask_kvpage", queue, flat(named), flat(places))

    def export_kvpage(self, queue: int) -> None:
        pages = self.choice.sample(list(self.means.pages), 1)
        name = str(len(self.shared))
        self.shared[name] = self.means.export_kvpage(pages)
        future = self.attempt(True, "export_kvpage", queue, name, flat(pages), "")
        assert future is not None
        self.expected[future] = None

    def import_kvpage(self, queue: int) -> None:
        if not self.shared:
            return
        name = self.choice.choice(list(self.shared))
        future = self.attempt(True, "import_kvpage", queue, name)
        assert future is not None
        self.expected[future] = None
        self.imports.add(future)
        self.settle()
        space = self.inferlet.space
        if not self.alive or future not in self.inferlet.answers or future not in space.imports:
            import_kvpage.cancel(space, future)
            return
        try:
            first, count = import_kvpage.taken(space, future)
        except Exhausted:
            assert len(self.means.pages) + len(self.shared[name]) > PAGE_POOL.pool_size(space.model)
            return
        assert count == len(self.shared[name])
        self.means.import_kvpage(first, self.shared[name])
        self.made["imported"] += 1

    def get_logprobs(self, queue: int) -> None:
        """Where the interpreter has numbers."""
        logprobs = getattr(self.means.model, "logprobs", None)
        filled = [embed for embed in self.embeds if embed in self.means.outputs]
        if logprobs is None or not filled:
            return
        embed, tokens = self.choice.choice(filled), list(range(0, 250, 10))
        future = self.attempt(True, "get_logprobs", queue, embed, tokens)
        assert future is not None
        self.expected[future] = None
        self.logprobs[future] = logprobs(self.means.embeds[embed][0], tokens)

    def sample(self, queue: int) -> None:
        filled = [embed for embed in self.embeds if embed in self.means.outputs or self.choice.random() < 0.002]
        if not filled:
            return
        embed = self.choice.choice(filled)
        token = self.means.next_token(embed)
        future = self.attempt(token is not None, "sample", queue, embed, greedy())
        if future is not None:
            self.expected[future] = token
            self.samples.append((future, queue))

    def free(self, queue: int) -> None:
        """Gives pages or embeds back, with commands in flight, and takes others."""
        choice = self.choice
        again = choice.choice(self.queues)
        match choice.randrange(3):
            case 0:
                self._allocate_pages(queue, choice.randint(1, 3))
            case 1:
                pages = choice.sample(list(self.means.pages), min(choice.randint(1, 3), len(self.means.pages) - 1))
                self.attempt(True, "dealloc_kvpage", queue, flat(pages))
                self.means.forget(pages, [])
                self._allocate_pages(again, choice.randint(1, 2))
            case _:
                embeds = choice.sample(self.embeds, 3)
                self.attempt(True, "dealloc_emb", queue, flat(embeds))
                self.means.forget([], embeds)
                self.embeds = [embed for embed in self.embeds if embed not in embeds]
                self._allocate_embeds(again, 3)

    def _allocate_pages(self, queue: int, count: int) -> None:
        fits = len(self.means.pages) + count <= PAGE_POOL.pool_size(self.inferlet.space.model)
        first = self.attempt(fits, "alloc_kvpage", queue, count)
        if first is not None:
            self.means.allocate(range(first, first + count))

    def _allocate_embeds(self, queue: int, count: int) -> None:
        first = self.attempt(True, "alloc_emb", queue, count)
        assert first is not None
        self.embeds += range(first, first + count)

    def create_or_destroy(self, queue: int) -> None:
        if self.choice.random() < 0.5 and len(self.queues) > 1:
            self.inferlet.destroy_queue(queue)
            self.queues.remove(queue)
            self.samples = [(future, of) for future, of in self.samples if of != queue]
        elif len(self.queues) < 4:
            self.queues.append(self.inferlet.create_queue())

    def synchronize(self, queue: int) -> None:
        future = self.attempt(True, "synchronize", queue)
        assert future is not None
        self.expected[future] = None

    def prioritize(self, queue: int) -> None:
        self.attempt(True, "set_queue_priority", queue, self.choice.randint(-2, 2))

    # ---- what came of it ----

    def check(self, close: float = CLOSE) -> None:
        """What was answered is right; where the inferlet was not ended, all is answered. `close`: how far
        log-probabilities may differ, relative to the largest."""
        if self.alive:
            assert self.inferlet.space.waiting == 0, "commands were left behind"
            assert self.inferlet.answers.keys() == self.expected.keys()
        for future, answer in self.inferlet.answers.items():
            assert not isinstance(answer, CallError) or not self.alive or future in self.imports, answer
            if future in self.logprobs and isinstance(answer, Logprobs):
                far = float(np.abs(answer.logprobs - self.logprobs[future]).max())
                assert far < close * max(1.0, -min(self.logprobs[future])), (
                    f"future {future}: log-probabilities differ by {far}"
                )
            token = self.expected[future]
            if token is not None and not isinstance(answer, CallError):
                assert self.inferlet.token(future) == token, f"future {future}"


def run_random_programs(seed: int, made: Counter[str], new_world: type[World] = World) -> None:
    """Some inferlets with a program each. Counts calls in `made`. Raises AssertionError if one was told anything that
    its calls do not mean."""
    choice = random.Random(seed)
    number = choice.randint(1, 3)
    most_tokens = choice.choice([5, 8, 17, 24, 64])
    scratch = -(-most_tokens // PAGE_SIZE)
    room = choice.choice([0, 1, 3, 40])  # pages that are left at first
    world = new_world(
        choice.choice(POLICIES)(),
        page_size=PAGE_SIZE,
        num_pages=scratch + number * PAGES + room,
        num_embeds=number * EMBEDS + choice.choice([0, 3, 200]),
        max_batch_tokens=most_tokens,
        max_batch_rows=choice.choice([1, 3, 64]),
        num_token_slots=choice.choice([3, 64]),
        max_context=400,
    )
    late = random.Random(seed + 1)
    most_untold = choice.choice([0, 2, 6])
    world.lateness = lambda: late.randint(0, most_untold)
    play(world, choice, [IssueOrder(PAGE_SIZE, most_tokens, HashModel()) for _ in range(number)], made)


def play(
    world: World, choice: random.Random, meanings: Sequence[IssueOrder], made: Counter[str], close: float = CLOSE
) -> list[Author]:
    """Runs a program of an inferlet for each of `meanings`, to the end. Gives their authors."""
    shared: dict[str, Exported] = {}
    authors = [
        Author(world.open(), random.Random(choice.random()), means, made, shared, lambda: _settle(world))
        for means in meanings
    ]
    for _ in range(STEPS):
        alive = [author for author in authors if author.alive]
        if not alive:
            break
        choice.choice(alive).step()
        if choice.random() < 0.4:
            _some_turns(world, choice)
    _finish(world)
    for author in authors:
        author.check(close)
        made["ended"] += not author.alive
    return authors


def _some_turns(world: World, choice: random.Random) -> None:
    for _ in range(choice.randint(1, 3)):
        world.now += 1
        if choice.random() < 0.6:
            world.turn()
        if world.sent and choice.random() < 0.5:
            world.answer()


def _settle(world: World) -> None:
    """Runs all that waits, and tells everybody."""
    lateness, world.lateness = world.lateness, lambda: 0
    for _ in range(3):
        world.now += 1
        world.drain()
    world.lateness = lateness


def _finish(world: World) -> None:
    world.lateness = lambda: 0
    for _ in range(1000):
        world.now += 1
        world.drain()
        if not any(inferlet.space.waiting for inferlet in world.inferlets.values()):
            return
    raise AssertionError("commands never ran")
