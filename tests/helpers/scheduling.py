"""A world in which tests drive the scheduler: inferlets with address spaces, and a fake model that runs the waves.

Whatever an address space hands on becomes an event of the next turn, and what a turn says is told to spaces and
inferlets, as a replica does it. `lateness` says how many turns may stay untold: a space may live in another process.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pie_control.calls import CALLS
from pie_control.calls.core import create_queue, destroy_queue
from pie_control.calls.exports.sharing import cancel_fetch
from pie_control.calls.fused import decode
from pie_control.calls.kind import Bind, Command
from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.calls.values import Completion, Token, Value
from pie_control.errors import CallError
from pie_control.ids import REFERENCE_BIT, Owner
from pie_control.resources.address_space import NO_ADAPTERS, AddressSpace
from pie_control.resources.contention import ContentionPolicy
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.quotas import Ledger, Quota
from pie_control.scheduling import (
    Adaptive,
    Closed,
    DispatchPolicy,
    DispatchState,
    Ending,
    Event,
    HostQuiet,
    Opened,
    RunTokens,
    Scheduler,
    Turn,
)
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import AdapterLoaded, Batch, LoadAdapter, ModelDescription, RunWave, WaveDone
from tests.helpers.integrity import check_scheduler

LAST: dict[str, tuple[Any, ...]] = {
    "sample": ([], "", 0),
    "decode": (None, 0),
    "forward": ([], [], [], "", None, 0, 0.0, False),
}
"""Arguments at the end of a call that tests may leave out."""
GOES_ON = "continue_with_dist"
READ_RANGES = ("get_next_dist", "get_logprobs")
WAVE_SECONDS = 0.001
"""What the worker says that each wave took."""
SIZES: dict[str, Any] = {
    "page_size": 4,
    "num_pages": 200,
    "num_embeds": 1024,
    "num_token_slots": 512,
    "max_batch_tokens": 64,
}


def describe(**sizes: int) -> ModelDescription:
    """A small model."""
    return fake_model(**sizes).describe()[0]


def fake_model(**sizes: int) -> FakeModel:
    options: dict[str, Any] = {**SIZES, **sizes}
    return FakeModel("fake", **options)


def greedy() -> Sampler:
    return Sampler(SamplingParams(temperature=0), 0)


def name_token(future: int) -> int:
    """The token that a sample gives, as a later command names it."""
    return REFERENCE_BIT | future


def completed(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with the last ones that a test left out; one embed may stand for a range of it."""
    if name in READ_RANGES and isinstance(arguments[1], int):
        arguments = arguments[0], [arguments[1], 1], *arguments[2:]
    if name not in LAST:
        return arguments
    missing = _length(name) - len(arguments)
    return (*arguments, *LAST[name][len(LAST[name]) - missing :])


@functools.cache
def _length(name: str) -> int:
    """How many arguments a call takes, without space and future."""
    issue: Any = CALLS[name].issue
    return len(inspect.signature(issue).parameters) - 2


def beside(
    tokens: Sequence[int] = (),
    positions: Sequence[int] = (),
    mask: Sequence[int] = (),
    adapter: str = "",
    sampler: Sampler | None = None,
    k: int = 0,
    temperature: float = 0.0,
    scores: bool = False,
) -> tuple[Any, ...]:
    """The last arguments of `forward`."""
    return tokens, positions, mask, adapter, sampler, k, temperature, scores


def _step(
    queue: int, tokens: Any, positions: Any, inputs: Any, context: Any, pages: Any, output: int, *rest: Any
) -> tuple[Any, ...]:
    sampler, k, temperature = (rest[0], 0, 0.0) if len(rest) == 1 else (None, *rest)
    read = beside(tokens, positions, sampler=sampler, k=k, temperature=temperature)
    return queue, context, inputs, pages, [output, 1], *read


FORWARDS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "forward_with_mask": lambda *given: (*given[:5], *beside(mask=given[5])),
    "forward_with_adapter": lambda queue, adapter, *lists: (queue, *lists, *beside(adapter=adapter)),
    "forward_with_scores": lambda *given: (*given, *beside(scores=True)),
    "forward_with_adapter_and_scores": lambda queue, adapter, *lists: (
        *(queue, *lists),
        *beside(adapter=adapter, scores=True),
    ),
    "forward_with_dist": _step,
    "forward_with_sampling": _step,
}
"""The functions of the SDK over `forward`, by name: its arguments from theirs."""
MEMORY: dict[str, Callable[..., tuple[str, tuple[Any, ...]]]] = {
    "alloc_kvpage": lambda queue, count, reserved=False: (
        "alloc",
        (queue, "reserved-kvpage" if reserved else "kvpage", count),
    ),
    "alloc_emb": lambda queue, count: ("alloc", (queue, "emb", count)),
    "dealloc_kvpage": lambda queue, pages: ("dealloc", (queue, "kvpage", pages)),
    "dealloc_emb": lambda queue, embeds: ("dealloc", (queue, "emb", embeds)),
}
"""The functions of the SDK over `alloc` and `dealloc`, by name: the call and its arguments from theirs."""


class ModelRunner(Protocol):
    """Runs waves: a fake model of some sizes, or a real one."""

    def describe(self) -> tuple[ModelDescription, ...]: ...

    def run(self, wave: RunWave) -> WaveDone: ...

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded: ...


class Inferlet:
    """Makes calls, and hears what becomes of them. The calls with short names are about one queue, one range of pages
    and one of embeds, which `allocate` makes."""

    queue = 1
    pages = 0  # first
    embeds = 0  # first
    num_pages = 0

    def __init__(
        self,
        owner: Owner,
        model: ModelDescription,
        quota: Quota,
        hand_on: Callable[[Any], None],
        adapters: Mapping[str, int] = NO_ADAPTERS,
    ) -> None:
        self.owner = owner
        self.space = AddressSpace(owner, model, Ledger(quota), hand_on, adapters)
        self.futures = 0  # made
        self.queues = 0  # made
        self.accepted: set[int] = set()  # futures
        self.answers: dict[int, Value | CallError] = {}
        self.tokens: dict[int, list[int]] = {}  # of decode runs, by future
        self.cancelled: set[int] = set()  # decode runs and imports
        self.ending: Ending | None = None

    def call(self, name: str, *arguments: Any) -> Any:
        """Makes a call by its name; gives the number of its future, if it has one."""
        if name in FORWARDS:
            name, arguments = "forward", FORWARDS[name](*arguments)
        if name in MEMORY:
            name, arguments = MEMORY[name](*arguments)
        arguments = completed(name, arguments)
        call = CALLS[name]
        assert call.issue is not None, f"{name} is no call"
        if call.value is None:
            return call.issue(self.space, *arguments)
        if name == "forward" and call.result_bytes is not None and call.result_bytes(*arguments[1:]) is None:
            return call.issue(self.space, *arguments, 0)
        return self._ask(call.issue, *arguments)

    def _ask(self, issue: Callable[..., Any], *arguments: Any) -> int:
        """The future of a call that is accepted."""
        future = self.futures + 1
        issue(self.space, *arguments, future)
        self.futures = future
        self.accepted.add(future)
        return future

    def create_queue(self) -> int:
        create_queue.issue(self.space, self.queues + 1)
        self.queues += 1
        return self.queues

    def destroy_queue(self, queue: int) -> None:
        destroy_queue.issue(self.space, queue)

    def hear(self, completion: Completion) -> None:
        if completion.future in self.cancelled:
            return
        assert completion.future in self.accepted, "answered what was not asked"
        assert completion.future not in self.answers, "answered twice"
        self.answers[completion.future] = completion.value
        self.space.answered(completion.future, completion.value)

    def hear_run(self, future: int, token: int, over: bool, error: CallError | None) -> None:
        """A row of `Turn.runs`. A run that is over is answered with all its tokens."""
        if future in self.cancelled:
            assert not self.space.run_advanced(future, [token], over), "a cancelled run goes on"
            return
        assert future not in self.answers, "a run went on behind its end"
        if error is not None:
            self.hear(Completion(self.owner, future, error))
            return
        assert self.space.run_advanced(future, [token], over)
        self.tokens.setdefault(future, []).append(token)
        if over:
            self.answers[future] = tuple(self.tokens[future])

    def cancel(self, future: int) -> bool:
        """Ends a decode run; False if it is over already, as far as it knows."""
        if not decode.cancel(self.space, future):
            return False
        self.accepted.remove(future)
        self.cancelled.add(future)
        return True

    def cancel_import(self, future: int) -> bool:
        """Takes nothing of what it gives; False if that has come already."""
        cancel_fetch(self.space, future)
        if future in self.answers:
            return False
        self.accepted.remove(future)
        self.cancelled.add(future)
        return True

    def token(self, future: int) -> int:
        """What a sample gave."""
        answer = self.answers[future]
        assert isinstance(answer, Token), answer
        return answer.token

    def end(self, ending: Ending) -> None:
        """What was not answered has its error."""
        assert self.ending is None, "ended twice"
        self.ending = ending
        self.space.end(ending.error)
        self.answers |= dict.fromkeys(self.accepted - self.answers.keys(), ending.error)

    def held(self, resource: Resource) -> int:
        """As it counts itself."""
        usage = self.space.usage()
        return {PAGES: usage.pages, EMBEDS: usage.embeds}[resource]

    # ---- calls with short names ----

    def allocate(self, pages: int, embeds: int) -> None:
        self.create_queue()
        self.num_pages = pages
        self.pages = self.call("alloc", self.queue, "kvpage", pages) if pages else 0
        self.embeds = self.call("alloc", self.queue, "emb", embeds) if embeds else 0

    def embed(self, position: int, count: int = 1, at: int = 0, queue: int = 1, tokens: Sequence[int] = ()) -> None:
        positions = list(range(position, position + count))
        self.call("embed_txt", queue, tokens or [65] * count, positions, [self.embeds + at, count])
        self.take_as_outputs(self.embeds + at, count)

    def take_as_outputs(self, first: int, count: int = 1) -> None:
        """Tests of batching and order read embeds without the forward that a real program has to run first."""
        self.space.embeds.is_output[first : first + count] = b"\1" * count

    def forward(self, at: int = 0, count: int = 1, output: int | None = None, queue: int = 1) -> None:
        pages = [self.pages, self.num_pages]
        outputs = [] if output is None else [self.embeds + output, 1]
        self.call("forward", queue, pages, [self.embeds + at, count], pages, outputs)

    def sample(self, at: int, queue: int = 1) -> int:
        future: int = self.call("sample", queue, self.embeds + at, greedy())
        return future

    def step(self, position: int, count: int = 1, tokens: Sequence[int] = ()) -> int:
        """Embeds tokens, runs them and samples the next one at embed 63."""
        self.embed(position, count, tokens=tokens)
        self.forward(0, count, 63)
        return self.sample(63)


class Gate:
    """A policy that is asked only while all inferlets wait: so tests say what goes into a wave, turn by turn."""

    def __init__(self, policy: DispatchPolicy) -> None:
        self.policy = policy
        self.is_open = True

    @property
    def max_commands(self) -> int | None:
        return self.policy.max_commands

    def should_send(self, state: DispatchState, now: float) -> bool:
        return self.is_open and self.policy.should_send(state, now)

    def portion(self, state: DispatchState) -> int | None:
        return self.policy.portion(state)

    def deadline(self, state: DispatchState) -> float | None:
        return self.policy.deadline(state)


class World:
    """A scheduler, its worker, and inferlets, numbered from 1 on. While it is `gated`, waves are formed only in quiet
    turns. One turn of `check_every` is followed by a check of all that the scheduler keeps."""

    check_every = 1

    def __init__(
        self,
        policy: DispatchPolicy | None = None,
        contention: ContentionPolicy | None = None,
        quota: Quota | None = None,
        model: ModelRunner | None = None,
        **sizes: int,
    ) -> None:
        self.gate = Gate(policy or Adaptive())
        self.gated = True
        self.may_fail = False  # commands on the worker
        self.model = model or fake_model(**sizes)
        self.description = self.model.describe()[0]
        self.meters = Meters()
        self.scheduler = Scheduler(self.description, self.gate, contention, meters=self.meters)
        self.now = 0.0
        self.events: list[Event] = []  # of the next turn
        self.sent: deque[RunWave] = deque()  # not answered yet
        self.inferlets: dict[Owner, Inferlet] = {}  # not closed, and not told of their end
        self.lateness: Callable[[], int] = lambda: 0
        self._untold: deque[Turn] = deque()
        self._quota = quota or Quota()
        self.opened = 0  # inferlets
        self.turns = 0
        self.adapters: dict[str, int] = {}  # numbers

    def load_adapters(self, folders: Mapping[str, Path]) -> None:
        """For inferlets that are opened from now on."""
        for number, (name, folder) in enumerate(folders.items()):
            loaded = self.model.load_adapter(LoadAdapter(number, str(folder)))
            assert not loaded.error, loaded.error
            self.adapters[name] = number

    # ---- inferlets ----

    def open(self, pages: int = 0, embeds: int = 0, standing: Standing = DEFAULT_STANDING) -> Inferlet:
        """A new inferlet, younger than those before; with a queue, pages and embeds if these are asked for."""
        self.opened += 1
        inferlet = Inferlet(self.opened, self.description, self._quota, self.hand_on, self.adapters)
        self.inferlets[inferlet.owner] = inferlet
        self.events.append(Opened(inferlet.owner, float(inferlet.owner), standing))
        if pages or embeds:
            inferlet.allocate(pages, embeds)
        return inferlet

    def hand_on(self, event: Event) -> None:
        assert not isinstance(event, Command) or event.fits(self.description), event
        self.events.append(event)

    def close(self, inferlet: Inferlet) -> None:
        """The inferlet ends by itself."""
        if self.inferlets.pop(inferlet.owner, None) is not None:
            self.events.append(Closed(inferlet.owner))

    # ---- turns ----

    def turn(self, *events: Event, quiet: bool = True) -> Turn:
        """A turn with what has happened and with these events; `quiet`: all inferlets wait."""
        taken = [*self.events, *events, *([HostQuiet()] if quiet else [])]
        self.events.clear()
        self.gate.is_open = quiet or not self.gated
        turn = self.scheduler.turn(self.now, taken)
        self.turns += 1
        if self.turns % self.check_every == 0:
            check_scheduler(self.scheduler)
            self._check_quotas()
        self.sent.extend(turn.waves)
        self._untold.append(turn)
        self.tell(self.lateness())
        return turn

    def _check_quotas(self) -> None:
        """What is bound and what is promised never exceed what spaces count, nor that a quota."""
        accounts = vars(self.scheduler)["_accounts"]
        for owner, inferlet in self.inferlets.items():
            if owner not in accounts:
                continue  # it has ended, and has not been told
            waiting = [one for queue in accounts[owner].queues.values() for one in queue.commands]
            holdings = accounts[owner].holdings
            for resource in (PAGES, EMBEDS):
                binds = [one for one in waiting if isinstance(one, Bind) and one.resource is resource]
                promised = sum(one.count for one in binds if not _granted(holdings, one))
                assert holdings.binding(resource).bound + promised <= inferlet.held(resource), resource
                assert inferlet.held(resource) <= self._quota.limit(resource), resource

    def tell(self, untold: int = 0) -> None:
        """Tells all but the last turns to whom they concern."""
        while len(self._untold) > untold:
            turn = self.on_its_way(self._untold.popleft())
            self._tell_runs(turn.runs)
            for progress in turn.progress:
                if inferlet := self.inferlets.get(progress.owner):
                    inferlet.space.progressed(*progress[1:])
            for completion in turn.completions:
                if inferlet := self.inferlets.get(completion.owner):
                    inferlet.hear(completion)
            for ending in turn.endings:
                if inferlet := self.inferlets.pop(ending.owner, None):
                    inferlet.end(ending)

    def _tell_runs(self, runs: RunTokens) -> None:
        rows = zip(runs.owners, runs.futures, runs.tokens, runs.over, strict=True)
        for row, (owner, future, token, over) in enumerate(rows):
            if inferlet := self.inferlets.get(owner):
                inferlet.hear_run(future, token, over, runs.errors.get(row))

    def on_its_way(self, turn: Turn) -> Turn:
        """What inferlets hear of a turn."""
        return turn

    def send(self) -> RunWave | None:
        """The wave that a turn sends; None if it sends none."""
        waves = self.turn().waves
        assert len(waves) <= 1, "several waves at once"
        return waves[0] if waves else None

    def run(self) -> WaveDone:
        """The worker's answer to the oldest wave that was sent. Waves take equally long, whatever the clock says."""
        done = msgspec.structs.replace(self.model.run(self.sent.popleft()), seconds=WAVE_SECONDS)
        assert self.may_fail or not done.failures, done.failures
        return done

    def answer(self) -> Turn:
        """The worker answers the oldest wave."""
        return self.turn(self.run(), quiet=False)

    def drain(self) -> list[RunWave]:
        """Runs waves until nothing is left to run; gives those that were sent meanwhile."""
        waves = list(self.turn().waves)
        while self.sent:
            waves += self.turn(self.run()).waves
        return waves

    def some_turns(self, choice: random.Random) -> None:
        """Some turns, or none; not all waves are answered."""
        for _ in range(choice.choice([0, 0, 1, 2, 3])):
            self.now += 1.0
            self.turn(quiet=choice.random() < 0.6)
            if self.sent and choice.random() < 0.5:
                self.answer()

    def finish(self) -> None:
        """Runs until nothing moves any more, and tells everybody."""
        for _ in range(5000):
            self.now += 10.0
            turn = self.turn()
            if self.sent:
                self.answer()
            elif not turn.waves and turn.deadline is None:
                break
        self.tell()


def _granted(holdings: Holdings, command: Bind) -> bool:
    """Whether an allocation is bound though its queue has not heard of it."""
    return command.seq in holdings.requests and holdings.requests[command.seq].granted


def by_kind(wave: RunWave | None) -> dict[type[Batch], Any]:
    """The batches of a wave."""
    return {type(batch): batch for batch in wave.batches} if wave else {}
