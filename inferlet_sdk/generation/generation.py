"""Generating text.

What was computed past a stop is dropped: afterwards the context holds exactly the tokens that were emitted, and the
same tokens come out however they were made: by decode runs, followed by the host or not, or step by step.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from inferlet_sdk import traits
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import Cancelled, InvalidState
from inferlet_sdk.event_loop import run_blocking
from inferlet_sdk.generation.decode_run import Following
from inferlet_sdk.generation.drafting import Draft, DraftedTokens
from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.generation.stopping import StopConditions, StopRules, StopString, TextFilter, holds, stop_strings
from inferlet_sdk.generation.token_source import Pieces, RunTokenSource, TokenSource, token_source
from inferlet_sdk.grammars.guide import Guide
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sharing.prefixes import share_prefix
from inferlet_sdk.texts import shown
from inferlet_sdk.traits.arguments import flag, room, whole
from inferlet_sdk.traits.runs import MOST_STOPS, TokenLogprobs

CHARACTER = 4
"""Most bytes of a character, and so most tokens."""


def rules_of(
    sequence: TokenSequence, stop: StopConditions, max_tokens: int | None, include_stop: bool = False
) -> StopRules:
    """When a continuation ends: in any case when the model's context is full."""
    left = room(sequence.offset + len(sequence.tokens), sequence.info.max_context, sequence.info.name)
    limit = left if max_tokens is None else min(whole(max_tokens, "max_tokens"), left)
    return StopRules.of(stop, sequence.info.stop_tokens, limit, flag(include_stop, "include_stop"))


class Generation:
    """An iterator over pieces of generated text: `async for`, or `for` in a program without asyncio.

    A piece is the text of a token, or of several if the program is slower than the model.

    `stop_reason` is None while it runs, then "stop" (a condition held, or the grammar is complete), "length" (maximum
    reached) or "ended" (the program used the context for something else, or closed it).

    It takes what it needs from the host (a queue, a sampler, a detokenizer) at its first piece, and gives it back when
    it ends or is dropped.
    """

    stop_reason: str | None = "ended"  # until it is made

    def __init__(
        self,
        sequence: TokenSequence,
        sampler: Sampler | DistSampler,
        rules: StopRules,
        run_ahead: bool = True,
        logprobs: int | None = None,
        draft: Draft | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.is_waiting = False
        """Whether a task waits for the next piece now."""
        self._sequence = sequence
        self._sampler = sampler
        self._run_ahead = run_ahead
        self._guide = guide
        self._rules = rules
        self._alternatives = logprobs
        self._draft = draft
        self._logprobs: list[TokenLogprobs] = []
        self.sampled: Sequence[TokenLogprobs] = ()
        """At its end: those of all tokens that were sampled for it, what has ended it and is left out included."""
        self._left = rules.max_tokens
        self._start = len(sequence.tokens)
        self.before: list[int] = sequence.tokens[1 - CHARACTER :] if sequence.half == self._start else []
        """The last tokens before it, if they may have begun a character that it completes."""
        self._completes = True  # whether the last token has completed a text
        self._tokens: list[int] | None = None
        self._filter = TextFilter(rules.texts, rules.include_stop) if rules.texts else None
        self._takes_all = self._filter is None and not rules.predicates and len(rules.tokens) <= MOST_STOPS
        self._source: TokenSource | DraftedTokens | None = None
        self._detokenizer = 0
        self._holds_state = not sequence.info.state_pages
        self._given: Pieces | None = None  # what has come behind a token at which a condition failed
        self._unsent = ""  # text up to that token
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

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """The log-probability of each of `tokens`, and the most probable tokens with theirs. Empty unless `generate`
        was told `logprobs=`. A token of which a stop string has left only a part has none."""
        return self._logprobs[: len(self.tokens)]

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended it. None: something else has, or a regular expression."""
        found = self._filter
        if found is None or found.cut is None:
            return None
        around = found.text[: found.cut] if self._rules.include_stop else found.text[found.cut :]
        matches = str.endswith if self._rules.include_stop else str.startswith
        strings = [one for rule in self._rules.texts if isinstance(rule, StopString) for one in rule.strings]
        return next((one for one in strings if matches(around, one)), None)

    @property
    def released(self) -> int:
        """How many of `tokens` were given in pieces: the text of the others may be the beginning of a stop string."""
        if self._filter is None or self.stop_reason is not None:
            return len(self._sequence.tokens) - self._start if self._tokens is None else len(self._tokens)
        return bisect_right(self._filter.ends, self._filter.released)

    def behind(self, first: int) -> tuple[list[int], list[TokenLogprobs]]:
        """What of the `released` tokens is behind the first ones, with log-probabilities, without a look at these."""
        end, start = self.released, self._start
        if self._tokens is not None:
            return self._tokens[first:], self._logprobs[first:end]
        return self._sequence.tokens[start + first : start + end], self._logprobs[first:end]

    def __repr__(self) -> str:
        state = self.stop_reason or ("running" if self._source is not None else "not begun")
        text = self.text if self.tokens else ""
        return f"<Generation: {len(self.tokens)} tokens, {state}: {shown(text)}>"

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        piece = self._try_piece() or await self._next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __iter__(self) -> Iterator[str]:
        while (piece := run_blocking(self._next_piece())) is not None:
            yield piece

    def _try_piece(self) -> str:
        """The next piece, if a run goes on whose tokens need no look, and nothing else goes on in the program; else "".
        One call to the host, because this is the hot path."""
        source = self._source
        if type(source) is not RunTokenSource or not self._takes_all or self.is_waiting or self.stop_reason is not None:
            return ""
        taken = source.try_take()
        return "" if taken is None else self._take_all(*taken)

    async def _next_piece(self) -> str | None:
        if self.is_waiting:
            raise InvalidState("two tasks iterate over one generation: fork the context, and generate once in each")
        if self._source is None and self.stop_reason is None:
            self._begin()
        self.is_waiting = True
        try:
            while self.stop_reason is None:
                if self._left <= 0 or self._source is None:  # there may be no room from the start
                    piece = self._finish("length")
                else:
                    if not self._holds_state:
                        await self._hold_state()
                    new = self._given or await self._source.next(self._left, self._held)
                    self._given = None
                    del self._logprobs[self._taken :]  # of tokens that a condition which failed has not let in
                    self._logprobs += new.logprobs
                    piece = self._take_in(new)
                    if new.complete and self.stop_reason is None:
                        piece += self._finish("stop")
                if piece:
                    return piece
        except Cancelled:
            if self.stop_reason is None:  # else another task ended it
                raise
        finally:
            self.is_waiting = False
        return None

    async def _hold_state(self) -> None:
        """What comes can be dropped, and the text before it does not run again."""
        await share_prefix(self._sequence)
        self._sequence.flush()
        self._sequence.hold_state()
        self._holds_state = True

    def _begin(self) -> None:
        self._sequence.begin()
        try:
            self._detokenizer = traits.create_detokenizer(self._sequence.queue)
            if self.before:
                traits.push_tokens(self._detokenizer, self.before)
            stop = sorted(self._rules.tokens)
            self._source = self._new_source(stop)
        except BaseException:
            self._give_back()
            raise

    def _new_source(self, stop: Sequence[int]) -> TokenSource | DraftedTokens:
        sequence, sampler = self._sequence, self._sampler
        if self._draft is None:
            run_ahead, alternatives = self._run_ahead, self._alternatives
            return token_source(sequence, sampler, self._detokenizer, run_ahead, stop, alternatives, self._guide)
        if isinstance(sampler, DistSampler):
            raise ValueError("draft: drafts need a sampler of the host")
        return DraftedTokens(sequence, sampler, self._detokenizer, self._draft, stop, self._alternatives, self._guide)

    @property
    def _taken(self) -> int:
        """How many tokens the context has taken."""
        return self._rules.max_tokens - self._left

    @property
    def _held(self) -> str:
        """Text that was not emitted, because it may be the beginning of a stop string."""
        return self._filter.text[self._filter.released :] if self._filter is not None else ""

    def _take_in(self, new: Pieces) -> str:
        """Takes tokens into the context, in order, up to the one that ends the generation; returns the text to emit.
        Where a condition of the program fails, that text and the tokens behind wait for the next time."""
        if self._takes_all and self._rules.tokens.isdisjoint(new.tokens[:-1]):  # a grammar may force a stop token
            return self._take_all(new.tokens, new.texts)
        for place, (token, text) in enumerate(zip(new.tokens, new.texts, strict=True), 1):
            try:
                self._accept(token, text)
            except BaseException:
                self._given = new.behind(place)
                raise
            if self.stop_reason is not None:
                break
        piece, self._unsent = self._unsent, ""
        return piece

    def _take_all(self, tokens: Sequence[int], texts: Sequence[str]) -> str:
        """Takes all tokens where only a stop token or their number ends the generation: they end a run, too."""
        stopped = bool(tokens) and tokens[-1] in self._rules.tokens
        count = len(tokens) - (stopped and not self._rules.include_stop)
        self._sequence.tokens += tokens[:count]
        self._left -= count
        self._completes = bool(texts[count - 1]) if count else self._completes
        piece = "".join(texts[:count])
        if stopped:
            return piece + self._finish("stop", left_out=len(tokens) - count)
        return piece if self._left else piece + self._finish("length")

    def _accept(self, token: int, piece: str) -> None:
        """Takes a token into the context, and the text that it completes."""
        stops = token in self._rules.tokens
        if stops and not self._rules.include_stop:
            self._unsent = self._finish("stop", left_out=1)
            return
        self._sequence.tokens.append(token)
        self._left -= 1
        self._completes = bool(piece)
        if self._filter is not None:
            piece = self._filter.push(piece)
            stops = stops or self._filter.cut is not None
        self._unsent += piece
        if stops or any(holds(predicate, self) for predicate in self._rules.predicates):
            self._unsent = self._finish("stop")
        elif not self._left:
            self._unsent = self._finish("length")

    def _finish(self, reason: str, left_out: int = 0) -> str:
        """Ends the generation; returns the text that was not emitted. `left_out`: stop tokens that the context has not
        taken."""
        self.sampled = self._logprobs[: self._taken + left_out]
        rest = self._unsent + (self._filter.rest() if self._filter is not None else "")
        self.stop_reason = reason
        self._tokens = self._sequence.tokens[self._start :]
        if self._source is None:
            return rest
        try:
            self._source.close()
            if self._filter is not None and self._filter.cut is not None:
                self._cut_tokens(self._filter)
            if not self._completes:
                self._sequence.half = len(self._sequence.tokens)
            self._sequence.let_go_drafted()
            if self._guide is not None and not self._sequence.closed:
                self._guide.close(self._tokens)
        finally:
            self._give_back()
        return rest

    def _give_back(self) -> None:
        if self._detokenizer:
            traits.destroy_detokenizer(self._detokenizer)
        self._sequence.end()

    def _cut_tokens(self, text_filter: TextFilter) -> None:
        """Keeps only the emitted text. If a token straddles the cut, its part before the cut is tokenized again, and so
        are tokens before it that have begun its first character."""
        tokens = self.tokens

        def is_whole(count: int) -> bool:
            last = self._sequence.detokenize(tokens[max(count - CHARACTER, 0) : count])
            return not last.endswith("\ufffd")

        kept = text_filter.kept_tokens(is_whole)
        self._sequence.truncate(self._start + kept.count)
        del self._logprobs[kept.count :]
        if kept.rest:
            self._sequence.tokens += self._sequence.tokenize(kept.rest, special_tokens=False)
        self._tokens = self._sequence.tokens[self._start :]

    # ---- the whole text ----

    async def whole(self, send: bool = False, frame: Sequence[str] = ()) -> str:
        """The rest of the text, at once; `send`: it goes to the client as it comes, each piece as JSON within `frame`,
        if there is one.

        Where the stop conditions allow, the program sleeps until the end: the host looks for stop strings, and sends
        the text.
        """
        if not self._follow(send, frame):
            return await self._whole_by_pieces(send, frame)
        pieces = []
        while (piece := await self._next_piece()) is not None:
            pieces.append(piece)
        return "".join(pieces)

    async def _whole_by_pieces(self, send: bool, frame: Sequence[str]) -> str:
        pieces = []
        while (piece := await self._next_piece()) is not None:
            pieces.append(piece)
            if send:
                await traits.send(json.dumps(piece, ensure_ascii=False)[1:-1].join(frame) if frame else piece)
        return "".join(pieces)

    def _follow(self, send: bool, frame: Sequence[str]) -> bool:
        """Leaves the text to the host, if nothing else has to look at it."""
        rules = self._rules
        if rules.predicates or len(rules.tokens) > MOST_STOPS or isinstance(self._sampler, DistSampler) or self._draft:
            return False
        if rules.include_stop:
            return False  # the host leaves stop strings out
        stop = stop_strings(rules.texts)
        if self._guide is not None and (stop or send):
            return False  # the host does not see the tokens that are forced
        if stop is None or not self._run_ahead or self.is_waiting or self.stop_reason is not None:
            return False
        if self._source is None:
            self._begin()
        assert isinstance(self._source, RunTokenSource)
        return self._source.try_follow(Following(stop, send, frame), self._left, self._held)

    def end(self) -> None:
        """Ends the generation; the context keeps the tokens accepted so far. Idempotent."""
        if self.stop_reason is None:
            self._finish("ended")

    close = end
