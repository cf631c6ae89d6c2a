"""The matcher of one decode run on a worker: how far it is, and how it gets to where it has to be."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol import GrammarStart
from .engine import Matcher
from .sources import GrammarError
from .stack import start_deep

ALLOWANCE = 1.0
"""Seconds that the matcher of a run may take, beside those for each token."""
SECONDS_PER_TOKEN = 0.005
MOST_REPLAYS = 8
"""Runs with many tokens before them that get ready at a time."""
NOT_READY = "the worker is compiling the grammar still: issue the run again in a few milliseconds"


class Busy(Exception):
    """Not now."""


class SampledTokens:
    """The tokens of a batch, read when the first of them is asked for."""

    __slots__ = ("_read", "_tokens")

    def __init__(self, read: Callable[[], Sequence[int]]) -> None:
        """`read` may wait for the device."""
        self._read = read
        self._tokens: Sequence[int] | None = None

    def __getitem__(self, row: int) -> int:
        if self._tokens is None:
            self._tokens = self._read()
        return self._tokens[row]


@dataclass(slots=True)
class MatchedRun:
    """The matcher of one run. `tokens` are those that it has accepted, from the beginning of the grammar."""

    source: str
    matcher: Matcher
    tokens: list[int]
    start: int = 0  # tokens before the run
    skip: int = 0
    budget: float = ALLOWANCE
    last: tuple[SampledTokens, int] | None = None  # where the token behind those accepted is

    def is_at(self, count: int) -> bool:
        """Whether it has accepted `count` tokens of the run."""
        return len(self.tokens) - self.start == count

    def go_to(self, count: int) -> None:
        """Has accepted `count` tokens of the run. Raises GrammarError."""
        here = len(self.tokens) - self.start
        if count == here + 1 and self.last is not None:
            tokens, row = self.last
            token = tokens[row]
            if not self.matcher.is_over and self.matcher.accept_one(token):
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

    def ends_behind(self, count: int) -> bool:
        """Whether it is over behind `count` tokens, which it accepts. What fails here fails the next step as well,
        which says why."""
        here = len(self.tokens) - self.start
        if here > count:
            return False  # it went on
        try:
            if here < count:
                self.go_to(count)
            return self.matcher.is_over or (self.skip > 0 and self.matcher.forces(self.skip))
        except GrammarError:
            return False

    def check_pace(self) -> None:
        count = len(self.tokens) - self.start
        if self.matcher.seconds > self.budget + SECONDS_PER_TOKEN * count:
            raise GrammarError(f"the grammar took {self.matcher.seconds:.1f} s for {count} tokens: simplify it")


class Replays:
    """Matchers that accept many tokens before their runs can begin, on other threads. A run asks for its own again."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, tuple[int, ...]], MatchedRun | GrammarError | None] = OrderedDict()

    def get(self, run: MatchedRun, start: GrammarStart) -> MatchedRun:
        """The one that has accepted the tokens; raises Busy until then, GrammarError if it could not."""
        key = start.source, tuple(start.accepted)
        found = self._found.get(key)
        if found is None:
            if key not in self._found and len(self._found) < MOST_REPLAYS:
                start_deep(lambda: self._replay(key, run, start))
                self._found.setdefault(key, None)  # it may be done
            elif key not in self._found:  # nobody may want the oldest any more
                done = next((one for one, value in self._found.items() if value is not None), None)
                self._found.pop(done, None) if done else None
            raise Busy(NOT_READY)
        del self._found[key]
        if isinstance(found, GrammarError):
            raise found
        return found

    def _replay(self, key: tuple[str, tuple[int, ...]], run: MatchedRun, start: GrammarStart) -> None:
        try:
            run.replay(start)
        except GrammarError as error:
            self._found[key] = error
        else:
            self._found[key] = run
