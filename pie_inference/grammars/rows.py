"""What grammars say to the rows of `Sample`: on a worker, beside its sampler.

Theory of operation. A decode run with a matcher is known here by a number. Its first step brings the grammar, and the
tokens before the run that the matcher has accepted; each step says how many tokens of the run there are before it. A
step accepts the token of the one before, which is on the host by then, and says what may come next. So nothing goes
wrong where a step is run once more, or nobody wants its token: the number says how far the matcher has to be, and it
goes back. Two steps may be under way on a device: then the second one waits here for the token of the first, while the
device computes the output that it samples from.

A run is over where nothing can follow in its grammar, or where so many tokens are forced that it is cheaper to run them
together (`skip`, or as many as pay: pace.py); its program does that. A grammar that is not compiled yet fails its run
as *busy*: its program issues the run again, and nobody else has waited. What takes too long is ended.

Only the leader of a group of ranks has this: the others get its tokens.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..protocol import GrammarStart, Sample
from .engine import Matcher, Vocabulary
from .library import Library
from .pace import Pace
from .sources import GrammarError
from .stack import start_deep

ALLOWANCE = 1.0
"""Seconds that the matcher of a run may take, beside those for each token."""
SECONDS_PER_TOKEN = 0.005
MOST_MATCHERS = 4096
"""Of runs that are under way."""
MOST_REPLAYED = 512
"""Tokens before a run that its matcher accepts while the wave waits."""
MOST_REPLAYS = 8
"""Runs with more of them that get ready at a time."""
MOST_KEPT = 64
"""Matchers of runs that are over, of all grammars. A run often goes on where one has ended."""

NOT_READY = "the worker is compiling the grammar still: issue the run again in a few milliseconds"

AS_PAYS = 1
"""As `skip` of a run: it is over where it pays to run the forced tokens together."""
NO_TOKEN = "no token may come here that the grammar, and `allowed` if it is given, allow"

Token = Callable[[], int]
"""Gives a sampled token; may wait for the device."""


class Fault(NamedTuple):
    """Why a row fails. `busy`: it may be tried again."""

    message: str
    busy: bool = False


@dataclass(slots=True)
class _Run:
    """The matcher of one run. `tokens` are those that it has accepted, from the beginning of the grammar."""

    source: str
    matcher: Matcher
    tokens: list[int]
    start: int = 0  # tokens before the run
    skip: int = 0
    budget: float = ALLOWANCE
    last: Token | None = None  # the token behind those accepted, once it was sampled

    def go_to(self, count: int) -> None:
        """Has accepted `count` tokens of the run. Raises GrammarError."""
        here = len(self.tokens) - self.start
        if count == here + 1 and self.last is not None:
            token = self.last()
            if not self.matcher.is_over and self.matcher.accept((token,)):
                self.tokens.append(token)
            self.last = None
        elif count < here:
            self.go_back(self.start + count)
        elif count > here and not self.matcher.is_over:
            raise GrammarError("the worker has lost a token of the run")

    def go_back(self, length: int) -> None:
        """To where it had accepted so many tokens from the beginning of the grammar."""
        self.matcher.rollback(len(self.tokens) - length)
        del self.tokens[length:]
        self.last = None

    def has_begun_with(self, start: GrammarStart) -> bool:
        return (self.source, self.skip, self.tokens[: self.start]) == (start.source, start.skip, start.accepted)

    def replay(self, start: GrammarStart) -> None:
        """Accepts what it lacks of the tokens before the run. Raises GrammarError."""
        missing = start.accepted[len(self.tokens) :]
        if self.matcher.accept(missing) < len(missing):
            raise GrammarError("the tokens before the run do not fit the grammar")
        self.tokens += missing

    def check_pace(self) -> None:
        count = len(self.tokens) - self.start
        if self.matcher.seconds > self.budget + SECONDS_PER_TOKEN * count:
            raise GrammarError(f"the grammar took {self.matcher.seconds:.1f} s for {count} tokens: simplify it")


@dataclass(frozen=True)
class Step:
    """What grammars say to one batch. `rows` may come as `allowed` says, uint8 [len(rows), ceil(vocab / 8)]; the rows
    of `faults` fail."""

    rows: NDArray[np.int64]
    allowed: NDArray[np.uint8]
    faults: Mapping[int, Fault]
    runs: Mapping[int, _Run] = field(repr=False)
    counts: Mapping[int, int] = field(repr=False)
    worth: int  # forced tokens that it pays to run together

    def sampled(self, token_of: Callable[[int], int]) -> None:
        """The batch was sampled; `token_of` gives the token of a row."""
        for row, run in self.runs.items():
            run.last = partial(token_of, row)

    def over(self, rows: int) -> NDArray[np.bool_]:
        """Which of the rows are the last of their run, bool [rows]; waits for the tokens."""
        over = np.zeros(rows, np.bool_)
        for row, run in self.runs.items():
            over[row] = _is_over(run, self.counts[row] + 1, self.worth)
        return over


def _is_over(run: _Run, count: int, worth: int) -> bool:
    """Whether a run ends behind `count` tokens; `worth`: forced tokens that it pays to run together. What fails
    here fails the next step as well, which says why."""
    if len(run.tokens) - run.start > count:
        return False  # it went on
    try:
        run.go_to(count)
        return run.matcher.is_over or (run.skip > 0 and run.matcher.forces(run.skip if run.skip > AS_PAYS else worth))
    except GrammarError:
        return False


class _Rows:
    """The rows of one batch, while their masks are made."""

    def __init__(self, batch: Sample) -> None:
        self._batch = batch
        self._runs: dict[int, _Run] = {}
        self._counts: dict[int, int] = {}
        self._faults: dict[int, Fault] = {}

    def begin(self, row: int, run: _Run) -> None:
        """Brings the matcher of a row to where it has to be. Raises GrammarError."""
        assert self._batch.matched is not None
        count = int(self._batch.matched[row])
        run.go_to(count)
        self._runs[row], self._counts[row] = run, count

    def fail(self, row: int, error: Exception) -> None:
        self._faults[row] = Fault(str(error), isinstance(error, _Busy))
        self._runs.pop(row, None)

    def step(self, vocabulary: Vocabulary | None, worth: int) -> Step:
        """What they may sample. Where a run is over, nobody wants its token; one that begins there ends with a stop
        token."""
        wanted = [row for row, run in self._runs.items() if not (run.matcher.is_over and self._counts[row])]
        rows, allowed = self._masks(wanted, vocabulary)
        return Step(rows, allowed, self._faults, self._runs, self._counts, worth)

    def _masks(self, wanted: list[int], vocabulary: Vocabulary | None) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """For each of these rows that does not fail, in order."""
        if not wanted or vocabulary is None:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.uint8)
        masks = vocabulary.masks(len(wanted))
        address, size = masks.ctypes.data, masks.strides[0]
        for place, row in enumerate(wanted):
            run = self._runs[row]
            try:
                run.matcher.write_mask(address + place * size)
                run.check_pace()
            except GrammarError as error:
                self.fail(row, error)
        allowed, rows = vocabulary.trim(masks), np.array(wanted, np.int64)
        own = self._batch.allowed_rows[rows]
        if (own >= 0).any():
            allowed[own >= 0] &= self._batch.allowed[own[own >= 0]]
        for row in rows[~allowed.any(1)].tolist():
            if row in self._runs:
                self.fail(row, GrammarError(NO_TOKEN))
        alive = np.array([row in self._runs for row in wanted])
        return (rows, allowed) if alive.all() else (rows[alive], allowed[alive])


class _Replays:
    """Matchers that accept many tokens before their runs can begin, on other threads. A run asks for its own again."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, tuple[int, ...]], _Run | GrammarError | None] = OrderedDict()

    def get(self, run: _Run, start: GrammarStart) -> _Run:
        """The one that has accepted the tokens; raises _Busy until then, GrammarError if it could not."""
        key = start.source, tuple(start.accepted)
        found = self._found.get(key)
        if found is None:
            if key not in self._found and len(self._found) < MOST_REPLAYS:
                self._found[key] = None
                start_deep(lambda: self._replay(key, run, start))
            elif key not in self._found:  # nobody may want the oldest any more
                done = next((one for one, value in self._found.items() if value is not None), None)
                self._found.pop(done, None) if done else None
            raise _Busy(NOT_READY)
        del self._found[key]
        if isinstance(found, GrammarError):
            raise found
        return found

    def _replay(self, key: tuple[str, tuple[int, ...]], run: _Run, start: GrammarStart) -> None:
        try:
            run.replay(start)
        except GrammarError as error:
            self._found[key] = error
        else:
            self._found[key] = run


class Constraints:
    """The matchers of all runs that are under way."""

    def __init__(
        self,
        tokenizer: bytes,
        vocab_size: int,
        stop_tokens: Sequence[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """From tokenizer.json, which is read when the first grammar comes. `clock`: see `Pace`."""
        self._library = Library(lambda: Vocabulary(tokenizer, vocab_size, stop_tokens))
        self._runs: dict[int, _Run] = {}
        self._kept: list[_Run] = []
        self._replays = _Replays()
        self._pace = Pace(clock)

    def __len__(self) -> int:
        return len(self._runs)

    def step(self, batch: Sample) -> Step:
        """What may come next in each row with a matcher. Raises ValueError if the batch is wrong."""
        if batch.matchers is None or batch.matched is None:
            raise ValueError("the rows have no matchers")
        if batch.ended is not None:
            self._drop(batch.ended.tolist())
        self._pace.step(len(batch.matchers))
        found = _Rows(batch)
        for row in batch.matchers.nonzero()[0].tolist():
            try:
                found.begin(row, self._run(int(batch.matchers[row]), int(batch.matched[row]), batch, row))
            except (GrammarError, _Busy) as error:
                found.fail(row, error)
        return found.step(self._library.vocabulary, self._pace.worth)

    def _run(self, number: int, count: int, batch: Sample, row: int) -> _Run:
        run = self._runs.get(number)
        if count:
            if run is None:
                raise GrammarError(f"the worker has no matcher {number}")
            return run
        start = _start_of(batch, row)
        if run is not None:
            if run.has_begun_with(start):
                return run  # its first step is run once more
            self._drop([number])  # of a control layer that was here before
        grammar = self._library.try_get(start.source)
        if grammar is None:
            raise _Busy(NOT_READY)
        if len(self._runs) >= MOST_MATCHERS:
            raise GrammarError(f"{MOST_MATCHERS} runs with a matcher are under way: wait for some")
        run = self._kept_run(start) or _Run(start.source, grammar.matcher(), [])
        if len(start.accepted) - len(run.tokens) > MOST_REPLAYED:
            run = self._replays.get(run, start)
        run.replay(start)
        run.start, run.skip, run.budget = len(run.tokens), start.skip, run.matcher.seconds + ALLOWANCE
        self._runs[number] = run
        return run

    def _kept_run(self, start: GrammarStart) -> _Run | None:
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


class _Busy(Exception):
    """Not now."""


def _start_of(batch: Sample, row: int) -> GrammarStart:
    if batch.start_indptr is None or batch.starts is None:
        raise ValueError("a run with a matcher begins without a grammar")
    first, last = batch.start_indptr[row : row + 2]
    return msgspec.msgpack.decode(batch.starts[first:last].tobytes(), type=GrammarStart)
