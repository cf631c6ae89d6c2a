"""What is measured of the inferlets that use one model: tokens by tenant, and times.

Theory of operation. A *request* is an inferlet at one model, from its launch to its end. Its tokens are of three kinds.
*Generated* ones the server has chosen for it: those of decode runs, of `sample` and of `verify`. *Prompt* tokens are
inputs of its forwards, but for the steps of decode runs; where a program asks for each token by a call of its own, what
comes back as an input counts here as well. *Cached* ones are those whose keys it has imported.

Its times are four moments: its launch, the first wave with a forward of it, its first generated token, and its last
one. A request whose program reads distributions and chooses by itself has no generated token, so no times are counted
of it. The time between tokens is measured within a decode run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pie_control.calls.fused.sample import ScoredToken
from pie_control.calls.fused.verify import Verified
from pie_control.calls.values import Completion, Import, Token
from pie_control.ids import Owner
from pie_control.inferlets.lifecycle import Status
from pie_control.registry.entry import Entry
from pie_control.resources.tables.slots import is_token
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.turn import RunTokens

from .histogram import FIRST_SECONDS, LENGTHS, LONG_SECONDS, SHORT_SECONDS, SIZES, Histogram

MOST_TENANTS = 1000
"""Tenants that are counted each by itself."""
OTHER_TENANTS = "(others)"

REASONS = {Status.FINISHED: "stop", Status.TERMINATED: "abort"}
"""Why a request ended, in the words of other servers; every other end is an `error`."""
ENDS = ("stop", "abort", "error")


@dataclass(slots=True)
class Tokens:
    """The tokens of a tenant at a model."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0


class Request:
    """One inferlet at a model. Times are seconds of the monotonic clock; 0: not yet."""

    __slots__ = (*("first", "generated", "last", "launched", "prompt", "run", "run_at", "runs", "scheduled", "tenant"),)

    def __init__(self, launched: float, tenant: Tokens) -> None:
        self.launched = launched
        self.tenant = tenant
        self.scheduled = self.first = self.last = 0.0
        self.prompt = self.generated = 0
        self.run = 0  # future of a decode run; 0: none
        self.run_at = 0.0  # when its last token came
        self.runs: dict[int, float] = {}  # of further ones, by future

    def other_run(self, future: int, now: float) -> float:
        """A token came of a decode run that is not `run`; when the one before it came, 0 if it is the first."""
        before = self.runs.pop(future, 0.0)
        if self.run:
            self.runs[future] = now
        else:
            self.run, self.run_at = future, now
        return before

    def run_ends(self, future: int) -> None:
        """No token of a decode run comes any more."""
        if future == self.run:
            self.run = 0
        else:
            self.runs.pop(future, None)

    def generates(self, count: int, now: float) -> bool:
        """Whether these tokens are its first ones."""
        is_first = not self.generated
        if is_first:
            self.first = now
        self.generated += count
        self.tenant.generated += count
        self.last = now
        return is_first


class ModelRequests:
    """All requests at one model. `find` gives an inferlet that runs, by its number."""

    def __init__(self, find: Callable[[Owner], Entry | None]) -> None:
        self._find = find
        self._requests: dict[Owner, Request] = {}
        self.tenants: dict[str, Tokens] = {}
        self.ended = Counter(dict.fromkeys(ENDS, 0))
        self.first_token = Histogram(FIRST_SECONDS)
        self.between_tokens = Histogram(SHORT_SECONDS)
        self.per_token = Histogram(SHORT_SECONDS)
        self.whole = Histogram(LONG_SECONDS)
        self.queued = Histogram(LONG_SECONDS)
        self.prefill = Histogram(LONG_SECONDS)
        self.decode = Histogram(LONG_SECONDS)
        self.inference = Histogram(LONG_SECONDS)
        self.prompt_length = Histogram(LENGTHS)
        self.generated_length = Histogram(LENGTHS)
        self.wave_tokens = Histogram(SIZES)
        self.batch_commands: dict[str, Histogram] = {}  # by call

    def _request(self, owner: Owner) -> Request | None:
        """None: the inferlet has ended."""
        if found := self._requests.get(owner):
            return found
        entry = self._find(owner)
        if entry is None:
            return None
        found = self._requests[owner] = Request(entry.started, self._tokens_of(entry.standing.tenant.name))
        return found

    def _tokens_of(self, tenant: str) -> Tokens:
        if tenant not in self.tenants and len(self.tenants) >= MOST_TENANTS:
            tenant = OTHER_TENANTS
        return self.tenants.setdefault(tenant, Tokens())

    # ---- what happens ----

    def sent(self, wave: Wave, now: float) -> None:
        """A wave goes to a worker."""
        self.wave_tokens.observe(sum(batch.tokens for batch in wave.batches))
        for batch in wave.batches:
            name = batch.call.name
            if name not in self.batch_commands:
                self.batch_commands[name] = Histogram(SIZES)
            self.batch_commands[name].observe(batch.count)
            if not batch.commands:  # steps of decode runs alone, as in most waves: their sizes need not be worked out
                continue
            for command, size in zip(batch.commands, batch.sizes(), strict=False):
                if request := self._request(command.owner):
                    request.scheduled = request.scheduled or now
                    request.prompt += size
                    request.tenant.prompt += size

    def tokens_came(self, runs: RunTokens, now: float) -> None:
        """A wave gave tokens of decode runs."""
        failed, requests = runs.errors, self._requests
        befores: dict[float, int] = {}  # when the tokens before these came: most of them in one wave
        for row, (owner, future, over) in enumerate(zip(runs.owners, runs.futures, runs.over, strict=True)):
            request = requests.get(owner) or self._request(owner)
            if request is None or row in failed:
                continue
            if future == request.run:  # as a rule there is one: this touches the least memory
                before, request.run_at = request.run_at, now
            else:
                before = request.other_run(future, now)
            if before:
                befores[before] = befores.get(before, 0) + 1
            if over:
                request.run_ends(future)
            if request.generated:
                request.generated += 1
                request.tenant.generated += 1
                request.last = now
            else:
                self._chosen(owner, 1, now)
        for before, count in befores.items():
            self.between_tokens.observe(now - before, count)

    def answered(self, completions: Sequence[Completion], now: float) -> None:
        """Futures have their values."""
        for owner, _, value in completions:
            kind = type(value)
            if kind is Token or kind is ScoredToken:
                self._chosen(owner, 1, now)
            elif isinstance(value, Verified):
                self._chosen(owner, value.accepted + 1, now)
            elif isinstance(value, Import) and (request := self._request(owner)):
                cached = int(np.count_nonzero(is_token(value.positions)))
                request.prompt += cached
                request.tenant.cached += cached

    def _chosen(self, owner: Owner, count: int, now: float) -> None:
        if (request := self._request(owner)) and request.generates(count, now):
            self.first_token.observe(now - request.launched)

    def inferlet_ended(self, entry: Entry, now: float) -> None:
        """Counts its times, if it has used the model and got a token."""
        request = self._requests.pop(entry.number, None)
        if request is None or not request.generated:
            return
        scheduled = request.scheduled or request.first
        self.ended[REASONS.get(entry.status, "error")] += 1
        self.whole.observe(now - request.launched)
        self.queued.observe(scheduled - request.launched)
        self.prefill.observe(request.first - scheduled)
        self.decode.observe(request.last - request.first)
        self.inference.observe(request.last - scheduled)
        self.per_token.observe((request.last - request.first) / max(1, request.generated - 1))
        self.prompt_length.observe(request.prompt)
        self.generated_length.observe(request.generated)
