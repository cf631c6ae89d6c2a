"""What grammars say to the rows of `Sample`: on a worker, beside its sampler.

Theory of operation. A decode run with a matcher is known here by a number. Its first step brings the grammar, and the
tokens before the run that the matcher has accepted; each step says how many tokens of the run there are before it. A
step accepts the token of the one before, which is on the host by then, and says what may come next. So nothing goes
wrong where a step is run once more, or nobody wants its token: the number says how far the matcher has to be, and it
goes back. Two steps may be under way on a device: then the second one waits here for the token of the first, while the
device computes the output that it samples from.

A run is over where nothing can follow in its grammar, or where `skip` tokens are forced: its program runs them
together. A grammar that is not compiled yet fails its run as *busy*: its program issues the run again, and nobody else
has waited. What takes too long is ended.

Only the leader of a group of ranks has this: the others get its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..protocol import GrammarStart, Sample
from .engine import Vocabulary
from .library import GrammarLibrary
from .runs import ALLOWANCE, NOT_READY, Busy, MatchedRun, Replays, SampledTokens
from .sources import GrammarError

MOST_MATCHERS = 4096
"""Most matchers of runs that are under way."""
MOST_REPLAYED = 512
"""Tokens before a run that its matcher accepts while the wave waits."""
MOST_KEPT = 64
"""Matchers of runs that are over, of all grammars. A run often goes on where one has ended."""

NO_TOKEN = "no token may come here that the grammar, and `allowed` if it is given, allow"


class Fault(NamedTuple):
    """Why a row fails. `busy`: it may be tried again."""

    message: str
    busy: bool = False


@dataclass(frozen=True)
class MatcherStep:
    """What grammars say to one batch. `rows` may come as `allowed` says, uint8 [len(rows), ceil(vocab / 8)]; the rows
    of `faults` fail."""

    rows: NDArray[np.int64]
    allowed: NDArray[np.uint8]
    faults: Mapping[int, Fault]
    runs: Mapping[int, MatchedRun] = field(repr=False)
    counts: Mapping[int, int] = field(repr=False)

    def sampled(self, read: Callable[[], Sequence[int]]) -> None:
        """The batch was sampled; `read` gives its tokens, and may wait for the device."""
        tokens = SampledTokens(read)
        for row, run in self.runs.items():
            run.last = tokens, row

    def over(self, rows: int) -> NDArray[np.bool_]:
        """The rows that are the last of their run, bool [rows]; waits for the tokens."""
        over = np.zeros(rows, np.bool_)
        for row, run in self.runs.items():
            over[row] = run.ends_behind(self.counts[row] + 1)
        return over


class _Rows:
    """The rows of one batch, while their masks are made."""

    def __init__(self, batch: Sample) -> None:
        self._batch = batch
        self._runs: dict[int, MatchedRun] = {}
        self._counts: dict[int, int] = {}
        self._faults: dict[int, Fault] = {}

    def add(self, row: int, run: MatchedRun, count: int) -> None:
        """A row whose matcher is where it has to be, behind `count` tokens."""
        self._runs[row], self._counts[row] = run, count

    def fail(self, row: int, error: Exception) -> None:
        self._faults[row] = Fault(str(error), isinstance(error, Busy))
        self._runs.pop(row, None)

    def step(self, vocabulary: Vocabulary | None) -> MatcherStep:
        """What they may sample. Where a run is over, nobody wants its token; one that begins there ends with a stop
        token."""
        wanted = [row for row, run in self._runs.items() if not (run.matcher.is_over and self._counts[row])]
        rows, allowed = self._masks(wanted, vocabulary)
        return MatcherStep(rows, allowed, self._faults, self._runs, self._counts)

    def _masks(self, wanted: list[int], vocabulary: Vocabulary | None) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """For each of these rows that does not fail, in order."""
        if not wanted or vocabulary is None:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.uint8)
        masks = vocabulary.masks(len(wanted))
        address, size = masks.ctypes.data, masks.strides[0]
        before = time.thread_time()
        for place, row in enumerate(wanted):
            run = self._runs[row]
            try:
                before = run.matcher.write_mask(address + place * size, before)
                run.check_pace()
            except GrammarError as error:
                self.fail(row, error)
                before = time.thread_time()
        allowed, rows = vocabulary.trim(masks), np.array(wanted, np.int64)
        if self._batch.allowed is not None and self._batch.allowed_rows is not None:
            own = self._batch.allowed_rows[rows]
            allowed[own >= 0] &= self._batch.allowed[own[own >= 0]]
        for row in rows[~allowed.any(1)].tolist():
            if row in self._runs:
                self.fail(row, GrammarError(NO_TOKEN))
        alive = np.array([row in self._runs for row in wanted])
        return (rows, allowed) if alive.all() else (rows[alive], allowed[alive])


class Constraints:
    """The matchers of all runs that are under way."""

    def __init__(self, tokenizer: bytes, vocab_size: int, stop_tokens: Sequence[int]) -> None:
        """From tokenizer.json, which is read when the first grammar comes."""
        self._library = GrammarLibrary(lambda: Vocabulary(tokenizer, vocab_size, stop_tokens))
        self._runs: dict[int, MatchedRun] = {}
        self._kept: list[MatchedRun] = []
        self._replays = Replays()

    def __len__(self) -> int:
        return len(self._runs)

    def clear(self) -> None:
        """Forgets all runs: nobody goes on with them."""
        self._drop(list(self._runs))

    def step(self, batch: Sample) -> MatcherStep:
        """What may come next in each row with a matcher. Raises ValueError if the batch is wrong."""
        if batch.matchers is None or batch.matched is None:
            raise ValueError("the rows have no matchers")
        if batch.ended is not None:
            self._drop(batch.ended.tolist())
        found, runs = _Rows(batch), self._runs
        for row, (number, count) in enumerate(zip(batch.matchers.tolist(), batch.matched.tolist(), strict=True)):
            if not number:
                continue
            try:
                run = runs[number] if count and number in runs else self._begin(number, count, batch, row)
                if not run.is_at(count):
                    run.go_to(count)
            except (GrammarError, Busy) as error:
                found.fail(row, error)
            else:
                found.add(row, run, count)
        return found.step(self._library.vocabulary)

    def _begin(self, number: int, count: int, batch: Sample, row: int) -> MatchedRun:
        """A run that takes its first step."""
        if count:
            raise GrammarError(f"the worker has no matcher {number}")
        run = self._runs.get(number)
        start = _start_of(batch, row)
        if run is not None:
            if run.has_begun_with(start):
                return run  # its first step is run once more
            self._drop([number])  # of a control layer that was here before
        grammar = self._library.try_get(start.source)
        if grammar is None:
            raise Busy(NOT_READY)
        if len(self._runs) >= MOST_MATCHERS:
            raise GrammarError(f"{MOST_MATCHERS} runs with a matcher are under way: wait for some")
        run = self._kept_run(start) or MatchedRun(start.source, grammar.matcher(), [])
        if len(start.accepted) - len(run.tokens) > MOST_REPLAYED:
            run = self._replays.get(run, start)
        run.replay(start)
        run.start, run.skip, run.budget = len(run.tokens), start.skip, run.matcher.seconds + ALLOWANCE
        self._runs[number] = run
        return run

    def _kept_run(self, start: GrammarStart) -> MatchedRun | None:
        """One that is over, and has begun as this one does."""
        for place in range(len(self._kept) - 1, -1, -1):
            kept = self._kept[place]
            length = min(len(kept.tokens), len(start.accepted))
            if kept.source == start.source and kept.tokens[:length] == start.accepted[:length]:
                del self._kept[place]
                kept.go_back(length)
                return kept
        return None

    def _drop(self, numbers: list[int]) -> None:
        """Runs that are over; what their matchers have found out may serve others."""
        for number in numbers:
            run = self._runs.pop(number, None)
            if run is not None and not run.matcher.inner.is_error():
                self._kept.append(run)
        del self._kept[:-MOST_KEPT]


def _start_of(batch: Sample, row: int) -> GrammarStart:
    if batch.start_indptr is None or batch.starts is None:
        raise ValueError("a run with a matcher begins without a grammar")
    first, last = batch.start_indptr[row : row + 2]
    return msgspec.msgpack.decode(batch.starts[first:last].tobytes(), type=GrammarStart)
