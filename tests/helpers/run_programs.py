"""Random programs that decode by runs, step by step and by forks, beside an oracle that says which tokens must come.

The oracle knows neither queues nor waves nor memory: it computes the fake model's hash of a list of tokens, and chooses
the next one. Each sequence of a program has its tokens at positions 0, 1, ..., in slots of its pages in this order.
Unlike those of random_author.py, other queues read the pages that a run writes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.errors import CallError
from tests.helpers.issue_order import VOCAB, HashModel
from tests.helpers.naive_sampler import Drawing, Floats, choose
from tests.helpers.scheduling import Inferlet, name_token

EMBEDS = 40  # of a sequence: inputs, the last one is the output
MODEL = HashModel()


def scores_after(tokens: Sequence[int]) -> Floats:
    """Of each next token."""
    held = [(MODEL.embed(token), position) for position, token in enumerate(tokens)]
    return MODEL.logits(MODEL.run(held[:-1], held[-1:])[1][0])


# ---- programs --------------------------------------------------------------------------------------------------------


@dataclass
class UnderWay:
    """A run that was issued, and the tokens that must come."""

    future: int
    wanted: list[int]


@dataclass
class Line:
    """A sequence: its tokens are computed, with the output of the last one in its output embed."""

    queue: int
    embeds: int  # first
    seed: int
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    shared: int = 0  # of the pages, full ones of another sequence
    reserved: set[int] = field(default_factory=set)  # pages that may have no memory
    run: UnderWay | None = None
    used: int = 0  # draws

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.seed)
        self.drawn: list[float] = []
        self.samplers: dict[SamplingParams, Sampler] = {}

    def number(self, index: int) -> float:
        while len(self.drawn) <= index:
            self.drawn.append(self.numbers.random())
        return self.drawn[index]


class Author:
    """Makes calls of one inferlet. Every token that it is told is compared with the oracle's."""

    def __init__(self, inferlet: Inferlet, choice: random.Random, most_steps: int = 30) -> None:
        self.inferlet = inferlet
        self.choice = choice
        self.most_steps = most_steps
        self.size = inferlet.space.model.page_size
        self.lines: list[Line] = []
        self.runs: list[UnderWay] = []
        self.sampled: list[tuple[int, int]] = []  # futures of single samples, with their tokens
        self.gone = False  # it has ended by itself

    @property
    def alive(self) -> bool:
        return self.inferlet.ending is None and not self.gone

    def step(self) -> None:
        """Something, at random."""
        if not self.lines:
            self.open([], [], 0)
            return
        line = self.choice.choice(self.lines)
        if line.run is None:
            acts = [self.run, self.run, self.run, self.prefill, self.single_steps, self.fork, self.close, self.trim]
        else:
            acts = [self.look, self.look, self.look, self.fork_running, self.cancel, self.peek, self.drop]
        self.choice.choice(acts)(line)

    # ---- of sequences without a run ----

    def open(self, pages: Sequence[int], tokens: Sequence[int], full: int) -> Line:
        """A new sequence that shares the first `full` pages of another, and copies the other tokens."""
        queue = self.inferlet.create_queue()
        embeds = self.inferlet.call("alloc", queue, "emb", EMBEDS)
        line = Line(queue, embeds, self.choice.randrange(1 << 30), list(tokens), list(pages[:full]), full)
        self.lines.append(line)
        copied = len(tokens) - full * self.size
        if copied:
            count = -(-copied // self.size)
            first = self.inferlet.call("alloc", queue, "kvpage", count)
            line.pages += range(first, first + count)
            slots = [page * self.size + slot for page in pages[full:] for slot in range(self.size)][:copied]
            self.inferlet.call("copy_kvpage", queue, flat(slots), [first * self.size, copied])
        self.extend(line, self.choice.choices(range(256), k=self.choice.randint(1, 12)))
        return line

    def extend(self, line: Line, tokens: Sequence[int], named: Sequence[int] | None = None) -> None:
        """Runs tokens; `named`: as they are named."""
        self.give_back_reserved(line)
        start, stop = len(line.tokens), len(line.tokens) + len(tokens)
        missing = -(-stop // self.size) - len(line.pages)
        if missing > 0:
            first = self.inferlet.call("alloc", line.queue, "kvpage", missing)
            line.pages += range(first, first + missing)
        inputs, output = [line.embeds, len(tokens)], [line.embeds + EMBEDS - 1, 1]
        self.inferlet.call("embed_txt", line.queue, list(named or tokens), list(range(start, stop)), inputs)
        own = flat(line.pages[line.shared :])
        self.inferlet.call("forward", line.queue, flat(line.pages), inputs, own, output)
        line.tokens += tokens

    def give_back_reserved(self, line: Line) -> None:
        reached = -(-len(line.tokens) // self.size)
        unreached = [page for page in line.pages[reached:] if page in line.reserved]
        if unreached:
            self.inferlet.call("dealloc", line.queue, "kvpage", flat(unreached))
            line.pages = [page for page in line.pages if page not in unreached]
        line.reserved.clear()

    def prefill(self, line: Line) -> None:
        self.extend(line, self.choice.choices(range(256), k=self.choice.randint(1, 20)))

    def single_steps(self, line: Line) -> None:
        """As programs decode that know nothing of runs."""
        for _ in range(self.choice.randint(1, 3)):
            future = self.inferlet.call("sample", line.queue, line.embeds + EMBEDS - 1, GREEDY)
            token = int(scores_after(line.tokens).argmax())
            self.sampled.append((future, token))
            self.extend(line, [token], [name_token(future)])

    def trim(self, line: Line) -> None:
        """Drops the last tokens, and runs the last one that is left again."""
        shared = {page for other in self.lines if other is not line for page in other.pages}
        least = max(line.shared, sum(page in shared for page in line.pages)) * self.size + 1
        if least > len(line.tokens):
            return
        kept = self.choice.randint(least, len(line.tokens))
        last = line.tokens[kept - 1]
        self.inferlet.call("trim_kvpage", line.queue, flat(line.pages), kept - 1)
        del line.tokens[kept - 1 :]
        self.extend(line, [last])

    def fork(self, line: Line) -> None:
        if len(self.lines) < 5:
            self.open(line.pages, line.tokens, self.shareable(line))

    def shareable(self, line: Line) -> int:
        """Full pages that the sequence will not cut."""
        return (len(line.tokens) - 1) // self.size

    def close(self, line: Line) -> None:
        self.lines.remove(line)
        self.give_back_reserved(line)
        kept = {page for other in self.lines for page in other.pages}
        own = [page for page in line.pages if page not in kept]
        if own:
            self.inferlet.call("dealloc", line.queue, "kvpage", flat(own))
        self.inferlet.call("dealloc", line.queue, "emb", [line.embeds, EMBEDS])
        self.inferlet.destroy_queue(line.queue)

    # ---- runs ----

    def run(self, line: Line) -> None:
        """Decodes by a run, in pages that it has, allocates or reserves."""
        choice = self.choice
        steps = choice.choice([1, 2, 3, choice.randint(1, self.most_steps), choice.randint(1, self.most_steps)])
        missing = -(-(len(line.tokens) + steps - 1) // self.size) - len(line.pages)
        if missing > 0:
            reserve = choice.random() < 0.6 or bool(line.reserved)
            first = self.inferlet.call("alloc", line.queue, "reserved-kvpage" if reserve else "kvpage", missing)
            line.pages += range(first, first + missing)
            line.reserved.update(range(first, first + missing) if reserve else ())
        params = SamplingParams(temperature=choice.choice([0.0, 0.7, 1.5]), top_k=choice.choice([0, 0, 5]))
        drawing, wanted = Drawing(params, line.seed), list(line.tokens)
        own: list[int] = []
        for number in range(steps):
            uniform = line.number(line.used + number) if params.temperature else 0.0
            own.append(choose(scores_after(wanted), drawing, uniform, 0.0, MODEL.draws_in_order))
            wanted.append(own[-1])
        stop = choice.sample(own, min(len(own), choice.choice([0, 0, 1, 2]))) + choice.choices(range(VOCAB), k=1)
        ends = next((n + 1 for n, token in enumerate(own) if token in stop), steps)
        future = self.inferlet.call(
            "decode",
            line.queue,
            line.embeds + EMBEDS - 1,
            self.sampler(line, params),
            line.embeds,
            len(line.tokens),
            flat(line.pages),
            flat(line.pages[line.shared :]),
            steps,
            stop,
            "",
        )
        line.run = UnderWay(future, own[:ends])
        self.runs.append(line.run)

    def sampler(self, line: Line, params: SamplingParams) -> Sampler:
        """All of a sequence draw from one line of numbers, as one sampler would; a greedy one does not draw."""
        sampler = Sampler(params, line.seed)
        for _ in range(line.used):
            sampler.draw()
        line.samplers[params] = sampler
        return sampler

    def look(self, line: Line) -> None:
        """Goes on if the run is over."""
        assert line.run is not None
        if line.run.future in self.inferlet.answers:
            self.settle(line)

    def cancel(self, line: Line) -> None:
        assert line.run is not None
        if line.run.future in self.inferlet.answers or self.choice.random() < 0.5:
            return
        assert self.inferlet.cancel(line.run.future)
        self.settle(line)

    def settle(self, line: Line) -> None:
        """The tokens of a run that is over belong to the sequence. The last one was not run."""
        assert line.run is not None
        told = self.inferlet.tokens.get(line.run.future, [])
        assert told == line.run.wanted[: len(told)]
        params = next(iter(line.samplers))
        sampler = line.samplers.pop(params)
        if params.temperature:
            line.used += len(told)
            assert sampler.draw() == line.number(line.used), "unused numbers were not taken back"
        line.run = None
        kept = told[:-1]
        if not told:
            kept, told = [], line.tokens[-1:]
            self.inferlet.call("trim_kvpage", line.queue, flat(line.pages), len(line.tokens) - 1)
            line.tokens.pop()
        line.tokens += kept
        self.extend(line, told[-1:])

    # ---- while a run goes on ----

    def delivered(self, line: Line) -> int:
        """Tokens of the sequence whose keys are there."""
        assert line.run is not None
        return len(line.tokens) + max(len(self.inferlet.tokens.get(line.run.future, ())) - 1, 0)

    def fork_running(self, line: Line) -> None:
        """Shares full pages, and copies the tokens behind them, as far as they are known."""
        if len(self.lines) >= 5:
            return
        assert line.run is not None
        count = self.delivered(line)
        tokens = [*line.tokens, *self.inferlet.tokens.get(line.run.future, ())][:count]
        self.open(line.pages, tokens, self.shareable(line))

    def peek(self, line: Line) -> None:
        """Another queue reads what the run has filled, and keeps nothing."""
        assert line.run is not None
        count = self.delivered(line)
        tokens = [*line.tokens, *self.inferlet.tokens.get(line.run.future, ())][:count]
        others = [one for one in self.lines if one.run is None]
        if not others:
            return
        other, token = self.choice.choice(others), self.choice.randrange(256)
        self.inferlet.call("embed_txt", other.queue, [token], [count], [other.embeds, 1])
        self.inferlet.call("forward", other.queue, flat(line.pages), [other.embeds, 1], [], [other.embeds + 1, 1])
        future = self.inferlet.call("sample", other.queue, other.embeds + 1, GREEDY)
        self.sampled.append((future, int(scores_after([*tokens, token]).argmax())))

    def drop(self, line: Line) -> None:
        """Gives everything back, with the run or without it."""
        if self.choice.random() < 0.7:
            return
        assert line.run is not None
        if self.choice.random() < 0.5 and line.run.future not in self.inferlet.answers:
            assert self.inferlet.cancel(line.run.future)
            line.reserved.clear()
        self.close(line)

    # ---- what came of it ----

    def check(self) -> None:
        """All that was told is right; and complete, if the inferlet was not ended."""
        for future, token in self.sampled:
            answer = self.inferlet.answers.get(future)
            if isinstance(answer, CallError) or (answer is None and not self.alive):
                assert not self.alive, answer
            else:
                assert self.inferlet.token(future) == token, future
        for run in self.runs:
            told = self.inferlet.tokens.get(run.future, [])
            assert told == run.wanted[: len(told)]
            if self.alive and run.future in self.inferlet.accepted:
                assert self.inferlet.answers[run.future] == tuple(run.wanted)


GREEDY = Sampler(SamplingParams(temperature=0), 0)


def flat(addresses: Sequence[int]) -> list[int]:
    return [number for address in addresses for number in (address, 1)]
