"""Random programs over contexts, beside what they mean: the tokens that each context has, where they are, and which of
them are seen. So the scores of the model are known without a cache, however a context came to be.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from inferlet_sdk import Context, DistSampler, Greedy, IgnoreStopTokens, NotFound, PromptLookup, Sampler, StopWhen
from inferlet_sdk.event_loop import run
from pie_control.calls.sampler import SamplingParams
from pie_control.testing.fake_model import Floats
from tests.helpers.naive_sampler import Drawing, choose
from tests.helpers.native_host import NativeHost
from tests.helpers.twins import Twin, joined
from tests.helpers.undecided import Undecided

ALL = IgnoreStopTokens()
CLOSE = 1e-3
"""By as much may log-probabilities differ."""
MOST = 6  # contexts at a time
LONGEST = 120  # tokens
NAMES = "xyz"  # of exports
COMMON = list(range(97, 123))  # how many contexts begin

Choose = Callable[[Floats, list[int]], int]
"""The next token, by the scores and the tokens of the generation so far."""


class Failed(Exception):
    """A stop condition of the program fails."""


class Program:
    """Makes random calls of contexts, and checks what they give."""

    ALONE = ("fork", "close", "join", "forget", "begin")
    BESIDE = (
        *("fill", "text", "cut", "drop", "window", "generate", "generate", "generate", "draft", "draft", "broken"),
        *(
            "sample",
            "dist",
            "score",
            "select",
            "best_of",
            "beam",
            "flush",
            "keep",
            "pin",
            "export",
            "open",
            "restore",
            "steps",
        ),
    )
    """What tasks may do beside each other."""

    def __init__(self, host: NativeHost, choice: random.Random, made: Counter[str]) -> None:
        """`made`: what was done, and how often."""
        self.host, self.choice, self.made = host, choice, made
        self.twins: list[Twin] = []
        self.exports: dict[str, Twin] = {}
        self.has_states = Context().model.state_pages > 0

    def scores(self, twin: Twin, more: Sequence[int] = ()) -> Floats:
        return self.host.model.scores(twin.state(more))

    def best(self, twin: Twin) -> int:
        return int(self.scores(twin).argmax())

    def following(self, twin: Twin, count: int, next_token: Choose) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(next_token(self.scores(twin, tokens), tokens))
        return tokens

    def logprobs(self, twin: Twin, tokens: Sequence[int]) -> list[float]:
        found = []
        for n, token in enumerate(tokens):
            scores = self.scores(twin, tokens[:n])
            found.append(float(scores[token] - scores.max() - np.log(np.exp(scores - scores.max()).sum())))
        return found

    def likely(self, count: float) -> bool:
        return self.choice.random() < count

    # ---- a program ----

    def play(self, steps: int) -> None:
        """Raises AssertionError if one of so many steps gives, or leaves, what it should not."""
        self.begin(None)
        for _ in range(steps):
            run(self.together() if self.likely(0.25) else self.step(self.choice.choice(self.twins)))
        for twin in self.twins:
            assert list(twin.ctx.tokens) == twin.tokens
            assert not twin.has_output or run(twin.ctx.sample()) == self.best(twin)
            twin.ctx.close()

    async def together(self) -> None:
        """Several contexts work at the same time; some of the tasks are cancelled."""
        some = self.choice.sample(self.twins, min(len(self.twins), self.choice.randint(2, 4)))
        tasks = [asyncio.ensure_future(self.step(twin, alone=False)) for twin in some]
        for task in tasks:
            if self.likely(0.2):
                await self.pause()
                self.made["cancelled"] += task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, asyncio.CancelledError):
                raise found

    async def pause(self) -> None:
        for _ in range(self.choice.randint(0, 5)):
            await asyncio.sleep(0)
        self.host.settle(self.choice.randint(1, 30))

    async def step(self, twin: Twin, alone: bool = True) -> None:
        name = self.choice.choice(self.BESIDE + self.ALONE if alone else self.BESIDE)
        name = "cut" if len(twin.placed) > LONGEST else name
        self.made[name] += 1
        before = twin.copy(twin.ctx)
        try:
            if (work := getattr(self, name)(twin)) is not None:
                await work
        except asyncio.CancelledError:
            tokens = list(twin.ctx.tokens)
            assert tokens[: len(before.placed)] == before.tokens, "what was there before it was cancelled"
            if tokens != twin.tokens:
                twin.placed, twin.next = before.placed, before.next
                twin.add(tokens[len(before.placed) :])
            raise

    # ---- what contexts hold ----

    def fill(self, twin: Twin) -> None:
        tokens = [self.choice.randrange(97, 123) for _ in range(self.choice.randint(1, 13))]
        twin.ctx.fill(tokens)
        twin.add(tokens)

    def text(self, twin: Twin) -> None:
        twin.ctx.fill("".join(self.choice.choice("the is. ") for _ in range(self.choice.randint(1, 9))))
        twin.add(list(twin.ctx.tokens)[len(twin.placed) :])

    def cut(self, twin: Twin) -> None:
        length, edge = self.choice.randint(1, len(twin.placed)), twin.placed
        if any(other.position <= one.position for one, other in pairwise(edge) if one.seen and other.seen):
            return  # parts of a model that cannot move tokens: what goes on is behind all of them
        if length == len(edge) or edge[length].seen or edge[length - 1].seen:
            twin.ctx.truncate(length)
            twin.cut(length)

    def drop(self, twin: Twin) -> None:
        if not self.has_states and len(twin.placed) > 1:
            start = self.choice.randint(0, len(twin.placed) - 1)
            stop, close_gap = self.choice.randint(start, len(twin.placed) - 1), self.likely(0.7)
            twin.ctx.drop(start, stop, close_gap=close_gap)
            twin.drop(start, stop, close_gap)

    def window(self, twin: Twin) -> None:
        length, sink = self.choice.randint(1, 12), self.choice.randint(0, 5)
        if not self.has_states:
            twin.ctx.window(length, sink=sink)
            if sink < len(twin.placed) - length:
                twin.drop(sink, len(twin.placed) - length, close_gap=True)

    # ---- generating ----

    async def generate(self, twin: Twin, draft: Callable[[list[int]], Any] | None = None) -> None:
        """It is cancelled, its conditions fail, and it goes on, or is left."""
        choice, count = self.choice, self.choice.randint(1, 12)
        if not twin.has_output:
            return
        sampler, next_token = self.sampler(twin, count, draft is not None)
        try:
            wanted = self.following(twin, count, next_token)
        except Undecided:
            return
        options: dict[str, Any] = {"run_ahead": self.likely(0.7), "logprobs": choice.choice([None, 1])}
        end = choice.randint(1, count) if self.likely(0.3) else count
        failures = [choice.randint(1, count)] if self.likely(0.3) else []

        def fails(generation: Any) -> bool:
            if failures and len(generation.tokens) >= failures[0]:
                failures.pop()
                self.made["a condition fails"] += 1
                raise Failed
            return False

        ends = StopWhen(lambda generation: len(generation.tokens) >= end)
        stop: list[Any] = [ALL, ends, StopWhen(fails)] if failures or end < count else [ALL]
        draft_of = None if draft is None else draft(wanted)
        generation = twin.ctx.generate(count, sampler=sampler, stop=stop, draft=draft_of, **options)
        is_left = self.likely(0.2)
        while generation.stop_reason is None:
            with suppress(Failed):
                await self.wait_for(generation)
                if is_left:
                    break
        found = list(twin.ctx.tokens)[len(twin.placed) :]
        assert found == wanted[: len(found)]
        assert is_left or len(found) == end
        if options["logprobs"] is not None:
            self.same([one.logprob for one in generation.logprobs], self.logprobs(twin, found))
        twin.add(found)

    async def wait_for(self, generation: Any) -> None:
        """A piece, or all; waits for it are cancelled before."""
        waits: Any = generation.whole if self.likely(0.5) else lambda: anext(generation, "")
        while self.likely(0.3):
            task = asyncio.ensure_future(waits())
            try:
                await self.pause()
            finally:
                self.made["cancelled"] += task.cancel()
                failed = [one for one in await asyncio.gather(task, return_exceptions=True) if isinstance(one, Failed)]
            if failed:
                raise failed[0]
        await waits()

    def sampler(self, twin: Twin, count: int, drafts: bool) -> tuple[Any, Choose]:
        kind = self.choice.choice(["greedy", "seeded"] if drafts else ["greedy", "seeded", "own", "penalties"])
        self.made[kind] += 1
        if kind == "greedy":
            return Greedy(), lambda scores, _: int(scores.argmax())
        if kind == "own":
            return DistSampler(lambda dist: dist.tokens[1], k=3), lambda scores, _: int(np.argsort(-scores)[1])
        seed, penalty, before = self.choice.randrange(100), 0.5 * (kind == "penalties"), list(twin.tokens)
        drawing = Drawing(SamplingParams(temperature=1.5, frequency=penalty), seed)
        numbers = drawing.numbers(count)

        def next_token(scores: Floats, tokens: list[int]) -> int:
            recent = [*before, *tokens][-7:] if penalty else []
            return choose(scores, drawing, numbers[len(tokens)], 1e-9, False, recent)

        return Sampler(temperature=1.5, seed=seed, frequency_penalty=penalty, window=7), next_token

    async def draft(self, twin: Twin) -> None:
        start, wrong = len(twin.placed), self.choice.randint(0, 12)

        def knowing(wanted: list[int]) -> Any:
            def guess(tokens: Sequence[int]) -> list[int]:
                done = len(tokens) - start
                return [token + (done + n == wrong) for n, token in enumerate(wanted[done : done + 5])]

            async def later(tokens: Sequence[int]) -> list[int]:
                await asyncio.sleep(0)
                return guess(tokens)

            return self.choice.choice([guess, later, PromptLookup(), lambda _: None])

        await self.generate(twin, knowing)

    async def broken(self, twin: Twin) -> None:
        """A loop that is left while its run goes on."""
        if twin.has_output:
            async for _ in twin.ctx.generate(20, stop=ALL):
                break
            found = list(twin.ctx.tokens)[len(twin.placed) :]
            assert found == self.following(twin, len(found), lambda scores, _: int(scores.argmax()))
            twin.add(found)

    async def steps(self, twin: Twin) -> None:
        """Tokens that the program chooses one by one."""
        for _ in range(self.choice.randint(1, 5) if twin.has_output else 0):
            dist = await twin.ctx.next_dist(self.choice.choice([2, 5]))
            assert dist.tokens[0] == self.best(twin)
            twin.ctx.fill(dist.tokens[1:2])
            twin.add(dist.tokens[1:2])

    # ---- what the model says of them ----

    async def sample(self, twin: Twin) -> None:
        assert not twin.has_output or await twin.ctx.sample() == self.best(twin)

    async def dist(self, twin: Twin) -> None:
        if twin.has_output:
            dist = await twin.ctx.next_dist(4)
            assert list(dist.tokens) == np.argsort(-self.scores(twin), kind="stable")[:4].tolist()

    async def score(self, twin: Twin) -> None:
        if twin.has_output:
            tokens = [self.choice.randrange(97, 123) for _ in range(self.choice.randint(0, 9))]
            self.same(await twin.ctx.score(tokens), self.logprobs(twin, tokens))

    async def select(self, twin: Twin) -> None:
        if twin.has_output:
            options = ["".join(self.choices("abc", self.choice.randint(1, 4))) for _ in range(3)]
            chosen = (await twin.ctx.select(options)).encode()
            totals = [sum(self.logprobs(twin, option.encode())) for option in options]
            assert sum(self.logprobs(twin, chosen)) > max(totals) - CLOSE
            twin.add(list(chosen))

    def choices(self, values: Sequence[str], count: int) -> list[str]:
        return self.choice.choices(values, k=count)

    async def best_of(self, twin: Twin) -> None:
        if twin.has_output:
            count, sampler = self.choice.randint(1, 4), Sampler(seed=self.choice.randrange(100))
            self.take_best(twin, await twin.ctx.best_of(count, self.choice.randint(0, 5), stop=ALL, sampler=sampler))

    async def beam(self, twin: Twin) -> None:
        if twin.has_output:
            self.take_best(twin, await twin.ctx.beam(self.choice.randint(1, 3), self.choice.randint(0, 4)))

    def take_best(self, twin: Twin, found: Sequence[Any]) -> None:
        means = [sum(self.logprobs(twin, one.tokens)) / max(len(one.tokens), 1) for one in found]
        self.same([one.score for one in found], means)
        twin.add(found[0].tokens)

    def same(self, found: Sequence[float], wanted: Sequence[float]) -> None:
        assert len(found) == len(wanted)
        assert all(abs(one - other) < CLOSE for one, other in zip(found, wanted, strict=True)), f"{found}, not {wanted}"

    async def flush(self, twin: Twin) -> None:
        if twin.has_output:
            await twin.ctx.flush()

    async def pin(self, twin: Twin) -> None:
        if twin.has_output:
            await twin.ctx.pin(self.choice.choice([0, 1000]))

    def keep(self, twin: Twin) -> None:
        if twin.has_output:
            twin.ctx.keep()

    # ---- other contexts ----

    def _add(self, twin: Twin) -> None:
        self.twins.append(twin)
        if len(self.twins) > MOST:
            self.close(twin)  # tasks may be at work with the others

    def begin(self, _: Twin | None) -> None:
        position = self.choice.choice([0, 0, 30])
        new = Twin(Context(position=position, share=self.likely(0.5)), [], position)
        if self.likely(0.5):
            tokens = COMMON[: self.choice.randint(1, len(COMMON))]
            new.ctx.fill(tokens)
            new.add(tokens)
        self.fill(new)
        self._add(new)

    def fork(self, twin: Twin) -> None:
        self._add(twin.copy(twin.ctx.fork()))

    def close(self, twin: Twin) -> None:
        if len(self.twins) > 1:
            self.twins.remove(twin)
            twin.ctx.close()

    def forget(self, twin: Twin) -> None:
        """The program drops it."""
        if len(self.twins) > 1:
            self.twins.remove(twin)

    def join(self, twin: Twin) -> None:
        parts = [*self.choice.choices(self.twins, k=self.choice.randint(0, 2)), twin]
        if not self.has_states and twin.has_output and sum(len(one.placed) for one in parts) < LONGEST:
            self._add(joined(Context.join([one.ctx for one in parts]), parts))

    async def export(self, twin: Twin) -> None:
        if all(one.seen for one in twin.placed):
            name, kept = self.choice.choice(NAMES), twin.copy(twin.ctx)
            self.exports.pop(name, None)
            await twin.ctx.export(name)
            self.exports[name] = kept

    async def open(self, _: Twin) -> None:
        name = self.choice.choice(NAMES)
        if (kept := self.exports.get(name)) is not None:
            with suppress(NotFound):
                ctx = await Context.open(name)
                if self.exports.get(name) is kept:  # no other task has made another one meanwhile
                    self._add(kept.copy(ctx))

    def restore(self, twin: Twin) -> None:
        positions = [one.position for one in twin.placed if one.seen]
        if positions == list(range(twin.next - len(twin.placed), twin.next)):
            self._add(twin.copy(Context.restore(twin.ctx.snapshot())))
