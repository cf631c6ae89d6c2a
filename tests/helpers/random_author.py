"""Makes random raw calls of one inferlet, and the same in the interpreter that says what they mean.

Positions are arbitrary and repeat, pages stand in any order and are written by several queues, outputs overlap inputs
and are fed back. Decode runs go on beside other calls, which leave alone what a run writes; some are cancelled.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pie_control.calls.exports import import_kvpage
from pie_control.calls.fused.verify import Verified
from pie_control.calls.output_text.get_logprobs import Logprobs
from pie_control.calls.output_text.get_next_dist import Dist
from pie_control.errors import CallError, Exhausted
from pie_control.resources.kinds import PAGES as PAGE_POOL
from tests.helpers.issue_order import Exported, IssueOrder, Step
from tests.helpers.scheduling import Inferlet, greedy, name_token

PAGES, EMBEDS = 6, 48  # of an inferlet at first
MOST_INPUTS = 24
HIGHEST = 40  # position
MOST_STEPS = 9  # of a decode run
CLOSE = 1e-5
"""By as much may log-probabilities in float32 differ from those in float64, relative to the largest of them."""


def flat(addresses: Sequence[int]) -> list[int]:
    return [number for address in addresses for number in (address, 1)]


def ranges_of(mask: Sequence[Sequence[bool]]) -> list[int]:
    """As `forward_with_mask` takes it: a range for each column."""
    rows = [[n for n, is_seen in enumerate(row) if is_seen] for row in mask]
    return [number for row in rows for number in (len(row), *flat(row))]


@dataclass(frozen=True)
class Run:
    """A decode run that may go on."""

    pages: Sequence[int]  # that it names
    targets: Sequence[int]  # of these, those that it writes to
    embeds: Sequence[int]
    plan: Sequence[Step]


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
        self.dists: dict[int, Callable[[Sequence[int]], Sequence[float]]] = {}  # by future: log-probabilities of tokens
        self.verified: dict[int, Verified] = {}  # by future
        self.runs: dict[int, Run] = {}  # by future, those that may go on
        self.ran: dict[int, list[int]] = {}  # by future: tokens of decode runs
        self.adapters = ["", *inferlet.space.adapters]
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
            self.get_next_dist,
            self.verify,
            self.decode,
            self.decode,
            self.end_a_run,
            self.free,
            self.create_or_destroy,
            self.synchronize,
            self.prioritize,
        ]
        self.choice.choice(calls)(self.choice.choice(self.queues))

    def readable(self) -> list[int]:
        """Pages that no run writes to."""
        written = {page for run in self.runs.values() for page in run.targets}
        return [page for page in self.means.pages if page not in written]

    def writable(self) -> list[int]:
        """Pages that no run names."""
        used = {page for run in self.runs.values() for page in run.pages}
        return [page for page in self.readable() if page not in used]

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
        lists = self.readable(), self.writable()
        context, targets = (self.choice.sample(pages, self.choice.randint(0, len(pages))) for pages in lists)
        self._run(queue, context, targets)

    def rewrite(self, queue: int) -> None:
        """Reads pages, empties them and fills them again, in one go."""
        pages = self.writable()
        pages = self.choice.sample(pages, min(2, len(pages)))
        if not pages:
            return
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
        adapter = choice.choice(self.adapters)
        accepted = self.means.forward(context, inputs, targets, outputs, None, adapter)
        lists = map(flat, (context, inputs, targets, outputs))
        if adapter:
            self.attempt(accepted, "forward_with_adapter", queue, adapter, *lists)
        else:
            self.attempt(accepted, "forward", queue, *lists)

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
        size = self.means.page_size
        slots = {page * size + n: self.means.pages[page][n] for page in self.readable() for n in range(size)}
        full = [slot for slot, key in slots.items() if key is not None or choice.random() < 0.005]
        targets = [page * size + n for page in self.writable() for n in range(size)]
        count = choice.randint(0, min(len(full), len(targets), 6))
        source, target = choice.sample(full, count), choice.sample(targets, count)
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
        pages = self.writable()
        if not pages:
            return
        pages = self.choice.sample(pages, self.choice.randint(1, len(pages)))
        keep = self.choice.randint(0, len(pages) * self.means.page_size)
        self.attempt(self.means.trim_kvpage(pages, keep), "trim_kvpage", queue, flat(pages), keep)

    def mask_kvpage(self, queue: int) -> None:
        choice, pages = self.choice, self.writable()
        if not pages:
            return
        named = choice.sample(pages, choice.randint(1, len(pages)))
        keys = [key for page in named for key in self.means.pages[page]]
        full = [place for place, key in enumerate(keys) if key is not None or choice.random() < 0.03]
        places = choice.sample(full, choice.randint(0, len(full)) if choice.random() < 0.7 else 0)
        accepted = self.means.mask_kvpage(named, places)
        self.attempt(accepted, "mask_kvpage", queue, flat(named), flat(places))

    def export_kvpage(self, queue: int) -> None:
        pages = self.writable()
        if not pages:
            return
        pages = self.choice.sample(pages, 1)
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

    def get_next_dist(self, queue: int) -> None:
        """Where the interpreter has numbers."""
        logprobs = getattr(self.means.model, "logprobs", None)
        filled = [embed for embed in self.embeds if embed in self.means.outputs]
        if logprobs is None or not filled:
            return
        embed = self.choice.choice(filled)
        future = self.attempt(True, "get_next_dist", queue, embed, self.choice.randint(1, 20), 1.0)
        assert future is not None
        self.expected[future] = None
        self.dists[future] = partial(logprobs, self.means.embeds[embed][0])

    def verify(self, queue: int) -> None:
        choice = self.choice
        filled = [embed for embed in self.embeds if embed in self.means.outputs]
        rows = choice.sample(filled, min(len(filled), choice.randint(1, 4), self.inferlet.space.model.max_batch_rows))
        if not rows:
            return
        tokens = [self.means.model.most_probable(self.means.embeds[embed][0]) for embed in rows]
        right = choice.randint(0, len(rows) - 1)  # of the draft
        draft = [token if n < right else (token + 1) % 256 for n, token in enumerate(tokens[:-1])]
        future = self.attempt(True, "verify", queue, flat(rows), draft, greedy())
        assert future is not None
        self.expected[future] = None
        self.verified[future] = Verified(right, tokens[right])

    # ---- decode runs ----

    def decode(self, queue: int) -> None:
        choice, means = self.choice, self.means
        outputs = [embed for embed in self.embeds if embed in means.outputs]
        if not outputs:
            return
        embed, steps, adapter = choice.choice(outputs), choice.randint(1, MOST_STEPS), choice.choice(self.adapters)
        input = choice.choice([embed, choice.choice(self.embeds)])
        lists = self.readable(), self.writable()
        context, targets = (choice.sample(pages, choice.randint(len(pages) // 2, len(pages))) for pages in lists)
        position = choice.choice([HIGHEST + 1, choice.randint(0, HIGHEST)])
        plan = means.plan_run(embed, position, context, targets, steps, adapter)
        stop = [choice.choice(plan)[0]] if plan and choice.random() < 0.3 else []
        arguments = embed, greedy(), input, position, flat(context), flat(targets), steps, stop
        options = json.dumps({"adapter": adapter} if adapter else {})
        future = self.attempt(plan is not None, "decode", queue, *arguments, options)
        if future is None or plan is None:
            return
        tokens = [token for token, *_ in plan]
        plan = plan[: tokens.index(stop[0]) + 1] if stop else plan
        used = [embed, input] if steps > 1 else []
        self.embeds = [one for one in self.embeds if one not in used]
        means.empty(used)
        self.expected[future] = None
        self.ran[future] = [token for token, *_ in plan]
        pages = list(dict.fromkeys((*context, *targets)))
        self.runs[future] = Run(pages, targets if steps > 1 else [], list(dict.fromkeys(used)), plan)
        if choice.random() < 0.4:
            self.end_a_run(queue)

    def end_a_run(self, queue: int) -> None:
        """Waits for a run, or cancels it."""
        if not self.runs:
            return
        future = self.choice.choice(list(self.runs))
        if self.choice.random() < 0.3:
            self.settle()
        run = self.runs.pop(future)
        if not self.alive:
            return
        told = self.inferlet.tokens.get(future, [])
        if self.inferlet.cancel(future):
            self.made["cancelled"] += 1
            assert told == self.ran[future][: len(told)], f"run {future}"
            del self.ran[future], self.expected[future]
        self.means.end_run(run.plan[: len(told)])
        self.embeds += run.embeds

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
                pages = self.writable()
                pages = choice.sample(pages, min(choice.randint(1, 3), max(0, len(pages) - 1)))
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
        for run in self.runs.values():
            self.means.end_run(run.plan)
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
            assert isinstance(answer, CallError) or answer == self.verified.get(future, answer), f"future {future}"
            assert isinstance(answer, CallError) or future not in self.ran or list(answer) == self.ran[future]
            if future in self.dists and isinstance(answer, Dist):
                expected = np.exp(self.dists[future](answer.tokens.tolist()))
                assert np.abs(answer.probabilities - expected).max() < close, f"future {future}"
            token = self.expected[future]
            if token is not None and not isinstance(answer, CallError):
                assert self.inferlet.token(future) == token, f"future {future}"
