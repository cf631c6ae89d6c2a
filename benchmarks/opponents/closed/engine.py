"""The decode loop of `closed`: forms waves of all sequences that run, and takes their results.

One wave runs while the next one waits at the worker: tokens are fed back through token slots, so a step needs no answer
of the one before. A sequence that ends meanwhile has run one step too many, whose token nobody takes. Waves run in
order, so rows and pages of a sequence that has ended serve another one at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from pie_control.errors import InvalidArgument, WorkerUnavailable
from pie_control.inference_client.interface import InferenceClient
from pie_inference.protocol import Batch, Failure, ModelDescription, RunWave, SampleResult, WaveDone

from .pages import PagePool
from .sequence import End, Sequence
from .waves import WaveMaker

IN_FLIGHT = 2
BUSY_SECONDS = 0.003
"""Until a sequence is tried again whose grammar the worker compiles still."""


class Engine:
    """Runs sequences on one worker. Belongs to the thread of the asyncio loop."""

    def __init__(self, client: InferenceClient, description: ModelDescription) -> None:
        self.description = description
        self._client = client
        self._maker = WaveMaker(description)
        self._pool = PagePool(description.num_pages, description.page_size)
        self._rows = list(reversed(range(self._maker.rows)))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_flight: deque[tuple[list[Sequence], list[Sequence]]] = deque()  # those of the forward, of the sample
        self._wave = self._last_matcher = 0
        self._ended_matchers: list[int] = []
        self._step_is_due = False
        self._lost = ""
        client.on_wave_done = self._take
        client.on_lost = self._lose

    def add(self, sequence: Sequence) -> None:
        """Begins a sequence as soon as there is room. Raises InvalidArgument if there never is, and
        WorkerUnavailable without a worker."""
        if self._lost:
            raise WorkerUnavailable(self._lost)
        length, model = sequence.prompt + sequence.parameters.max_tokens, self.description
        if not sequence.prompt:
            raise InvalidArgument("the prompt is empty: give at least one token")
        if length > model.max_context:
            raise InvalidArgument(
                f"{length} tokens, prompt and max_tokens, are more than the {model.max_context} of the model"
            )
        if self._pages_for(sequence) > model.num_pages:
            raise InvalidArgument(
                f"{length} tokens need more KV pages than the {model.num_pages} that there are (--pages)"
            )
        self._waiting.append(sequence)
        self._wake()

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence that nobody wants any more."""
        if sequence.end is None:
            sequence.finish(End.STOP)
            self._leave(sequence)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not (self._running or self._waiting)

    def _wake(self) -> None:
        """A step, behind all that has come by now: requests that come together begin together."""
        if not self._step_is_due:
            self._step_is_due = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._step_is_due = False
        while len(self._in_flight) < IN_FLIGHT and (wave := self._form()) is not None:
            self._in_flight.append(wave[:2])
            self._wave += 1
            self._client.send(RunWave(self._wave, self.description.name, wave[2]))

    def _form(self) -> tuple[list[Sequence], list[Sequence], tuple[Batch, ...]] | None:
        parts = list(self._parts())
        samples = [one for one, begin, count in parts if begin + count >= one.prompt]
        samples += [one for one in self._running if one.waits_for_matcher and one.is_filled and not one.sampled]
        if not parts and not samples:
            return None
        batches: list[Batch] = list(self._maker.inputs(parts)) if parts else []
        for one, begin, count in parts:
            one.begun = begin + count
        if samples:
            ended, self._ended_matchers = self._ended_matchers, []
            batches.append(self._maker.sample(samples, ended))
        for one in samples:
            one.sampled += 1
        return [one for one, _, _ in parts], samples, tuple(batches)

    def _parts(self) -> Iterator[tuple[Sequence, int, int]]:
        """What runs in the next wave: decodes first, then prompts, as far as the budget goes. For a prompt that waits
        for its grammar nothing is left to run."""
        budget = self._maker.budget
        prompts = []
        for one in self._running:
            if one.begun < one.prompt:
                prompts.append(one)
            elif one.sampled < one.parameters.max_tokens and not one.waits_for_matcher:
                yield one, one.begun, 1
                budget -= 1
        for one in prompts:
            if not budget:
                return
            yield (part := self._chunk(one, budget))
            budget -= part[2]
        while budget and self._waiting and self._begin(self._waiting[0]):
            yield (part := self._chunk(self._waiting.popleft(), budget))
            budget -= part[2]

    def _chunk(self, one: Sequence, budget: int) -> tuple[Sequence, int, int]:
        """The next tokens of a prompt. A forward writes all keys before attention begins, so others of its batch may
        use the pages already."""
        count = min(budget, one.prompt - one.begun)
        self._cache(one, one.begun + count)
        return one, one.begun, count

    def _begin(self, one: Sequence) -> bool:
        """Gives a sequence a row, and the pages for all that it may have. False: there is no room now."""
        found = self._pool.find(one.tokens)
        pages = [page for _, page in found]
        needed = self._pages_for(one) - len(pages)
        if not self._rows or needed + self._pool.unused_of(pages) > len(self._pool):
            return False
        self._pool.share(pages)
        one.pages = pages + self._pool.take(needed)
        one.begun = one.reused = len(pages) * self._pool.page_size
        one.cached, one.last_cached = len(pages), found[-1][0] if found else 0
        one.row = self._rows.pop()
        if one.parameters.grammar:
            self._last_matcher += 1
            one.matcher = self._last_matcher
        self._maker.place(one)
        self._running.append(one)
        return True

    def _pages_for(self, one: Sequence) -> int:
        """The last token is no input."""
        return -(-(one.prompt + one.parameters.max_tokens - 1) // self._pool.page_size)

    def _cache(self, one: Sequence, end: int) -> None:
        """Others may use the full pages of the first `end` tokens."""
        size = self._pool.page_size
        for place in range(one.cached, min(end, len(one.tokens)) // size):
            tokens = one.tokens[place * size : (place + 1) * size]
            one.last_cached = self._pool.cache(one.last_cached, tokens, one.pages[place])
            one.cached = place + 1

    def _take(self, done: WaveDone) -> None:
        forwards, samples = self._in_flight.popleft()
        self._step()  # first of all, so that the worker has something to do
        busy = [self._fail(failure, forwards, samples) for failure in done.failures]
        result = done.results[-1] if done.results else None
        if samples and isinstance(result, SampleResult):
            over = [False] * len(samples) if result.over is None else result.over.tolist()
            for one, token, last in zip(samples, result.tokens.tolist(), over, strict=True):
                if one.end is None and one not in busy:
                    self._take_token(one, token, last)
        self._wake()

    def _fail(self, failure: Failure, forwards: list[Sequence], samples: list[Sequence]) -> Sequence | None:
        """Ends the sequence of a command that failed; one that may be tried again is given back."""
        is_sample = bool(samples) and failure.batch == (2 if forwards else 0)
        one = (samples if is_sample else forwards)[failure.command]
        if is_sample and failure.busy:
            one.sampled = -1
            asyncio.get_running_loop().call_later(BUSY_SECONDS, self._try_again, one)
            return one
        if one.end is None:
            self._end(one, End.ERROR, [], failure.message)
        return None

    def _try_again(self, one: Sequence) -> None:
        one.sampled = 0
        self._wake()

    def _take_token(self, one: Sequence, token: int, last: bool) -> None:
        one.tokens.append(token)
        if token in self.description.stop_tokens and not one.parameters.ignore_eos:
            self._end(one, End.STOP, [])
        elif last or one.generated == one.parameters.max_tokens:
            self._end(one, End.STOP if last else End.LENGTH, [token])
        else:
            one.on_token([token], None)

    def _end(self, one: Sequence, end: End, tokens: list[int], error: str = "") -> None:
        one.finish(end)
        one.error = error
        self._leave(one)
        one.on_token(tokens, end)

    def _leave(self, one: Sequence) -> None:
        """Gives back what a sequence holds."""
        if one.row < 0:
            self._waiting.remove(one)
            return
        self._cache(one, one.begun)
        self._running.remove(one)
        self._pool.give_back(one.pages)
        self._rows.append(one.row)
        if one.matcher:
            self._ended_matchers.append(one.matcher)

    def _lose(self, reason: str) -> None:
        """Without a worker nothing goes on."""
        self._lost = f"the worker is lost: {reason}"
        self._in_flight.clear()
        for one in [*self._running, *self._waiting]:
            self._end(one, End.ERROR, [], self._lost)
