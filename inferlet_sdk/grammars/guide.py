"""What keeps a generation to a grammar: the matcher, and the tokens that it has to accept before it is used."""

from __future__ import annotations

from collections.abc import Sequence

from inferlet_sdk.event_loop import until_done
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.traits.grammar.matchers import Advanced, OpenedMatcher


class Guide:
    """Follows the tokens of one generation. The matcher of a `Grammar` is the generation's own; one that the program
    gave stands behind the generation's tokens at its end."""

    def __init__(self, given: Grammar | Matcher, skip: int) -> None:
        """`skip`: which forced tokens are run together, as of `advance_matcher`; 0: none are."""
        self._given = given
        self._matcher: Matcher | None = given if isinstance(given, Matcher) else None
        self._opening: HostFuture[OpenedMatcher] | None = None  # which a wait that is cancelled leaves to the next one
        self._accepted: list[int] = []  # tokens of the generation
        self.skip = skip

    async def open(self, queues: Queues) -> bool:
        """Makes the matcher, if there is none yet. Whether `advance` may find something behind no token."""
        if self._matcher is not None:
            return True
        assert isinstance(self._given, Grammar)
        if self._opening is None:
            with queues.some() as queue:
                self._opening = self._given.open(queue)
        await until_done(self._opening.number)
        opening, self._opening = self._opening, None
        number, advances = opening.result()
        self._matcher = Matcher(number)
        return advances

    def at(self, tokens: Sequence[int]) -> int:
        """The number of the matcher, behind these tokens, which are all of the generation so far."""
        self.follow(tokens)
        assert self._matcher is not None
        return self._matcher.number

    def branch(self, tokens: Sequence[int]) -> Matcher:
        """A matcher of its own behind these tokens, which are all of the generation so far."""
        self.follow(tokens)
        assert self._matcher is not None
        return self._matcher.fork()

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
        elif self._opening is not None:
            self._opening.cancel()
