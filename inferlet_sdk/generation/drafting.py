"""Speculative generation: a function of the program guesses the next tokens, and the worker checks them all at once.

A step runs the last token and the draft behind it, and `verify` says how many tokens of the draft the sampler would
have chosen, and the token behind them. They are exactly the tokens that sampling one by one gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import Cancelled, InvalidState
from inferlet_sdk.generation.sampling import Sampler
from inferlet_sdk.generation.scoring import logprobs_at
from inferlet_sdk.generation.token_source import Pieces
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sharing.prefixes import share_prefix
from inferlet_sdk.traits.arguments import tokens as token_list
from inferlet_sdk.traits.runs import TokenLogprobs

MOST_DRAFTED = 63
"""Tokens of one draft that are looked at."""

Draft = Callable[[Sequence[int]], Sequence[int]]
"""A function from all tokens so far to those that may come next; none, if it has no guess."""


class PromptLookup:
    """A draft from the text itself: what came behind the last occurrence of its last tokens. Good where a text repeats
    what it was given, as in summaries and code."""

    def __init__(self, match: int = 3, length: int = 8) -> None:
        """At most `length` tokens behind the last place where the last `match` tokens, or fewer, stand."""
        self.match = match
        self.length = length

    def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        for size in range(min(self.match, len(tokens) - 1), 0, -1):
            wanted = tokens[-size:]
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == wanted:
                    return tokens[start + size : start + size + self.length]
        return ()


class DraftedTokens:
    """Tokens by drafts; a source as those in token_source.py."""

    def __init__(
        self,
        sequence: TokenSequence,
        sampler: Sampler,
        detokenizer: int,
        draft: Draft,
        stop: Sequence[int],
        logprobs: int | None = None,
    ) -> None:
        """`logprobs`: tokens come with log-probabilities, and those of as many alternatives."""
        self._sequence = sequence
        self._detokenizer = detokenizer
        self._draft = draft
        self._stop = frozenset(stop)
        self._logprobs = logprobs
        self._closed = False
        if sampler.looks_back:
            raise ValueError("draft: a sampler with penalties cannot check a draft: leave one of them out")
        self._embeds = traits.alloc_emb(sequence.queue, 1)
        self._handle = sampler.create()

    async def next(self, left: int, held: str) -> Pieces:
        """At least one token, up to the first stop token. Raises Cancelled if another task closes the source
        meanwhile."""
        sequence = self._sequence
        if not sequence.tokens:
            raise InvalidState("the context is empty: `fill` it before generating")
        await share_prefix(sequence)
        sequence.rewind(len(sequence.tokens) - 1)
        tokens, outputs = await self._check(self._guess(min(left - 1, MOST_DRAFTED)))
        end = next((place + 1 for place, token in enumerate(tokens) if token in self._stop), len(tokens))
        logprobs: Sequence[TokenLogprobs] = ()
        if self._logprobs is not None:
            logprobs = await logprobs_at(sequence.queue, outputs[:end], tokens[:end], self._logprobs)
            self._check_open()
        texts = [traits.push_tokens(self._detokenizer, [token]) for token in tokens[:end]]
        return Pieces(tokens[:end], texts, logprobs)

    def _guess(self, most: int) -> list[int]:
        sequence = self._sequence
        room = sequence.info.max_context - sequence.offset - len(sequence.tokens)
        most = max(min(most, room), 0)
        return token_list(list(self._draft(sequence.tokens)), "draft")[:most] if most else []

    async def _check(self, draft: list[int]) -> tuple[list[int], Embeds]:
        """What of the draft is right, and the token behind it; with the outputs that chose them, and others. Keys of
        the rest are dropped."""
        sequence = self._sequence
        length = len(sequence.tokens)
        sequence.compute(length - 1, ())
        count = len(draft) + 1
        missing = 2 * count - len(self._embeds)
        if missing > 0:
            self._embeds += traits.alloc_emb(sequence.queue, missing)
        outputs = self._embeds[count : 2 * count]
        sequence.run([sequence.tokens[-1], *draft], self._embeds[:count], outputs)
        sequence.output_of = 0
        verified = await traits.verify(sequence.queue, outputs, draft, self._handle)
        self._check_open()
        sequence.rewind(length + verified.accepted)
        return [*draft[: verified.accepted], verified.token], outputs

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("the generation was ended while it waited for a token")

    def cancel(self) -> None:
        """Nothing is under way between two steps but keys that `close` drops."""

    def close(self) -> None:
        """Gives everything back. The sequence has keys of its tokens only."""
        self._closed = True
        sequence = self._sequence
        if not sequence.closed:
            sequence.rewind(len(sequence.tokens))
            traits.dealloc_emb(sequence.queue, self._embeds)
        traits.destroy_sampler(self._handle)
