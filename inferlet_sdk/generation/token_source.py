"""Where the next tokens come from: a sampler on the worker, or a function of the inferlet.

With a sampler on the worker, a decode run makes many tokens without the inferlet, which takes those that have come. A
program that wants to be asked for each token (`run_ahead=False`) gets them step by step instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import NamedTuple

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import Busy, Cancelled, call, from_host
from inferlet_sdk.event_loop import HostEventLoop, loop_with_others, until_done
from inferlet_sdk.futures import HostFuture, TokenFuture
from inferlet_sdk.generation.decode_run import Following, IssuedRun, Taken
from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.generation.scoring import logprobs_at
from inferlet_sdk.grammars.guide import Guide
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sequences.stepping import ask_dist, next_dist, step_and_sample, try_next_dist
from inferlet_sdk.sharing.prefixes import share_prefix
from inferlet_sdk.traits.arguments import LARGEST_U32, whole
from inferlet_sdk.traits.fused import await_scored_token
from inferlet_sdk.traits.output_text import Dist
from inferlet_sdk.traits.runs import TokenLogprobs

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 4.0
"""Seconds before a run is issued again for which the worker was not ready; each pause is twice the one before."""
_ENDED = "the generation was ended while it waited for a token"


class Pieces(NamedTuple):
    """Tokens, at least one unless the run was over, and the text that each completes. `complete`: nothing can follow in
    the grammar."""

    tokens: Sequence[int]
    texts: Sequence[str]
    logprobs: Sequence[TokenLogprobs] = ()
    """The scores of each token, if they were asked for."""
    complete: bool = False

    def behind(self, place: int) -> Pieces:
        """Those behind the first `place` tokens."""
        return Pieces(self.tokens[place:], self.texts[place:], self.logprobs[place:], self.complete)


NOTHING = Pieces((), ())


class RunTokenSource:
    """Tokens from a sampler on the worker, by decode runs."""

    def __init__(
        self,
        sequence: TokenSequence,
        sampler: Sampler,
        detokenizer: int,
        stop: Sequence[int],
        logprobs: int | None,
        guide: Guide | None = None,
        most: int = LARGEST_U32,
    ) -> None:
        """`stop`: tokens that end a run; `most`: steps of one."""
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer
        self._stop = stop
        self._logprobs = logprobs
        self._handle = sampler.take(sequence.queues)
        self._run: IssuedRun | None = None
        self._is_left = False  # nobody waits for the run
        self._was_left = False  # a wait was cancelled: maybe it is so again and again
        self._called: IssuedRun | None = None  # the run whose next token calls `_keep`
        self._kept: Taken | None = None  # what has come of a run that was left
        self._following: Following | None = None
        self._guide = guide
        self._start = len(sequence.tokens)
        self._most = most

    def try_take(self) -> tuple[Sequence[int], Sequence[str]] | None:
        """What has come of a run that goes on, if there is nothing but tokens and texts to it, and nothing else goes on
        in the program; suspends that."""
        run = self._run
        if run is None or not run.is_plain or self._guide is not None or loop_with_others() is not None:
            return None
        taken = run.try_take(self._detokenizer)
        if taken is None:
            return None
        tokens, texts, over = taken
        if over:
            self._run = None
        return tokens, texts

    async def next(self, left: int, held: str) -> Pieces:
        """What has come, at most `left` tokens. `held`: text so far that may be the beginning of a stop string. Raises
        Cancelled if another task closes the source meanwhile. If this task is cancelled, the next token is kept."""
        self._is_left = False
        try:
            return await self._next(left, held)
        except bindings.HostError as error:
            self.cancel()
            raise from_host(error) from None
        except asyncio.CancelledError:
            self._leave()
            raise
        except BaseException:
            self.cancel()
            raise

    def _leave(self) -> None:
        """Nobody waits any more: the run ends with its next token, unless somebody waits for that again."""
        run, loop, self._was_left = self._run, asyncio.get_running_loop(), True
        if run is None or self._following is not None:
            self.cancel()
            return
        self._is_left = True
        if self._called is not run:
            self._called = run
            assert isinstance(loop, HostEventLoop)
            loop.when_done(run.number, partial(self._keep, run))

    def _keep(self, run: IssuedRun) -> None:
        """A run that was left has tokens."""
        self._called = None
        if self._run is run and self._is_left:
            with suppress(bindings.HostError):  # the next one has it, too
                self._kept = run.take(self._detokenizer)
            self._run = None
            run.cancel()

    async def _next(self, left: int, held: str) -> Pieces:
        if self._kept is None and self._run is None and not self._sequence.tokens[self._start :]:
            forced = await self._forced_first(left)
            if forced.tokens or forced.complete:
                return forced
        tokens, texts, over, logprobs = self._kept or await self._take(left, held)
        self._kept = None
        if not over:
            return Pieces(tokens, texts, logprobs)
        self._run = None
        if self._guide is None or len(tokens) >= left or (tokens and tokens[-1] in self._stop):
            return Pieces(tokens, texts, logprobs)  # nothing comes behind these
        forced = self._forced(tokens, left)
        return Pieces([*tokens, *forced.tokens], [*texts, *forced.texts], logprobs, forced.complete)

    async def _take(self, left: int, held: str) -> Taken:
        """What has come of a run, which is issued if there is none."""
        pause = FIRST_PAUSE
        while True:
            if self._run is None:
                if not self._sequence.computed:
                    await share_prefix(self._sequence)
                await self._issue(left, held)
            run = self._run
            assert run is not None
            await until_done(run.number)
            if self._run is not run:
                raise Cancelled(_ENDED)
            try:
                return run.take(self._detokenizer)
            except bindings.HostError as error:
                if not isinstance(from_host(error), Busy) or pause > LONGEST_PAUSE:
                    raise
            self._run = None
            run.cancel()
            await traits.sleep(pause)
            pause *= 2

    async def _forced_first(self, left: int) -> Pieces:
        """What is forced before all tokens."""
        guide = self._guide
        return self._forced((), left) if guide is not None and await guide.open(self._sequence.queues) else NOTHING

    def _forced(self, tokens: Sequence[int], left: int) -> Pieces:
        """What is forced behind these tokens, if it is enough to be run together."""
        assert self._guide is not None
        before = [*self._sequence.tokens[self._start :], *tokens]
        found = self._guide.advance(before, left - len(tokens), self._detokenizer)
        return Pieces(found.forced, found.texts, complete=found.over)

    async def _issue(self, left: int, held: str) -> None:
        sequence, constraint = self._sequence, None
        if self._guide is not None:
            await self._guide.open(sequence.queues)
            constraint = self._guide.at(sequence.tokens[self._start :]), self._guide.skip
        most, logprobs = min(left, self._most), self._logprobs
        self._run = run = IssuedRun(sequence, self._sampler, self._handle, most, self._stop, logprobs, constraint)
        if self._following is not None:
            run.follow(self._detokenizer, self._following, held, more=left > run.steps)

    def try_follow(self, following: Following, left: int, held: str) -> bool:
        """From now on the host follows the text; `next` gives what a whole run has made. False: a wait was cancelled,
        so what comes is taken at once, and stays."""
        if self._was_left:
            return False
        self._following = following
        if self._run is not None:
            self._run.follow(self._detokenizer, following, held, more=left > self._run.left)
        return True

    def cancel(self) -> None:
        """Ends the run and drops what it computed. The next token is sampled again."""
        run, self._run = self._run, None
        self._following = self._kept = None
        if run is not None:
            run.cancel()

    def close(self) -> None:
        """Gives everything back. The sequence has keys of its tokens only."""
        self.cancel()
        if not self._sequence.closed:
            self._sequence.rewind(len(self._sequence.tokens))
        self._sampler.give(self._handle)


class SampledTokens:
    """Tokens from a sampler on the worker, each asked for."""

    def __init__(
        self, sequence: TokenSequence, sampler: Sampler, detokenizer: int, logprobs: int | None = None
    ) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer
        self._logprobs = logprobs
        self._handle = sampler.take(sequence.queues)
        self._current: int | None = None

    async def next(self, left: int, held: str) -> Pieces:
        """One token. Raises Cancelled if another task closes the source meanwhile. If this task is cancelled, the token
        is the next one all the same."""
        try:
            if not self._sequence.computed:
                await share_prefix(self._sequence)
            number = self._current = self._current or self._issue()
            await until_done(number)
            if self._current != number:
                raise Cancelled(_ENDED)
            pieces = self._take(number)
        except bindings.HostError as error:
            self.cancel()
            raise from_host(error) from None
        except Exception:
            self.cancel()
            raise
        self._current = None
        return pieces

    def _take(self, number: int) -> Pieces:
        if self._logprobs is None:
            token, text = bindings.fused.take_text(number, self._detokenizer)
            return Pieces((token,), (text,))
        scored = await_scored_token(number)
        text = traits.push_tokens(self._detokenizer, [scored.token])
        return Pieces((scored.token,), (text,), (TokenLogprobs(scored.logprob, scored.alternatives),))

    def _issue(self) -> int:
        sequence = self._sequence
        if self._logprobs is not None:
            sequence.flush()
            return _sample(sequence, self._sampler, self._handle, 1 + self._logprobs)
        if not self._sampler.looks_back and sequence.computed == sequence.output_of == len(sequence.tokens) - 1:
            return step_and_sample(sequence, sequence.tokens[-1], self._handle)
        sequence.flush()
        return _sample(sequence, self._sampler, self._handle)

    def cancel(self) -> None:
        """Gives up the token that is under way: it is sampled again."""
        number, self._current = self._current, None
        if number is not None:
            with suppress(bindings.HostError):  # taken already: its value was an error
                bindings.core.cancel(number)

    def close(self) -> None:
        """Gives everything back."""
        self.cancel()
        self._sampler.give(self._handle)


def _sample(sequence: TokenSequence, sampler: Sampler, handle: int, logprobs: int = 0) -> int:
    """Samples at the output embed of a sequence that works, with so many log-probabilities; returns the future."""
    recent = sampler.recent(sequence.tokens)
    number: int = call(bindings.fused.sample, sequence.queue, sequence.output_embed, handle, recent, "", logprobs)
    return number


async def _choose(dist: Dist, sequence: TokenSequence, sampler: DistSampler) -> int:
    """The token that a function of the inferlet, or an `async def`, chooses after a sequence."""
    chosen = sampler.choose(dist)
    if type(chosen) is not int and isawaitable(chosen):
        chosen = await chosen
    wanted = "a function that returns a token id, as dist.tokens has them"
    return whole(chosen, "sampler", most=sequence.info.vocab_size - 1, wanted=wanted)


async def sample_once(sequence: TokenSequence, sampler: Sampler | DistSampler) -> int:
    """The next token of a sequence, which does not change."""
    with sequence:
        if isinstance(sampler, DistSampler):
            return await _choose(await next_dist(sequence, sampler.k, sampler.temperature), sequence, sampler)
        sequence.flush()
        handle = sampler.take(sequence.queues)
        try:
            return await TokenFuture(_sample(sequence, sampler, handle), bindings.core.await_number)
        finally:
            sampler.give(handle)


class ChosenTokens:
    """Tokens that a function of the inferlet chooses from distributions."""

    def __init__(self, sequence: TokenSequence, sampler: DistSampler, detokenizer: int, logprobs: int | None) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._detokenizer = detokenizer
        self._logprobs = logprobs
        self._asked: HostFuture[Dist] | None = None
        self._chosen: int | None = None  # whose scores were not taken
        self._closed = False

    async def next(self, left: int, held: str) -> Pieces:
        """One token. If this task is cancelled, the distribution, or the token if it was chosen, is the next one all
        the same."""
        if not self._sequence.computed:
            await share_prefix(self._sequence)
        if self._chosen is None:
            self._chosen = await _choose(await self._dist(), self._sequence, self._sampler)
        token = self._chosen
        logprobs: Sequence[TokenLogprobs] = ()
        if self._logprobs is not None and not self._closed:
            output = Embeds((self._sequence.output_embed, 1))
            logprobs = await logprobs_at(self._sequence.queue, output, [token], self._logprobs)
        if self._closed:
            raise Cancelled(_ENDED)
        self._chosen = None
        return Pieces((token,), (traits.push_tokens(self._detokenizer, [token]),), logprobs)

    async def _dist(self) -> Dist:
        wanted = self._sequence, self._sampler.k, self._sampler.temperature
        if (dist := try_next_dist(*wanted)) is not None:
            return dist
        self._asked = self._asked or ask_dist(*wanted)
        await until_done(self._asked.number)
        asked, self._asked = self._asked, None
        return asked.result()

    def close(self) -> None:
        self._closed = True
        if self._asked is not None:
            self._asked.cancel()


TokenSource = RunTokenSource | SampledTokens | ChosenTokens


def token_source(
    sequence: TokenSequence,
    sampler: Sampler | DistSampler,
    detokenizer: int,
    run_ahead: bool,
    stop: Sequence[int],
    logprobs: int | None = None,
    guide: Guide | None = None,
) -> TokenSource:
    """The tokens that a sampler makes from a sequence; the caller closes them. With `run_ahead` they may come faster
    than they are asked for, up to the first of `stop`. `logprobs`: they come with log-probabilities, and those of as
    many alternatives."""
    if isinstance(sampler, DistSampler):
        return ChosenTokens(sequence, sampler, detokenizer, logprobs)
    if run_ahead or guide is not None:
        return RunTokenSource(sequence, sampler, detokenizer, stop, logprobs, guide, LARGEST_U32 if run_ahead else 1)
    return SampledTokens(sequence, sampler, detokenizer, logprobs)
