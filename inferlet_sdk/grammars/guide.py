"""What keeps a generation to a grammar: the matcher, and the tokens that it has to accept before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict

from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.traits.grammar.matchers import Advanced

WHERE_IT_PAYS = 1
"""As `skip`: forced tokens are run together where there are so many that this usually pays, as the host says. That
number never depends on how busy a server is, because a model may write a forced text with other tokens than those that
are run together."""


class Guide:
    """Follows the tokens of one generation. The matcher of a `Grammar` is the generation's own; one that the program
    gave stands behind the generation's tokens at its end."""

    def __init__(self, given: Grammar | Matcher, skip: int) -> None:
        """`skip`: which forced tokens are run together, as of `advance_matcher`; 0: none are."""
        self._given = given
        self._matcher: Matcher | None = given if isinstance(given, Matcher) else None
        self._accepted: list[int] = []  # tokens of the generation
        self.skip = skip

    async def open(self, queues: Queues) -> bool:
        """Makes the matcher, if there is none yet. Whether `advance` may find something behind no token."""
        if self._matcher is not None:
            return True
        assert isinstance(self._given, Grammar)
        with queues.some() as queue:
            self._matcher, advances = await self._given.opened_on(queue)
        return advances

    def at(self, tokens: Sequence[int]) -> int:
        """The number of the matcher, behind these tokens, which are all of the generation so far."""
        self.follow(tokens)
        assert self._matcher is not None
        return self._matcher.number

    def follow(self, tokens: Sequence[int]) -> None:
        """The matcher accepts what it lacks, and takes back what was cut off."""
        if self._matcher is None:
            return
        same = self._take_back(tokens)
        if same < len(tokens):
            count = self._matcher.accept(tokens[same:])
            self._accepted += tokens[same : same + count]

    def _take_back(self, tokens: Sequence[int]) -> int:
        """The matcher takes back what was cut off; how many of the tokens it has accepted."""
        same = min(len(tokens), len(self._accepted))
        while same and self._accepted[same - 1] != tokens[same - 1]:
            same -= 1  # what was cut off is at the end
        if same < len(self._accepted):
            assert self._matcher is not None
            self._matcher.rollback(len(self._accepted) - same)
            del self._accepted[same:]
        return same

    def advance(self, tokens: Sequence[int], most: int, detokenizer: int) -> Advanced:
        """Goes behind these tokens, which are all of the generation so far, and behind at most `most` that are forced
        then, if that pays."""
        same = self._take_back(tokens)
        assert self._matcher is not None
        found = self._matcher.advance(tokens[same:], self.skip, most, detokenizer)
        self._accepted += [*tokens[same : same + found.accepted], *found.forced]
        return found

    def close(self, tokens: Sequence[int]) -> None:
        """The generation has ended with these tokens."""
        if isinstance(self._given, Matcher):
            self.follow(tokens)
        elif self._matcher is not None:
            self._matcher.close()
            self._matcher = None


class Kept(TypedDict, total=False):
    """To what `generate` keeps a text: one of these."""

    schema: Mapping[str, Any] | str | None
    """A JSON Schema."""
    regex: str | None
    grammar: Grammar | Matcher | str | None
    """In the syntax of Lark, or a `Grammar`, or a `Matcher`, which goes on from where it stands."""


OPTIONS = ("max_tokens", "sampler", "stop", "logprobs", "draft", "run_ahead", *Kept.__annotations__)
"""Of `generate`, by name."""


def as_guide(kept: Kept, sampler: Sampler | DistSampler, logprobs: object, draft: object) -> Guide | None:
    """What keeps a generation to what `generate` was given, if anything. Raises TypeError or ValueError for what does
    not go together."""
    given = _given(kept)
    if given is None:
        return None
    if isinstance(sampler, DistSampler):
        raise TypeError(
            "sampler: the host cannot keep a function to a grammar: choose among what `Matcher.mask` allows in it"
        )
    if draft is not None:
        raise ValueError("draft: what a draft guesses cannot be kept to a grammar: leave one of them out")
    skip = WHERE_IT_PAYS if logprobs is None else 0  # forced tokens have no log-probabilities, so they are sampled
    return Guide(given, skip)


def _no_such_option(name: str) -> str:
    advice = f"there are {', '.join(OPTIONS)}"
    if name in Sampler.__dataclass_fields__:
        advice = f"write sampler=Sampler({name}=...)"
    elif close := get_close_matches(name, OPTIONS, 1):
        advice = f"did you mean {close[0]!r}?"
    return f"generate takes no argument {name!r}: {advice}"


def _given(kept: Kept) -> Grammar | Matcher | None:
    if unknown := kept.keys() - Kept.__annotations__.keys():
        raise TypeError(_no_such_option(min(unknown)))
    named = [name for name, value in kept.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} are both given: a text can keep to one of them")
    if (schema := kept.get("schema")) is not None:
        return Grammar.of_schema(schema)
    if (regex := kept.get("regex")) is not None:
        return Grammar.of_regex(regex)
    grammar = kept.get("grammar")
    if isinstance(grammar, Grammar | Matcher):
        return grammar
    return Grammar.of_lark(grammar)
