"""Generating text token by token.

What run-ahead computed past a stop is dropped: afterwards the context holds exactly the tokens that were emitted, and
the same tokens come out with run-ahead on or off.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferlet_sdk import traits
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import Cancelled, InvalidState
from inferlet_sdk.event_loop import run_blocking
from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.generation.sequence import TokenSequence
from inferlet_sdk.generation.stopping import StopRules, TextFilter, holds
from inferlet_sdk.generation.token_source import ChosenTokens, SampledTokens, token_source


class Generation:
    """An iterator over pieces of generated text: `async for`, or `for` in a program without asyncio.

    `stop_reason` is None while it runs, then "stop" (a condition held), "length" (maximum reached) or "ended" (the
    program used the context for something else, or closed it).

    It takes what it needs from the host (a queue, a sampler, a detokenizer) at its first piece, and gives it back when
    it ends or is dropped.
    """

    stop_reason: str | None = "ended"  # until it is made

    def __init__(
        self, sequence: TokenSequence, sampler: Sampler | DistSampler, rules: StopRules, run_ahead: bool = True
    ) -> None:
        self.is_waiting = False
        """Whether a task waits for the next piece now."""
        self._sequence = sequence
        self._sampler = sampler
        self._run_ahead = run_ahead
        self._rules = rules
        self._left = rules.max_tokens
        self._start = len(sequence.tokens)
        self._tokens: list[int] | None = None
        self._filter = TextFilter(rules.texts) if rules.texts else None
        self._source: SampledTokens | ChosenTokens | None = None
        self._detokenizer = 0
        self.stop_reason = None

    def __del__(self) -> None:
        if self.stop_reason is None and self._source is not None:
            drop(self, self._sequence.queues.host)

    @property
    def tokens(self) -> list[int]:
        """The tokens that were emitted."""
        return self._sequence.tokens[self._start :] if self._tokens is None else self._tokens

    @property
    def text(self) -> str:
        """Text of the tokens so far."""
        return self._sequence.detokenize(self.tokens)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        piece = await self._next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __iter__(self) -> Iterator[str]:
        while (piece := run_blocking(self._next_piece())) is not None:
            yield piece

    async def _next_piece(self) -> str | None:
        if self.is_waiting:
            raise InvalidState("two tasks iterate over one generation: fork the context, and generate once in each")
        if self._source is None and self.stop_reason is None:
            self._begin()
        self.is_waiting = True
        try:
            while self.stop_reason is None:
                # one token a turn; there may be no room from the start
                sampled = await self._source.next(self._left > 1) if self._left > 0 and self._source else None
                piece = self._finish("length") if sampled is None else self._accept(*sampled)
                if piece:
                    return piece
        except Cancelled:
            if self.stop_reason is None:  # else another task ended it
                raise
        finally:
            self.is_waiting = False
        return None

    def _begin(self) -> None:
        self._sequence.begin()
        try:
            with self._sequence.queues.some() as queue:
                self._detokenizer = traits.create_detokenizer(queue)
            self._source = token_source(self._sequence, self._sampler, self._detokenizer, self._run_ahead)
        except BaseException:
            self._give_back()
            raise

    def _accept(self, token: int, piece: str) -> str:
        """Takes a token into the context, and the text that it completes; returns the text to emit, if any."""
        if token in self._rules.tokens:
            return self._finish("stop")
        self._sequence.tokens.append(token)
        self._left -= 1
        if self._filter is not None:
            piece = self._filter.push(piece)
            if self._filter.cut is not None:
                return piece + self._finish("stop")
        if self._rules.predicates and any(holds(predicate, self) for predicate in self._rules.predicates):
            return piece + self._finish("stop")
        return piece if self._left else piece + self._finish("length")

    def _finish(self, reason: str) -> str:
        """Ends the generation; returns the text that was held back."""
        rest = self._filter.rest() if self._filter is not None else ""
        self.stop_reason = reason
        self._tokens = self._sequence.tokens[self._start :]
        if self._source is None:
            return rest
        try:
            self._source.close()
            if self._filter is not None and self._filter.cut is not None:
                self._cut_tokens(self._filter)
        finally:
            self._give_back()
        return rest

    def _give_back(self) -> None:
        if self._detokenizer:
            traits.destroy_detokenizer(self._detokenizer)
        self._sequence.end()

    def _cut_tokens(self, text_filter: TextFilter) -> None:
        """Keeps only the emitted text. If a token straddles the cut, its part before the cut is tokenized again."""
        kept = text_filter.kept_tokens()
        self._sequence.truncate(self._start + kept.count)
        if kept.rest:
            self._sequence.tokens += self._sequence.tokenize(kept.rest, special_tokens=False)
        self._tokens = self._sequence.tokens[self._start :]

    def end(self) -> None:
        """Ends the generation; the context keeps the tokens accepted so far. Idempotent."""
        if self.stop_reason is None:
            self._finish("ended")

    close = end
