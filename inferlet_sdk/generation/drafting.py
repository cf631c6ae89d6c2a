"""Speculative generation: a function of the program guesses the next tokens, and the worker checks them all at once.

A step runs the last token and the draft behind it, and `verify` says how many tokens of the draft the sampler would
have chosen, and the token behind them. They are exactly the tokens that sampling one by one gives. At a model with
states it leaves one behind each token, and goes on from that of the last one that was right.

With a grammar, each of these outputs is sampled by itself, among the tokens that may come behind the draft up to there,
also where a token before it is wrong. A draft is looked at as far as the grammar allows it, and up to a place where
tokens are forced that are run together.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import Cancelled, Exhausted, InvalidState, PieError, QuotaExceeded
from inferlet_sdk.event_loop import until_done
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.generation.sampling import Sampler
from inferlet_sdk.generation.scoring import logprobs_at
from inferlet_sdk.generation.token_source import NOTHING, Pieces
from inferlet_sdk.grammars.guide import Guide
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sharing.prefixes import share_prefix
from inferlet_sdk.traits.arguments import LARGEST_U32, whole, wrong
from inferlet_sdk.traits.arguments import tokens as token_list
from inferlet_sdk.traits.fused import Verified
from inferlet_sdk.traits.runs import TokenLogprobs

MOST_DRAFTED = 63
"""Tokens of one draft that are looked at."""

Draft = Callable[[Sequence[int]], Sequence[int] | Awaitable[Sequence[int] | None] | None]
"""A function from all tokens so far to those that may come next, or an `async def`; no token, or None: it has no
guess."""


class PromptLookup:
    """A draft from the text itself: what came behind the last occurrence of its last tokens. Good where a text repeats
    what it was given, as in summaries and code."""

    def __init__(self, match: int = 3, length: int = 8) -> None:
        """At most `length` tokens behind the last place where the last `match` tokens, or fewer, stand."""
        self.match = whole(match, "match", least=1)
        self.length = whole(length, "length", least=1)

    def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        data = array("I", tokens)
        width, text = data.itemsize, data.tobytes()
        for size in range(min(self.match, len(tokens) - 1), 0, -1):
            wanted, end = text[-size * width :], len(text) - width
            while (at := text.rfind(wanted, 0, end)) % width and at > 0:  # between two tokens
                end = at + len(wanted) - 1
            if at >= 0:
                start = at // width + size
                return tokens[start : start + self.length]
        return ()


@dataclass
class _Step:
    """A draft that was run. A wait for what comes of it that is cancelled leaves it to the next one: the sampler has
    drawn for it."""

    draft: list[int]
    outputs: Embeds
    checks: Sequence[HostFuture[Any]]  # one of `verify`, or a sample at each output
    tokens: list[int] = field(default_factory=list)  # what of the draft is right, and the token behind it, once known


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
        guide: Guide | None = None,
    ) -> None:
        """`logprobs`: tokens come with log-probabilities, and those of as many alternatives."""
        self._sequence = sequence
        self._detokenizer = detokenizer
        self._draft = draft
        self._stop = frozenset(stop)
        self._logprobs = logprobs
        self._guide = guide
        self._start = len(sequence.tokens)
        self._step: _Step | None = None  # that waits, or was not taken
        self._closed = False
        if not callable(draft) or isinstance(draft, type):
            raise wrong("draft", "a function of the tokens so far, such as `PromptLookup()`", draft)
        if sampler.looks_back:
            raise ValueError("draft: a sampler with penalties cannot check a draft: leave one of them out")
        self._embeds = Embeds(())
        self._sampler, self._handle = sampler, sampler.take(sequence.queues)

    async def next(self, left: int, held: str) -> Pieces:
        """At least one token, up to the first stop token. Raises Cancelled if another task closes the source
        meanwhile."""
        sequence = self._sequence
        forced = await self._forced_first(left)
        if forced.tokens or forced.complete:
            return forced
        if not sequence.tokens:
            raise InvalidState("the context is empty: `fill` it before generating")
        if self._step is None:
            await share_prefix(sequence)
            if sequence.output_of != len(sequence.tokens):
                sequence.rewind_last()
            self._step = self._run_draft(*self._allowed(await self._guess(min(left - 1, MOST_DRAFTED))))
        tokens, outputs = await self._chosen(self._step), self._step.outputs
        end = next((place + 1 for place, token in enumerate(tokens) if token in self._stop), len(tokens))
        logprobs: Sequence[TokenLogprobs] = ()
        if self._logprobs is not None:
            logprobs = await logprobs_at(sequence.queue, outputs[:end], tokens[:end], self._logprobs)
            self._check_open()
        self._step = None
        texts = [traits.push_tokens(self._detokenizer, [token]) for token in tokens[:end]]
        if self._guide is None or end == left or tokens[end - 1] in self._stop:
            return Pieces(tokens[:end], texts, logprobs)
        found = self._guide.advance([*sequence.tokens[self._start :], *tokens[:end]], left - end, self._detokenizer)
        return Pieces([*tokens[:end], *found.forced], [*texts, *found.texts], logprobs, found.over)

    async def _forced_first(self, left: int) -> Pieces:
        """What a grammar forces before all tokens."""
        guide, sequence = self._guide, self._sequence
        if guide is None or len(sequence.tokens) > self._start or not await guide.open(sequence.queues):
            return NOTHING
        self._check_open()
        found = guide.advance((), left, self._detokenizer)
        return Pieces(found.forced, found.texts, complete=found.over)

    def _allowed(self, draft: list[int]) -> tuple[list[int], list[bytes]]:
        """The part of a draft that keeps to the grammar, and what may come at each of its outputs; no masks without a
        grammar."""
        if self._guide is None:
            return draft, []
        with self._guide.branch(self._sequence.tokens[self._start :]) as matcher:
            masks = [matcher.mask()]
            for place, token in enumerate(draft):
                found = matcher.advance([token], self._guide.skip, LARGEST_U32, 0)
                if not found.accepted or found.forced or found.over:
                    return draft[:place], masks
                masks.append(matcher.mask())
        return draft, masks

    async def _guess(self, most: int) -> list[int]:
        sequence = self._sequence
        room = sequence.info.max_context - sequence.offset - len(sequence.tokens)
        most = max(min(most, room), 0)
        if not most:
            return []
        guess = self._draft(sequence.tokens.copy())  # which it may change
        if isawaitable(guess):
            guess = await guess
            self._check_open()
        return [] if guess is None else token_list(guess, "draft")[:most]

    def _run_draft(self, draft: list[int], masks: Sequence[bytes]) -> _Step:
        """Runs a draft, and asks what of it is right. `masks`: what may come at each output, or none."""
        sequence = self._sequence
        length = len(sequence.tokens)
        sequence.compute(length - 1, ())
        count = len(draft) + 1
        missing = 2 * count - len(self._embeds)
        if missing > 0:
            self._embeds += sequence.queues.alloc_embeds(sequence.queue, missing)
        inputs, outputs = self._embeds[:count], self._embeds[count : 2 * count]
        tokens = [sequence.tokens[-1], *draft]
        if sequence.computed == length:  # its output is there
            inputs, outputs, tokens = inputs[1:], Embeds([sequence.output_embed, 1]) + outputs[1:], draft
        if tokens:
            self._run(tokens, inputs, outputs[-len(tokens) :])
        sequence.output_of = 0
        if not masks:
            return _Step(draft, outputs, [traits.verify(sequence.queue, outputs, draft, self._handle)])
        places = range(len(masks))
        checks = [traits.sample(sequence.queue, outputs[n : n + 1], self._handle, (), masks[n]) for n in places]
        return _Step(draft, outputs, checks)

    async def _chosen(self, step: _Step) -> list[int]:
        """What of the draft is right, and the token behind it. Keys of the rest are dropped."""
        if not step.tokens:
            for one in step.checks:
                await until_done(one.number)
                self._check_open()
            try:
                values = [one.result() for one in step.checks]
            except PieError:
                self._give_up()
                raise
            step.tokens = _right(step.draft, values)
        self._sequence.rewind(len(self._sequence.tokens) + len(step.tokens) - 1)
        return step.tokens

    def _run(self, tokens: Sequence[int], inputs: Embeds, outputs: Embeds) -> None:
        try:
            self._sequence.run(tokens, inputs, outputs, draft=True)
        except (QuotaExceeded, Exhausted):
            if not self._sequence.info.state_pages:
                raise
            self._sequence.hold_state()  # it lets the one at the beginning go
            self._sequence.run(tokens, inputs, outputs, draft=True)

    def _give_up(self) -> None:
        """Forgets the step that is under way."""
        step, self._step = self._step, None
        for one in step.checks if step is not None else ():
            one.cancel()  # unless it was taken

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("the generation was ended while it waited for a token")

    def close(self) -> None:
        """Gives everything back. The sequence has keys of its tokens only."""
        self._closed = True
        self._give_up()
        sequence = self._sequence
        if not sequence.closed:
            sequence.rewind(len(sequence.tokens))
        if self._embeds:
            with sequence.queues.some() as queue:
                traits.dealloc_emb(queue, self._embeds)
        self._sampler.give(self._handle)


def _right(draft: list[int], values: Sequence[Any]) -> list[int]:
    """What of a draft is right, and the token behind it, by what its checks gave."""
    if isinstance(values[0], Verified):
        return [*draft[: values[0].accepted], values[0].token]
    accepted = next((n for n, token in enumerate(draft) if values[n] != token), len(draft))
    return [*draft[:accepted], values[accepted]]
