"""A decode run of a sequence: the worker goes on by itself, and the sequence takes tokens as they come.

While a run lives, the sequence counts all of its tokens as computed. When it ends, that is set right: all tokens of a
run but the last one have keys, and the output embed holds nothing that can be relied on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.generation.sampling import Sampler
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.runs import MOST_STOPS, TokenLogprobs, unpack_logprobs

STEPS = 512
"""Most steps of a run. What a program does not want any more is computed in vain until it says so; and a new run costs
the time in which the program issues it."""
STEPS_OF_SHARED = 16
"""Most steps of a run where others use the queue, because their commands come after the run."""


class Following(NamedTuple):
    """How the host follows the text of a run: `stop` are strings that end it, `send`: it goes to the client, each piece
    within `frame` if there is one."""

    stop: Sequence[str]
    send: bool
    frame: Sequence[str] = ()


class Taken(NamedTuple):
    """Tokens of a run with their texts, and whether it is over; `logprobs` of each token, if it asked for them."""

    tokens: list[int]
    texts: list[str]
    over: bool
    logprobs: Sequence[TokenLogprobs]


class IssuedRun:
    """A run that has been issued; `number` is its future."""

    def __init__(
        self,
        sequence: TokenSequence,
        sampler: Sampler,
        handle: int,
        most: int,
        stop: Sequence[int],
        logprobs: int | None = None,
        constraint: tuple[int, int] | None = None,
    ) -> None:
        """At most `most` steps, and as many as there are pages for. The sequence must be working. `logprobs`: with
        log-probabilities, and those of as many alternatives. `constraint`: a matcher, and how many forced tokens end
        the run (0: none do)."""
        sequence.flush()
        queue, position = sequence.busy_queue, sequence.computed
        steps = min(most, STEPS if sequence.has_queue_alone else STEPS_OF_SHARED)
        room = sequence.pages.reserve_for_run(queue.number, position + steps - 1)
        self.steps: int = min(steps, room - position + 1)
        self._sequence = sequence
        self._position = position
        self._taken = 0
        self._followed = False
        self._failure: Exception | None = None  # of the host, which `take` raises
        self._has_logprobs = logprobs is not None
        try:
            self.number: int = call(
                bindings.fused.decode,
                queue.number,
                sequence.own_output(),
                handle,
                queue.input[0],
                position + sequence.offset,
                sequence.pages.context,
                sequence.pages.output,
                self.steps,
                stop[:MOST_STOPS],
                _options(sequence, sampler, logprobs),
                *(constraint or (0, 0)),
            )
        except BaseException:
            sequence.pages.settle(queue.number, position)
            raise
        sequence.computed, sequence.output_of = position + self.steps - 1, 0

    @property
    def left(self) -> int:
        """Steps whose tokens were not taken."""
        return self.steps - self._taken

    @property
    def is_plain(self) -> bool:
        """Whether its tokens come as they are made, with their texts alone."""
        return not (self._has_logprobs or self._followed)

    def follow(self, detokenizer: int, following: Following, held: str, more: bool) -> None:
        """The tokens come at the end from now on. `held` is text before that was held back, `more`: further tokens may
        come after the run."""
        given: dict[str, Any] = {**following._asdict(), "held": held, "more": more}
        options = {name: value for name, value in given.items() if value}
        call(bindings.fused.watch_run, self.number, detokenizer, json.dumps(options) if options else "")
        self._followed = bool(following.stop)

    def try_take(self, detokenizer: int) -> tuple[list[int], list[str], bool] | None:
        """What `take` gives, for a plain run; None if it has failed, which `take` tells then."""
        try:
            tokens, texts, over, _ = bindings.fused.take_run(self.number, detokenizer)
        except bindings.HostError as error:
            self._failure = error
            return None
        self._taken += len(tokens)
        if over:
            self._settle(exact=True)
        return tokens, texts, over

    def take(self, detokenizer: int) -> Taken:
        """Tokens that have come; suspends the guest until there are some."""
        if self._failure is not None:
            raise self._failure
        tokens, texts, over, packed = bindings.fused.take_run(self.number, detokenizer)
        self._taken += len(tokens)
        if over:
            self._settle(exact=not self._followed)
        return Taken(tokens, texts, over, unpack_logprobs(len(tokens), packed))

    def cancel(self) -> None:
        """Ends it before its time."""
        with suppress(bindings.HostError):  # it is over, and its value was an error
            bindings.core.cancel(self.number)
        if not self._sequence.closed:
            self._settle(exact=False)

    def _settle(self, exact: bool) -> None:
        """Keeps what belongs to tokens that were taken. `exact`: there is no more. A stop string that the host found
        may have come too late to keep further steps from being run."""
        sequence, kept = self._sequence, self._position + max(self._taken - 1, 0)
        with sequence as queue:
            sequence.pages.settle(queue, kept)
        if exact:
            sequence.computed = kept
        else:
            sequence.rewind(kept)


def _options(sequence: TokenSequence, sampler: Sampler, logprobs: int | None) -> str:
    options: dict[str, Any] = {"adapter": sequence.adapter} if sequence.adapter else {}
    if sampler.looks_back:
        options |= {"recent": sampler.recent(sequence.tokens), "window": sampler.window}
    if logprobs is not None:
        options["logprobs"] = logprobs
    return json.dumps(options) if options else ""
