"""When generation ends.

`stop=` of `Context.generate` takes one condition or a list of them; the first that holds ends it. A plain string is a
`StopString`, an int in a list a stop token. The model's own stop tokens count too, unless the list has
`IgnoreStopTokens()`. Text that may be the beginning of a stop string is held back until it is certain that it is not.
With `include_stop`, what ends a text belongs to it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutine
from typing import Protocol

from inferlet_sdk.traits.arguments import texts, whole, wrong


class Generated(Protocol):
    """What a function given as a stop condition gets: the `Generation` so far."""

    @property
    def tokens(self) -> list[int]:
        """The tokens that were emitted."""

    @property
    def text(self) -> str:
        """Their text."""


class TextCondition(Protocol):
    """A condition on the generated text."""

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        """Where what ends the text begins and ends, if the condition holds. Earlier calls have searched everything
        before `start`."""

    def held(self, text: str) -> int:
        """Number of characters at the end that may belong to an incomplete match."""


class StopString:
    """Ends before any of these strings, even if it spans several tokens."""

    def __init__(self, *strings: str) -> None:
        if not strings or not all(strings):
            raise ValueError("a stop string must not be empty")
        self.strings = tuple(texts(strings, "stop"))
        self._longest = max(map(len, strings))

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        begin = max(0, start - self._longest + 1)
        places = ((text.find(string, begin), len(string)) for string in self.strings)
        return min(((place, place + length) for place, length in places if place >= 0), default=None)

    def held(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self.strings):
                return length
        return 0


MOST_STRINGS = 16
MOST_CHARACTERS = 1024
"""Stop strings for which the host can look, and characters of all of them."""


class StopRegex:
    """Ends before the first match of a regular expression.

    A match may grow over several tokens, so the last `hold` characters are held back. Text that was released before the
    match began stays.
    """

    def __init__(self, pattern: str, hold: int = 0, flags: int = 0) -> None:
        self._pattern = re.compile(pattern, flags)
        self._hold = whole(hold, "hold")
        self._longest = _longest(self._pattern)

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        match = self._pattern.search(text, max(start - self._longest, 0))
        return match.span() if match else None

    def held(self, text: str) -> int:
        return min(self._hold, len(text))


def _longest(pattern: re.Pattern[str]) -> int:
    """Most characters of a match, and of what it looks at behind them."""
    if "(?=" in pattern.pattern or "(?!" in pattern.pattern:
        return sys.maxsize
    most: int = re._parser.parse(pattern.pattern, pattern.flags).getwidth()[1]  # type: ignore[attr-defined]
    return most


@dataclass(frozen=True)
class StopTokens:
    """Ends at any of these tokens. The token is neither emitted nor kept in the context."""

    tokens: frozenset[int]

    def __init__(self, *tokens: int) -> None:
        found = [whole(token, "StopTokens", wanted="token ids") for token in tokens]
        object.__setattr__(self, "tokens", frozenset(found))


@dataclass(frozen=True)
class IgnoreStopTokens:
    """Treats the model's own stop tokens like any other tokens."""


@dataclass(frozen=True)
class MaxTokens:
    """Ends after `count` tokens."""

    count: int

    def __post_init__(self) -> None:
        whole(self.count, "MaxTokens", wanted="a number of tokens")


@dataclass(frozen=True)
class StopWhen:
    """Calls `predicate` with the `Generation` after each token, and ends when it returns true. That token is kept."""

    predicate: Callable[[Generated], bool]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise wrong("StopWhen", "a function of the `Generation` so far", self.predicate)


def holds(predicate: Callable[[Generated], bool], generated: Generated) -> bool:
    """Whether a function given as a stop condition says that it holds; raises TypeError for an `async def`."""
    answer = predicate(generated)
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise TypeError("stop: a stop condition is a plain function, not an `async def`, which would always be true")
    return bool(answer)


StopCondition = str | int | StopString | StopRegex | StopTokens | IgnoreStopTokens | MaxTokens | StopWhen
StopConditions = StopCondition | Iterable[StopCondition] | Callable[[Generated], bool] | None


@dataclass(frozen=True)
class StopRules:
    """Stop conditions, grouped by what they look at."""

    tokens: frozenset[int]
    max_tokens: int
    texts: tuple[TextCondition, ...] = ()
    predicates: tuple[Callable[[Generated], bool], ...] = ()
    include_stop: bool = False
    """Whether the stop string or stop token that ends the text belongs to it."""

    @staticmethod
    def of(
        stop: StopConditions, model_stop_tokens: Iterable[int], max_tokens: int, include_stop: bool = False
    ) -> StopRules:
        """Rules for `stop`; raises TypeError for a value that is not a condition."""
        conditions = [_condition(one) for one in _as_list(stop)]
        if not conditions:
            return StopRules(frozenset(model_stop_tokens), max_tokens, include_stop=include_stop)
        tokens = set() if any(isinstance(c, IgnoreStopTokens) for c in conditions) else set(model_stop_tokens)
        for condition in conditions:
            if isinstance(condition, StopTokens):
                tokens |= condition.tokens
        return StopRules(
            tokens=frozenset(tokens),
            max_tokens=min([max_tokens, *(c.count for c in conditions if isinstance(c, MaxTokens))]),
            texts=tuple(c for c in conditions if isinstance(c, StopString | StopRegex)),
            predicates=tuple(c.predicate for c in conditions if isinstance(c, StopWhen)),
            include_stop=include_stop,
        )


def stop_strings(conditions: Sequence[TextCondition]) -> list[str] | None:
    """All strings that stop a text, if nothing else does and the host can look for them."""
    strings: list[str] = []
    for condition in conditions:
        if not isinstance(condition, StopString):
            return None
        strings += condition.strings
    fits = len(strings) <= MOST_STRINGS and sum(map(len, strings)) <= MOST_CHARACTERS
    return strings if fits else None


def _as_list(stop: StopConditions) -> Sequence[object]:
    if stop is None:
        return ()
    if isinstance(stop, int):
        raise TypeError(
            f"stop: {stop} may be a number of tokens or a token: write max_tokens={stop}, or stop=StopTokens({stop})"
        )
    if isinstance(stop, bytes | bytearray | Mapping):
        raise wrong("stop", f"{_WANTED}, or a list of these", stop)
    if isinstance(stop, Iterable) and not isinstance(stop, str):
        return list(stop)
    return (stop,)


_CONDITIONS = (StopString, StopRegex, StopTokens, IgnoreStopTokens, MaxTokens, StopWhen)
_WANTED = "a string, a token id, a function or a `Stop...`"


def _condition(given: object) -> object:
    if isinstance(given, str):
        return StopString(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return StopTokens(given)
    if isinstance(given, _CONDITIONS):
        return given
    if callable(given):
        return StopWhen(given)
    raise TypeError(f"stop: {given!r} is not a stop condition: give {_WANTED}")


@dataclass
class TextFilter:
    """Holds generated text back until no condition can cut it any more."""

    conditions: tuple[TextCondition, ...]
    include_stop: bool = False
    text: str = ""
    released: int = 0
    cut: int | None = None
    """Where the text ends; None until a condition holds."""
    ends: list[int] = field(default_factory=list)
    """Length of the text after each token."""

    def push(self, piece: str) -> str:
        """Adds the text of one token; returns the text to emit now."""
        searched = len(self.text)
        self.text += piece
        self.ends.append(len(self.text))
        if not piece:
            return ""
        places = [place for c in self.conditions if (place := c.find(self.text, searched)) is not None]
        if places:
            begin, end = min(places)
            self.cut = max(end if self.include_stop else begin, self.released)
            return self._release(self.cut)
        return self._release(len(self.text) - max(c.held(self.text) for c in self.conditions))

    def rest(self) -> str:
        """The text still held back, for a generation that ended for another reason."""
        return self._release(len(self.text) if self.cut is None else self.cut)

    def _release(self, end: int) -> str:
        piece = self.text[self.released : end]
        self.released = max(end, self.released)
        return piece

    def kept_tokens(self, is_whole: Callable[[int], bool]) -> KeptTokens:
        """The tokens that make up the text before the cut. `is_whole`: whether so many first tokens end where a
        character does; else the next one completes it, so the last of them is not kept."""
        assert self.cut is not None
        count = 0
        if self.cut:
            count = next(index for index, end in enumerate(self.ends) if end >= self.cut)
            count += self.ends[count] == self.cut
        while count and not self.text[self.ends[count - 1] :][:1].isascii() and not is_whole(count):
            count -= 1
        begin = self.ends[count - 1] if count else 0
        return KeptTokens(count, self.text[begin : self.cut])


@dataclass(frozen=True)
class KeptTokens:
    """The first `count` tokens whole, and `rest`, the part of the next token's text before the cut."""

    count: int
    rest: str
