"""Generating text token by token.

Run-ahead (paper, section 7.4): the next step is issued with the token *reference* of the step before, whose value is
still on its way, so the worker need not wait for the inferlet. What was computed past a stop is dropped again:
afterwards the context holds exactly the tokens that were emitted, and the same tokens come out with run-ahead on or
off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from inferlet_sdk import bindings, traits
from inferlet_sdk.errors import from_host
from inferlet_sdk.event_loop import run_blocking, until_alone_or_done
from inferlet_sdk.futures import REFERENCE_BIT
from inferlet_sdk.sampling import DistSampler, Sampler
from inferlet_sdk.stopping import StopRules, TextFilter

if TYPE_CHECKING:
    from inferlet_sdk.sequence import TokenSequence


class Generation:
    """An iterator over pieces of generated text: `async for`, or `for` in a program without asyncio.

    `stop_reason` is None while it runs, then "stop" (a condition held), "length" (maximum reached) or "ended" (the
    context was used for something else, or closed).
    """

    def __init__(
        self, sequence: TokenSequence, sampler: Sampler | DistSampler, rules: StopRules, run_ahead: bool = True
    ) -> None:
        self.stop_reason: str | None = None
        self._sequence = sequence
        self._rules = rules
        self._left = rules.max_tokens
        self._start = len(sequence.tokens)
        self._tokens: list[int] | None = None
        self._filter = TextFilter(rules.texts) if rules.texts else None
        self._detokenizer = traits.create_detokenizer(sequence.queue)
        self._source = _token_source(sequence, sampler, self._detokenizer, run_ahead)

    @property
    def tokens(self) -> list[int]:
        """The tokens that were emitted."""
        return self._sequence.tokens[self._start :] if self._tokens is None else self._tokens

    @property
    def text(self) -> str:
        """Text of the tokens so far."""
        return traits.detokenize(self._sequence.queue, self.tokens)

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
        while self.stop_reason is None:
            # one token a turn; the room may be used up from the start
            sampled = await self._source.next(self._left > 1) if self._left > 0 else None
            piece = self._finish("length") if sampled is None else self._accept(*sampled)
            if piece:
                return piece
        return None

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
        if self._rules.predicates and any(predicate(self) for predicate in self._rules.predicates):
            return piece + self._finish("stop")
        return piece if self._left else piece + self._finish("length")

    def _finish(self, reason: str) -> str:
        """Ends; returns what was held back."""
        rest = self._filter.rest() if self._filter is not None else ""
        self.stop_reason = reason
        self._source.close()
        if self._filter is not None and self._filter.cut is not None:
            self._cut_tokens(self._filter)
        self._sequence.rewind(len(self._sequence.tokens))
        self._tokens = self._sequence.tokens[self._start :]
        traits.destroy_detokenizer(self._detokenizer)
        return rest

    def _cut_tokens(self, text_filter: TextFilter) -> None:
        """Keeps the emitted text only. Where a token straddles the cut, the part before is tokenized anew."""
        kept = text_filter.kept_tokens()
        self._sequence.truncate(self._start + kept.count)
        if kept.rest:
            self._sequence.tokens += traits.tokenize(self._sequence.queue, kept.rest)

    def end(self) -> None:
        """Ends here; the context holds the tokens accepted so far. Nothing happens if it has ended."""
        if self.stop_reason is None:
            self._finish("ended")


class _SampledTokens:
    """Tokens from a sampler on the worker, one step ahead if allowed."""

    def __init__(self, sequence: TokenSequence, sampler: Sampler, detokenizer: int, run_ahead: bool) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer
        self._handle = sampler.create()
        self._run_ahead = run_ahead
        self._current: int | None = None
        self._ahead: int | None = None

    async def next(self, more: bool) -> tuple[int, str]:
        """The next token and its text. `more`: it may not be the last one, so the step behind it can be issued now."""
        try:
            number = self._issue(more and self._run_ahead)
            await until_alone_or_done(number)
            sampled: tuple[int, str] = bindings.fused.take_text(number, self._detokenizer)
        except bindings.HostError as error:
            self.cancel()
            raise from_host(error) from None
        except BaseException:
            self.cancel()
            raise
        self._current, self._ahead = self._ahead, None
        return sampled

    def _issue(self, run_ahead: bool) -> int:
        number = self._current
        if number is None:
            self._sequence.flush()
            number = self._current = self._sample()
        if run_ahead:
            self._ahead = self._step(REFERENCE_BIT | number)
        return number

    def _step(self, reference: int) -> int:
        """Runs a token that is still on its way, and samples the one behind it."""
        if not self._sampler.looks_back:
            return self._sequence.step_and_sample(reference, self._handle)
        self._sequence.step(reference)
        return self._sample(reference)

    def _sample(self, *references: int) -> int:
        queue, embed = self._sequence.queue, self._sequence.output_embed
        if not self._sampler.looks_back:
            number: int = bindings.fused.sample(queue, embed, self._handle)
        else:
            recent = [*self._sequence.tokens[-self._sampler.window :], *references][-self._sampler.window :]
            number = bindings.fused.sample_constrained(queue, embed, self._handle, recent, "")
        return number

    def cancel(self) -> None:
        """Forgets what is under way and drops what it computed. The next token is sampled anew."""
        numbers, self._current, self._ahead = (self._current, self._ahead), None, None
        for number in numbers:
            if number is not None:
                _forget(number)
        self._sequence.rewind(len(self._sequence.tokens))

    def close(self) -> None:
        self.cancel()
        traits.destroy_sampler(self._handle)


def _forget(number: int) -> None:
    with suppress(bindings.HostError):  # taken already: its value was an error
        bindings.core.cancel(number)


class _ChosenTokens:
    """Tokens that a function of the inferlet chooses from distributions."""

    def __init__(self, sequence: TokenSequence, sampler: DistSampler, detokenizer: int) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer

    async def next(self, more: bool) -> tuple[int, str]:
        sequence, sampler = self._sequence, self._sampler
        sequence.flush()
        dist = await traits.get_next_dist(sequence.queue, sequence.output_embed, sampler.k, sampler.temperature)
        token = sampler.choose(dist)
        return token, bindings.tokenize.push_tokens(self._detokenizer, [token])

    def close(self) -> None:
        """Nothing is under way between two tokens."""


def _token_source(
    sequence: TokenSequence, sampler: Sampler | DistSampler, detokenizer: int, run_ahead: bool
) -> _SampledTokens | _ChosenTokens:
    if isinstance(sampler, DistSampler):
        return _ChosenTokens(sequence, sampler, detokenizer)
    return _SampledTokens(sequence, sampler, detokenizer, run_ahead)
