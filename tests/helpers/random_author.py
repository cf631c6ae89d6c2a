"""Makes random raw calls of one inferlet, and the same in the interpreter that says what they mean.

Positions are arbitrary and repeat, pages stand in any order and are written by several queues, outputs overlap inputs
and are fed back. Decode runs go on beside other calls, which leave alone what a run writes; some are cancelled.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pie_control.calls.exports.sharing import fetched
from pie_control.calls.sampler import SamplingParams
from pie_control.errors import CallError, Exhausted
from pie_control.resources.kinds import PAGES as PAGE_POOL
from tests.helpers.issue_order import Exported, IssueOrder, Step
from tests.helpers.languages import END, LANGUAGES, Standing
from tests.helpers.naive_sampler import Drawing, choose
from tests.helpers.pictures import Picture
from tests.helpers.scheduling import Inferlet, beside, name_token
from tests.helpers.undecided import Undecided
from tests.helpers.wanted import Anything, Distribution, Each, Exactly, Floats, Numbers, Scored, Wanted, plain

PAGES, EMBEDS = 6, 48  # of an inferlet at first
MOST_INPUTS = 24
HIGHEST = 40  # position
MOST_STEPS = 9  # of a decode run
MOST_CONTINUED = 5  # steps behind one that reads a distribution
CLOSE = 1e-5
"""By as much may log-probabilities in float32 differ from those in float64, relative to the largest of them."""


def flat(addresses: Sequence[int]) -> list[int]:
    return [number for address in addresses for number in (address, 1)]


def bits_of(tokens: Sequence[int], vocabulary: int) -> str:
    """A mask of allowed tokens, as calls take it."""
    bits = np.zeros(vocabulary, np.uint8)
    bits[list(tokens)] = 1
    return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    found: Floats = shifted - np.log(np.exp(shifted).sum())
    return found


def ranges_of(mask: Sequence[Sequence[bool]]) -> list[int]:
    """As `forward_with_mask` takes it: a range for each column."""
    rows = [[n for n, is_seen in enumerate(row) if is_seen] for row in mask]
    return [number for row in rows for number in (len(row), *flat(row))]


def _handed(argument: object) -> object:
    """As a call takes it."""
    match argument:
        case Drawing():
            return argument.sampler
        case Picture():
            return argument.image
    return argument


@dataclass(frozen=True)
class Run:
    """A decode run that may go on."""

    pages: Sequence[int]  # that it names
    targets: Sequence[int]  # of these, those that it writes to
    embeds: Sequence[int]
    plan: Sequence[Step]


class Beside(NamedTuple):
    """What goes beside a step: an adapter or "", and a mask as calls take it, or nothing."""

    adapter: str
    mask: list[int]


class Author:
    """Makes random calls of one inferlet, and the same in the interpreter."""

    knows_grammars = True
    """Whether the worker has them compiled (languages.py)."""
    composes = True  # whether it puts masks and adapters beside steps, and both beside forwards
    greed = 1  # how often it asks for memory

    def __init__(
        self,
        inferlet: Inferlet,
        choice: random.Random,
        means: IssueOrder,
        made: Counter[str],
        shared: dict[str, Exported],
        settle: Callable[[], None],
        pictures: Sequence[Picture] = (),
    ) -> None:
        """`shared`: what inferlets have exported, by name; `settle`: runs all that waits; `pictures`: that programs
        may have, as the model sees them."""
        self.inferlet = inferlet
        self.shared = shared
        self.settle = settle
        self.pictures = pictures
        self.imports: set[int] = set()  # futures; what they ask for may be gone
        self.runs: dict[int, Run] = {}  # by future, those that may go on
        self.adapters = ["", *inferlet.space.adapters]
        self.means = means
        self.wanted: dict[int, Wanted] = {}  # by future
        self.tokens: dict[int, int] = {}  # by future of a sample
        self.choice = choice
        self.greedy = Drawing(SamplingParams(temperature=0), 0)
        self.drawings = [self.new_drawing(), self.new_drawing()]
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
        calls += [self.embed_img] * 2 if self.pictures else []
        calls += [
            self.rewrite,
            self.set_positions,
            self.copy_emb,
            self.mask_kvpage,
            self.shift_kvpage,
            self.export_kvpage,
            self.import_kvpage,
            self.get_logprobs,
            self.get_next_dist,
            self.get_lists,
            self.get_embedding,
            self.forward_with_scores,
            self.draw,
            self.draw,
            self.steps_with_dists,
            self.step_with_token,
            self.verify,
            self.decode,
            self.decode,
            self.end_a_run,
            *[self.free] * self.greed,
            self.reserve_kvpage,
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

    def new_drawing(self, penalties: bool = True) -> Drawing:
        """A sampler that has drawn nothing."""
        choice = self.choice
        repetition, frequency, presence = choice.choice([(1.0, 0.0, 0.0), (1.5, 0.5, -0.25)][: 1 + penalties])
        params = SamplingParams(
            temperature=choice.choice([0.0, 0.5, 1.0, 1.5]),
            top_k=choice.choice([0, 0, 4]),
            top_p=choice.choice([1.0, 1.0, 0.7]),
            min_p=choice.choice([0.0, 0.0, 0.1]),
            repetition=repetition,
            frequency=frequency,
            presence=presence,
            typical_p=choice.choice([1.0, 1.0, 1.0, 0.6]),
        )
        biased = choice.sample(range(250), choice.choice([0, 0, 3]))
        return Drawing(params, choice.randrange(1 << 32), {token: choice.choice([-100.0, 2.5]) for token in biased})

    def attempt(self, accepted: bool, name: str, *arguments: object) -> int | None:
        """Makes a call that must be accepted, or refused. Gives its value."""
        self.made[name if accepted else f"{name} refused"] += 1
        value, refusal = None, None
        given = [_handed(one) for one in arguments]
        try:
            value = self.inferlet.call(name, *given)
        except CallError as error:
            refusal = error
        assert accepted == (refusal is None), f"{name}{arguments}: {refusal or 'it was accepted'}"
        return value

    def ask(self, wanted: Wanted, name: str, *arguments: object) -> int:
        """Makes a call that must be accepted, and answered so."""
        future = self.attempt(True, name, *arguments)
        assert future is not None
        self.wanted[future] = wanted
        return future

    # ---- calls ----

    def embed_txt(self, queue: int) -> None:
        choice = self.choice
        embeds = choice.sample(self.embeds, choice.randint(1, 20))
        first = choice.randint(0, HIGHEST)
        positions = [first + n for n in range(len(embeds))]
        if choice.random() < 0.5:
            positions = [choice.randint(0, HIGHEST) for _ in embeds]
        named, tokens = self._named(queue, len(embeds))
        self.attempt(True, "embed_txt", queue, named, positions, flat(embeds))
        self.means.embed_txt(tokens, positions, embeds)

    def embed_img(self, queue: int) -> None:
        """A part of an image, often all of it, in any embeds; sometimes more than it has."""
        choice, picture = self.choice, self.choice.choice(self.pictures)
        vectors = len(picture.vectors)
        first = choice.choice([0, 0, choice.randrange(vectors)])
        count = choice.choice([vectors - first, choice.randint(0, vectors - first)])
        if choice.random() < 0.03:
            first, count = vectors, 1
        count = min(count, len(self.embeds))
        embeds = choice.sample(self.embeds, count)
        start = choice.randint(0, HIGHEST)
        positions = choice.choice([list(range(start, start + count)), [choice.randint(0, HIGHEST) for _ in embeds]])
        accepted = first + count <= vectors
        self.attempt(accepted, "embed_img", queue, picture, first, positions, flat(embeds))
        if accepted:
            self.means.fill(picture.vectors[first : first + count], positions, embeds)

    def _named(self, queue: int, count: int) -> tuple[list[int], list[int]]:
        """Tokens as calls name them, and the tokens."""
        tokens = [self.choice.randrange(256) for _ in range(count)]
        named = list(tokens)
        own = [future for future, of in self.samples if of == queue]
        if tokens and own and self.choice.random() < 0.5:
            future = self.choice.choice(own)
            named[0], tokens[0] = name_token(future), self.tokens[future]
        return named, tokens

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
            adapter = choice.choice(self.adapters) if self.composes else ""
            accepted = self.means.forward(context, inputs, targets, outputs, mask, adapter)
            seen, given, *rest = map(flat, (context, inputs, targets, outputs))
            if adapter:
                self.made["forward with several things"] += 1
                self.attempt(
                    accepted, "forward", queue, seen, given, *rest, *beside(mask=ranges_of(mask), adapter=adapter)
                )
            else:
                self.attempt(accepted, "forward_with_mask", queue, seen, given, *rest, ranges_of(mask))
            return
        adapter = choice.choice(self.adapters)
        lists = map(flat, (context, inputs, targets, outputs))
        accepted = self.means.forward(context, inputs, targets, outputs, None, adapter)
        if adapter:
            self.attempt(accepted, "forward_with_adapter", queue, adapter, *lists)
        else:
            self.attempt(accepted, "forward", queue, *lists)

    def forward_with_scores(self, queue: int) -> None:
        choice, lists = self.choice, (self.readable(), self.writable())
        context, targets = (choice.sample(pages, choice.randint(0, len(pages))) for pages in lists)
        filled = [embed for embed in self.embeds if embed in self.means.embeds]
        if not filled:
            return
        inputs = choice.sample(filled, choice.randint(1, min(len(filled), MOST_INPUTS, self.means.most_tokens + 1)))
        outputs, adapter = self._outputs(inputs), choice.choice(self.adapters)
        scores = self.means.forward_with_scores(context, inputs, targets, outputs, adapter)
        name = "forward_with_adapter_and_scores" if adapter else "forward_with_scores"
        named = (adapter,) if adapter else ()
        future = self.attempt(scores is not None, name, queue, *named, *map(flat, (context, inputs, targets, outputs)))
        if future is not None and scores is not None:
            self.wanted[future] = Numbers(scores)

    def _step(self, queue: int) -> tuple[bool, list[Any], int, Beside]:
        """The arguments of a step, but for the last ones; whether it is accepted, its output embed, and what goes
        beside it."""
        choice, lists = self.choice, (self.readable(), self.writable())
        context, targets = (choice.sample(pages, min(len(pages), choice.randint(0, 12))) for pages in lists)
        inputs = choice.sample(self.embeds, choice.choice([1, 1, 2, choice.randint(1, min(20, len(self.embeds)))]))
        output = choice.choice([inputs[-1], choice.choice(self.embeds)])
        first = choice.choice([HIGHEST + 1, choice.randint(0, HIGHEST)])
        positions = list(range(first, first + len(inputs)))
        named, tokens = self._named(queue, len(inputs))
        adapter, mask = "", None
        if self.composes:
            adapter = choice.choice(["", choice.choice(self.adapters)])
            if choice.random() < 0.2:
                mask = self._mask(len(self.means.columns(context)), len(inputs))
        accepted = self.means.step(tokens, positions, inputs, context, targets, output, mask, adapter)
        step = [queue, named, positions, flat(inputs), flat(context), flat(targets), output]
        return accepted, step, output, Beside(adapter, [] if mask is None else ranges_of(mask))

    def _attempt_step(self, accepted: bool, step: list[Any], beside_it: Beside, **read: Any) -> int | None:
        """The forward of a step that reads something, with what goes beside it."""
        queue, tokens, positions, inputs, context, pages, output = step
        if not beside_it.adapter and not beside_it.mask:
            name = "forward_with_sampling" if "sampler" in read else "forward_with_dist"
            return self.attempt(accepted, name, *step, *read.values())
        if accepted:
            self.made["forward with several things"] += 1
        given = beside(tokens, positions, beside_it.mask, beside_it.adapter, **read)
        return self.attempt(accepted, "forward", queue, context, inputs, pages, [output, 1], *given)

    def steps_with_dists(self, queue: int) -> None:
        """A step that reads its distribution, and further ones, which go on from there; now and then something comes
        between."""
        choice = self.choice
        accepted, step, output, beside_it = self._step(queue)
        k, temperature = choice.randint(1, 20), choice.choice([0.5, 1.0])
        future = self._attempt_step(accepted, step, beside_it, k=k, temperature=temperature)
        if future is None:
            return
        self.wanted[future] = self._distribution(output, k, temperature)
        if beside_it.mask:
            return  # nothing goes on from it
        _, _, (*_, position), (embed, *_), context, targets, _ = step
        context, targets = context[::2], targets[::2]
        for _ in range(choice.randint(0, MOST_CONTINUED)):
            if choice.random() < 0.15:
                moves = [self.trim_kvpage, self.copy_kvpage, self.shift_kvpage]
                choice.choice([self.embed_txt, self.forward, *moves, self.draw])(queue)
            named, (token,) = self._named(queue, 1)
            free, own = self.readable(), self.writable()
            gone = any(page not in free for page in context) or any(page not in own for page in targets)
            if gone or embed not in self.embeds or output not in self.embeds or not self.alive:
                return
            position += 1
            accepted = self.means.step([token], [position], [embed], context, targets, output, None, beside_it.adapter)
            future = self.attempt(accepted, "continue_with_dist", queue, *named)
            if future is None:
                return
            self.wanted[future] = self._distribution(output, k, temperature)

    def step_with_token(self, queue: int) -> None:
        accepted, step, output, beside_it = self._step(queue)
        drawing = self.choice.choice([self.greedy, *self.drawings])
        token = None
        if accepted:
            with suppress(Undecided):
                token = self._drawn(output, drawing)
            if token is None:  # it has happened, so it is read otherwise
                future = self._attempt_step(True, step, beside_it, k=5, temperature=1.0)
                assert future is not None
                self.wanted[future] = self._distribution(output, 5, 1.0)
                return
        future = self._attempt_step(accepted, step, beside_it, sampler=drawing)
        if future is not None and token is not None:
            drawing.used()
            self._sampled(future, queue, token)

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
        bound = [page for page in self.writable() if page not in self.means.unbound or choice.random() < 0.05]
        targets = [page * size + n for page in bound for n in range(size)]
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

    def shift_kvpage(self, queue: int) -> None:
        choice, pages = self.choice, self.writable()
        if not pages:
            return
        named = choice.sample(pages, choice.randint(1, min(len(pages), 4)))
        by = choice.choice([0, 1, 7, 30, -1, -2, -9, -30])
        accepted = self.means.shift_kvpage(named, by, self.inferlet.space.model.max_context)
        self.attempt(accepted, "shift_kvpage", queue, flat(named), by)

    def export_kvpage(self, queue: int) -> None:
        pages = self.writable()
        if not pages:
            return
        pages = self.choice.sample(pages, 1)
        name = str(len(self.shared))
        exported = self.means.export_kvpage(pages)
        future = self.attempt(exported is not None, "export_kvpage", queue, name, flat(pages), "")
        if future is not None and exported is not None:
            self.shared[name] = exported
            self.wanted[future] = Anything()

    def import_kvpage(self, queue: int) -> None:
        if not self.shared:
            return
        name = self.choice.choice(list(self.shared))
        future = self.ask(Anything(), "import_kvpage", queue, name)
        self.imports.add(future)
        self.settle()
        space = self.inferlet.space
        if not self.alive or future not in self.inferlet.answers or future not in space.imports:
            if self.inferlet.cancel_import(future):
                del self.wanted[future]
            return
        try:
            first, count = fetched(space, future)
        except Exhausted:
            assert len(self.means.pages) + len(self.shared[name]) > PAGE_POOL.pool_size(space.model)
            return
        assert count == len(self.shared[name])
        self.means.import_kvpage(first, self.shared[name])
        self.made["imported"] += 1

    def _outputs_filled(self) -> list[int]:
        return [embed for embed in self.embeds if embed in self.means.outputs]

    def _logits(self, embed: int) -> Floats:
        return self.means.model.logits(self.means.embeds[embed][0])

    def _distributions(self, embeds: Sequence[int], k: int, temperature: float) -> Wanted:
        logits = [self._logits(embed) for embed in embeds]
        return Each([Distribution(np.exp(log_softmax(one / temperature)), k) for one in logits])

    def _distribution(self, embed: int, k: int, temperature: float) -> Wanted:
        return self._distributions([embed], k, temperature)

    def get_logprobs(self, queue: int) -> None:
        if filled := self._outputs_filled():
            embed, tokens = self.choice.choice(filled), list(range(0, 250, 10))
            self.ask(Numbers(log_softmax(self._logits(embed))[tokens].tolist()), "get_logprobs", queue, embed, tokens)

    def get_next_dist(self, queue: int) -> None:
        if filled := self._outputs_filled():
            embed, k = self.choice.choice(filled), self.choice.randint(1, 20)
            temperature = self.choice.choice([1.0, 0.7])
            self.ask(self._distribution(embed, k, temperature), "get_next_dist", queue, embed, k, temperature)

    def get_lists(self, queue: int) -> None:
        """Of several embeds in one call."""
        choice, filled = self.choice, self._outputs_filled()
        rows = choice.sample(filled, min(len(filled), choice.randint(1, 4), self.inferlet.space.model.max_batch_rows))
        if not rows:
            return
        if choice.random() < 0.5:
            k, temperature = choice.randint(1, 20), choice.choice([1.0, 0.7])
            wanted = self._distributions(rows, k, temperature)
            self.ask(wanted, "get_next_dist", queue, flat(rows), k, temperature)
            return
        tokens = [choice.sample(range(250), 3) for _ in rows]
        logprobs = [log_softmax(self._logits(embed))[own] for embed, own in zip(rows, tokens, strict=True)]
        listed = [token for own in tokens for token in own]
        scale = max(float(np.abs(log_softmax(self._logits(embed))).max()) for embed in rows)
        self.ask(Numbers(np.concatenate(logprobs).tolist(), scale), "get_logprobs", queue, flat(rows), listed)

    def get_embedding(self, queue: int) -> None:
        choice, filled = self.choice, self._outputs_filled()
        rows = choice.sample(filled, min(len(filled), choice.randint(1, 4), self.inferlet.space.model.max_batch_tokens))
        if not rows:
            return
        states = np.array([self.means.model.state(self.means.embeds[embed][0]) for embed in rows])
        pooling, dimensions, normalize = choice.choice(["last", "mean"]), choice.choice([0, 3]), choice.random() < 0.5
        vector = (states.mean(0) if pooling == "mean" else states[-1])[: dimensions or None]
        wanted = vector / np.linalg.norm(vector) if normalize else vector
        scale = float(np.abs(wanted).max() * np.abs(states).max() / np.abs(vector).max())
        self.ask(Numbers(wanted.tolist(), scale), "get_embedding", queue, flat(rows), pooling, dimensions, normalize)

    def verify(self, queue: int) -> None:
        choice, filled = self.choice, self._outputs_filled()
        rows = choice.sample(filled, min(len(filled), choice.randint(1, 4), self.inferlet.space.model.max_batch_rows))
        if not rows:
            return
        drawing = choice.choice([self.greedy, self.new_drawing(penalties=False)])
        numbers = drawing.numbers(len(rows))
        model = self.means.model
        try:
            tokens = [
                choose(self._logits(embed), drawing, number, model.close, model.draws_in_order)
                for embed, number in zip(rows, numbers, strict=True)
            ]
        except Undecided:
            return
        right = choice.randint(0, len(rows) - 1)  # of the draft
        draft = [token if n < right else (token + 1) % 256 for n, token in enumerate(tokens[:-1])]
        self.ask(Exactly([right, tokens[right]]), "verify", queue, flat(rows), draft, drawing)

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
        drawing = choice.choice([self.greedy, self.new_drawing()])
        numbers, (recent, allowed), window = drawing.numbers(steps), self._bounds(), choice.choice([0, 3])
        options: dict[str, Any] = {"recent": recent, "window": window} | ({"adapter": adapter} if adapter else {})
        language = choice.choice(LANGUAGES) if self.knows_grammars and choice.random() < 0.4 else None
        begun = b""
        if language is not None:
            allowed = None
            word = choice.choice(sorted(language.words))
            begun = word[: choice.randrange(len(word))]

        def next_token(output: Any, own: Sequence[int]) -> int:
            counted = [*recent, *own][-window:]  # 0: all
            may_come = allowed
            if language is not None:
                if is_end(own):
                    return END
                may_come = language.allowed(begun + bytes(own))
            return self._choose(means.model.logits(output), drawing, numbers[len(own)], counted, may_come)

        def is_end(own: Sequence[int]) -> bool:
            return language is not None and (END in own or language.is_over(begun + bytes(own)))

        vocabulary = self.inferlet.space.model.vocab_size
        if allowed is not None:
            options["allowed"] = bits_of(allowed, vocabulary)
        try:
            plan = means.plan_run(embed, position, context, targets, steps, adapter, next_token)
        except Undecided:
            return
        stop = [choice.choice(plan)[0]] if plan and choice.random() < 0.3 else []
        matcher = None
        if language is not None:
            stop, matcher = [END], Standing(language, begun, vocabulary)
            self.made["decode with a matcher"] += 1
        places = input, position, flat(context), flat(targets)
        arguments = embed, drawing, *places, steps, stop, json.dumps(options), matcher, 0
        future = self.attempt(plan is not None, "decode", queue, *arguments)
        if future is None or plan is None:
            return
        tokens = [token for token, *_ in plan]
        if language is not None:
            ends = (n for n in range(1, len(tokens) + 1) if is_end(tokens[:n]))
            plan = plan[: next(ends, len(tokens))]
        elif stop:
            plan = plan[: tokens.index(stop[0]) + 1]
        used = [embed, input] if steps > 1 else []
        self.embeds = [one for one in self.embeds if one not in used]
        means.empty(used)
        self.wanted[future] = Exactly([token for token, *_ in plan])
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
            assert told == [token for token, *_ in run.plan][: len(told)], f"run {future}"
            del self.wanted[future]
        self.means.end_run(run.plan[: len(told)])
        self.embeds += run.embeds

    def sample(self, queue: int) -> None:
        filled = [embed for embed in self.embeds if embed in self.means.outputs or self.choice.random() < 0.002]
        if not filled:
            return
        embed = self.choice.choice(filled)
        token = self.means.next_token(embed)
        future = self.attempt(token is not None, "sample", queue, embed, self.greedy)
        if future is not None and token is not None:
            self._sampled(future, queue, token)

    def _sampled(self, future: int, queue: int, token: int) -> None:
        self.wanted[future] = Exactly(token)
        self.tokens[future] = token
        self.samples.append((future, queue))

    def _bounds(self) -> tuple[list[int], list[int] | None]:
        """Tokens that penalties count, and those that may come."""
        choice = self.choice
        recent = [choice.randrange(250) for _ in range(choice.choice([0, 0, 6]))]
        return recent, choice.sample(range(250), choice.randint(1, 40)) if choice.random() < 0.2 else None

    def _choose(
        self, logits: Floats, drawing: Drawing, uniform: float, recent: Sequence[int], allowed: Sequence[int] | None
    ) -> int:
        model = self.means.model
        return choose(logits, drawing, uniform, model.close, model.draws_in_order, recent, allowed)

    def _drawn(self, embed: int, drawing: Drawing) -> int:
        return self._choose(self._logits(embed), drawing, drawing.next(), (), None)

    def draw(self, queue: int) -> None:
        """Samples with everything that a sampler can."""
        choice, filled = self.choice, self._outputs_filled()
        if not filled:
            return
        embed, drawing = choice.choice(filled), choice.choice([self.greedy, *self.drawings])
        recent, allowed = self._bounds()
        listed = [future for future, of in self.samples if of == queue]
        referred = [choice.choice(listed)] if listed and choice.random() < 0.3 else []
        counted = [*recent, *(self.tokens[future] for future in referred)]
        try:
            token = self._choose(self._logits(embed), drawing, drawing.next(), counted, allowed)
        except Undecided:
            return
        named = [*recent, *map(name_token, referred)]
        bits = "" if allowed is None else bits_of(allowed, self.inferlet.space.model.vocab_size)
        if choice.random() < 0.5:
            future = self.ask(Anything(), "sample", queue, embed, drawing, named, bits, 0)
            self._sampled(future, queue, token)
        else:
            alternatives = choice.choice([0, 1, 7])
            self.made["sample with log-probabilities"] += 1
            wanted = Scored(token, log_softmax(self._logits(embed)), alternatives)
            future = self.ask(wanted, "sample", queue, embed, drawing, named, bits, 1 + alternatives)
            self._sampled(future, queue, token)
            self.wanted[future] = wanted
        drawing.used()

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

    def reserve_kvpage(self, queue: int) -> None:
        self._allocate_pages(queue, self.choice.randint(1, 2), reserve=True)

    def _allocate_pages(self, queue: int, count: int, reserve: bool = False) -> None:
        fits = len(self.means.pages) + count <= PAGE_POOL.pool_size(self.inferlet.space.model)
        self.made["reserved pages"] += reserve
        first = self.attempt(fits, "alloc_kvpage", queue, count, reserve)
        if first is not None:
            (self.means.reserve if reserve else self.means.allocate)(range(first, first + count))

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
        self.ask(Anything(), "synchronize", queue)

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
            assert self.inferlet.answers.keys() == self.wanted.keys()
        for future, answer in self.inferlet.answers.items():
            if isinstance(answer, CallError):
                assert not self.alive or future in self.imports, answer
                continue
            try:
                self.wanted[future].check(plain(answer), close)
            except AssertionError as error:
                raise AssertionError(f"future {future}: {error}") from error
