"""Where the next token comes from: a sampler on the worker, or a function of the inferlet.

Run-ahead (paper, section 7.4): the next step is issued with the token *reference* of the step before, whose value is
still on its way, so the worker need not wait for the inferlet.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from inspect import isawaitable

from inferlet_sdk import bindings, traits
from inferlet_sdk.errors import Cancelled, from_host
from inferlet_sdk.event_loop import loop_with_others
from inferlet_sdk.futures import REFERENCE_BIT, TokenFuture
from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.generation.sequence import TokenSequence
from inferlet_sdk.traits.arguments import whole

_ENDED = "the generation was ended while it waited for a token"


class SampledTokens:
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
        """The next token and its text. `more`: it may not be the last one, so the step after it can be issued now.
        Raises Cancelled if another task closes the source meanwhile.
        """
        try:
            number = self._issue(more and self._run_ahead)
            loop = loop_with_others()
            if loop is not None:
                await loop.any_host_future((number,))
            if self._current != number:
                raise Cancelled(_ENDED)
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
        """Runs a token whose value is still on its way, and samples the next one."""
        if not self._sampler.looks_back:
            return self._sequence.step_and_sample(reference, self._handle)
        self._sequence.step(reference)
        return self._sample(reference)

    def _sample(self, *references: int) -> int:
        return _sample(self._sequence, self._sampler, self._handle, references)

    def cancel(self) -> None:
        """Cancels what is under way and drops what it computed. The next token is sampled again."""
        numbers, self._current, self._ahead = (self._current, self._ahead), None, None
        for number in numbers:
            if number is not None:
                _forget(number)
        if not self._sequence.closed:
            self._sequence.rewind(len(self._sequence.tokens))

    def close(self) -> None:
        self.cancel()
        traits.destroy_sampler(self._handle)


def _sample(sequence: TokenSequence, sampler: Sampler, handle: int, references: Sequence[int] = ()) -> int:
    """Samples at the output embed of a sequence that works; returns the future."""
    queue, embed = sequence.queue, sequence.output_embed
    if not sampler.looks_back:
        number: int = bindings.fused.sample(queue, embed, handle)
    else:
        recent = [*sequence.tokens[-sampler.window :], *references][-sampler.window :]
        number = bindings.fused.sample_constrained(queue, embed, handle, recent, "")
    return number


async def _choose(sequence: TokenSequence, sampler: DistSampler) -> int:
    """The token that a function of the inferlet, or an `async def`, chooses after a sequence that works."""
    dist = await sequence.next_dist(sampler.k, sampler.temperature)
    chosen = sampler.choose(dist)
    if type(chosen) is not int and isawaitable(chosen):
        chosen = await chosen
    return whole(chosen, "sampler", wanted="a function that returns a token id, as dist.tokens has them")


async def sample_once(sequence: TokenSequence, sampler: Sampler | DistSampler) -> int:
    """The next token of a sequence, which does not change."""
    with sequence.working():
        if isinstance(sampler, DistSampler):
            return await _choose(sequence, sampler)
        sequence.flush()
        handle = sampler.create()
        try:
            return await TokenFuture(_sample(sequence, sampler, handle), bindings.fused.await_token)
        finally:
            traits.destroy_sampler(handle)


def _forget(number: int) -> None:
    with suppress(bindings.HostError):  # taken already: its value was an error
        bindings.core.cancel(number)


class ChosenTokens:
    """Tokens that a function of the inferlet chooses from distributions."""

    def __init__(self, sequence: TokenSequence, sampler: DistSampler, detokenizer: int) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer
        self._closed = False

    async def next(self, more: bool) -> tuple[int, str]:
        token = await _choose(self._sequence, self._sampler)
        if self._closed:
            raise Cancelled(_ENDED)
        return token, traits.push_tokens(self._detokenizer, [token])

    def close(self) -> None:
        """Nothing is under way between two tokens."""
        self._closed = True


def token_source(
    sequence: TokenSequence, sampler: Sampler | DistSampler, detokenizer: int, run_ahead: bool
) -> SampledTokens | ChosenTokens:
    """The tokens that a sampler makes from a sequence; the caller closes them."""
    if isinstance(sampler, DistSampler):
        return ChosenTokens(sequence, sampler, detokenizer)
    return SampledTokens(sequence, sampler, detokenizer, run_ahead)
