"""Random programs, run under random batching: the invariants of the scheduler.

A program is a list of steps that several inferlets issue. The reference runs them one command at a time (`Eager`, one
wave in flight, no interleaving). `FakeModel` hashes what every query sees, so one wrong slot, page, order or mask
changes tokens, and it refuses batches that the protocol forbids (a slot or embed written twice, or read too early).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import CallError, Cancelled, WorkerError
from pie_control.resources import Quota
from pie_control.scheduling import (
    Account,
    Adaptive,
    Completion,
    DispatchPolicy,
    Eager,
    Failed,
    KOnly,
    SamplingParams,
    Scheduler,
    TokenValue,
    TOnly,
)
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import Failure, RunWave, WaveDone

REFERENCE = 0x8000_0000
GREEDY = SamplingParams(temperature=0)
POLICIES: list[DispatchPolicy] = [Adaptive(), Adaptive(max_in_flight=3, surplus=0), Eager(), KOnly(5), TOnly(2.0)]


@dataclass
class Branch:
    """A context of an inferlet with its own queue; `pages` are (address, tokens in it)."""

    queue: int
    pages: list[int]
    scratch: int  # first of a few embeds of its own
    length: int = 0
    token: int | None = None  # future that names the next token


@dataclass
class Inferlet:
    """Issues random but valid calls, decided by `choice` and the order of its own calls, never by timing."""

    account: Account
    choice: random.Random
    run_ahead: bool
    branches: list[Branch] = field(default_factory=list)
    futures: int = 0
    accepted: set[int] = field(default_factory=set)
    answers: dict[int, Completion] = field(default_factory=dict)

    def step(self, now: float) -> None:
        if not self.branches:
            self.branches.append(self.open_branch([], 0, now))
            self.extend(self.branches[0], self.choice.randint(1, 30), now)
            return
        branch = self.choice.choice(self.branches)
        extend, decode = [self.extend_some] * 2, [self.decode] * 4
        actions = [*extend, *decode, self.fork, self.trim, self.peek, self.copy, self.chain, self.retry]
        self.choice.choice(actions)(branch, now)

    def open_branch(self, shared: list[int], length: int, now: float) -> Branch:
        queue = self.account.create_queue()
        pages = self.account.alloc_kvpage(queue, 2, now)
        embeds = self.account.alloc_emb(queue, 40, now)
        return Branch(queue, [*shared, pages, pages + 1], embeds, length)

    def future(self) -> int:
        self.futures += 1
        self.accepted.add(self.futures)
        return self.futures

    def flat(self, pages: list[int]) -> list[int]:
        return [number for page in pages for number in (page, 1)]

    def grow(self, branch: Branch, tokens: int, now: float) -> None:
        size = self.account.model.page_size
        missing = -(-(branch.length + tokens) // size) - len(branch.pages)
        if missing > 0:
            first = self.account.alloc_kvpage(branch.queue, missing, now)
            branch.pages.extend(range(first, first + missing))

    def run(self, branch: Branch, tokens: list[int], now: float) -> None:
        """Embeds, runs and samples, in one or two forwards."""
        count = len(tokens)
        self.grow(branch, count, now)
        account, queue, first = self.account, branch.queue, branch.scratch
        positions = list(range(branch.length, branch.length + count))
        account.embed_txt(queue, tokens, positions, [first, count], now)
        pages = self.flat(branch.pages)
        own = pages[2 * (branch.length // account.model.page_size) :]
        cut = self.choice.randint(0, count - 1)
        if cut:
            account.forward(queue, pages, [first, cut], own, [], now)
        account.forward(queue, pages, [first + cut, count - cut], own, [first + 39, 1], now)
        branch.length += count
        branch.token = self.future()
        account.sample(queue, first + 39, GREEDY, 0.5, branch.token, now)

    def extend(self, branch: Branch, count: int, now: float) -> None:
        self.run(branch, [self.choice.randrange(256) for _ in range(count)], now)

    def extend_some(self, branch: Branch, now: float) -> None:
        self.extend(branch, self.choice.randint(1, 38), now)

    def decode(self, branch: Branch, now: float) -> None:
        if branch.token is not None:
            self.run(branch, [REFERENCE | branch.token], now)

    def fork(self, branch: Branch, now: float) -> None:
        size = self.account.model.page_size
        full = branch.length // size
        if len(self.branches) < 4 and full:
            child = self.open_branch(branch.pages[:full], full * size, now)
            self.branches.append(child)
            self.extend(child, self.choice.randint(1, 5), now)

    def trim(self, branch: Branch, now: float) -> None:
        size = self.account.model.page_size
        last = (branch.length - 1) // size
        if len(self.branches) == 1 and branch.length - last * size > 1:
            keep = self.choice.randint(1, branch.length - last * size - 1)
            self.account.trim_kvpage(branch.queue, [branch.pages[last], 1], keep, now)
            branch.length = last * size + keep

    def peek(self, branch: Branch, now: float) -> None:
        self.account.get_next_dist(branch.queue, branch.scratch + 39, 3, 1.0, self.future(), now)
        self.account.get_logprobs(branch.queue, branch.scratch + 39, [1, 2], self.future(), now)

    def copy(self, branch: Branch, now: float) -> None:
        """Copies the tokens of the last page to a new one, which takes its place; the old one is freed."""
        size = self.account.model.page_size
        last = (branch.length - 1) // size
        if len(self.branches) > 1 or len(branch.pages) != last + 1:
            return
        new = self.account.alloc_kvpage(branch.queue, 1, now)
        old, count = branch.pages[last], branch.length - last * size
        self.account.copy_kvpage(branch.queue, [old * size, count], [new * size, count], now)
        self.account.dealloc_kvpage(branch.queue, [old, 1], now)
        branch.pages[last] = new

    def chain(self, branch: Branch, now: float) -> None:
        """Overwrites an embed that was just filled, and feeds an output embed to the next forward."""
        self.grow(branch, 2, now)
        account, queue, first = self.account, branch.queue, branch.scratch
        pages = self.flat(branch.pages)
        for token in (7, self.choice.randrange(256)):
            account.embed_txt(queue, [token], [branch.length], [first, 1], now)
        account.forward(queue, pages, [first, 1], pages, [first + 1, 1], now)
        account.forward(queue, pages, [first + 1, 1], pages, [first + 39, 1], now)
        branch.length += 2
        branch.token = self.future()
        account.sample(queue, first + 39, GREEDY, 0.5, branch.token, now)

    def retry(self, branch: Branch, now: float) -> None:
        """Runs a token, drops it by trim, and puts another in its place without waiting."""
        size = self.account.model.page_size
        if len(self.branches) > 1 or branch.length % size == 0:
            return
        account, queue, first = self.account, branch.queue, branch.scratch
        pages, last = self.flat(branch.pages), branch.pages[branch.length // size]
        position = branch.length
        account.embed_txt(queue, [1, 2], [position, position], [first, 2], now)
        account.forward(queue, pages, [first, 1], pages, [first + 38, 1], now)
        account.trim_kvpage(queue, [last, 1], position % size, now)
        account.forward(queue, pages, [first + 1, 1], pages, [first + 39, 1], now)
        for embed in (38, 39):
            account.sample(queue, first + embed, GREEDY, 0.5, self.future(), now)
        branch.length += 1

    def waits(self) -> bool:
        """Whether it would look at its tokens before going on."""
        return not self.run_ahead and self.accepted != set(self.answers)

    def answer(self, completion: Completion) -> None:
        assert completion.future is not None, completion
        assert completion.future in self.accepted, "answered what was not asked"
        assert completion.future not in self.answers, "answered twice"
        self.answers[completion.future] = completion


class Harness:
    """A scheduler, a worker that answers late, and inferlets."""

    def __init__(self, policy: DispatchPolicy, seed: int, inferlets: int, run_ahead: bool, **model: int) -> None:
        sizes = {"page_size": 4, "num_pages": 600, "num_embeds": 2000, "max_batch_tokens": 64, "max_context": 2000}
        self.model = FakeModel(**{**sizes, **model})  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.model.describe()[0], policy)
        self.sent: deque[RunWave] = deque()
        self.now = 0.0
        self.inferlets = [
            Inferlet(self.scheduler.open(owner, owner), random.Random(seed + owner), run_ahead)
            for owner in range(inferlets)
        ]

    def send(self) -> None:
        while (wave := self.scheduler.next_wave(self.now)) is not None:
            self.sent.append(wave)
            self.check()
        self.answer(self.scheduler.take_completions())

    def receive(self) -> None:
        if self.sent:
            done = self.model.run(self.sent.popleft())
            assert not done.failures, done.failures
            self.answer(self.scheduler.wave_done(done, self.now))
            self.check()

    def answer(self, completions: tuple[Completion, ...]) -> None:
        for completion in completions:
            self.inferlets[completion.owner].answer(completion)

    def check(self) -> None:
        self.scheduler.check_integrity()

    def finish(self) -> None:
        for _ in range(10_000):
            self.now += 10.0  # behind every deadline
            self.send()
            if not self.sent:
                break
            self.receive()
        assert not self.scheduler.statistics().commands_waiting

    def tokens(self) -> list[dict[int, object]]:
        return [
            {future: _plain(done.value) for future, done in inferlet.answers.items()} for inferlet in self.inferlets
        ]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(part.tolist() if hasattr(part, "tolist") else part for part in value)
    return value


def run_reference(seed: int, inferlets: int, steps: int) -> list[dict[int, object]]:
    harness = Harness(Eager(max_in_flight=1), seed, inferlets, True)
    for inferlet in harness.inferlets:
        for _ in range(steps):
            inferlet.step(0.0)
            harness.finish()
    return harness.tokens()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    inferlets=st.integers(1, 4),
    policy=st.sampled_from(POLICIES),
    run_ahead=st.booleans(),
    max_batch_tokens=st.sampled_from([3, 17, 64]),
    max_batch_rows=st.sampled_from([1, 2, 64]),
)
def test_tokens_do_not_depend_on_batching(
    seed: int, inferlets: int, policy: DispatchPolicy, run_ahead: bool, max_batch_tokens: int, max_batch_rows: int
) -> None:
    steps = 12
    limits = {"max_batch_tokens": max_batch_tokens, "max_batch_rows": max_batch_rows}
    harness = Harness(policy, seed, inferlets, run_ahead, **limits)
    order = random.Random(seed)
    left = dict.fromkeys(range(inferlets), steps)
    while left:
        index = order.choice(list(left))
        if not harness.inferlets[index].waits():
            harness.inferlets[index].step(harness.now)
            left[index] -= 1
            if not left[index]:
                del left[index]
        harness.now += order.random()
        if order.random() < 0.5:
            harness.send()
        if order.random() < 0.5 or (index in left and harness.inferlets[index].waits()):
            harness.send()
            harness.receive()
    harness.finish()
    assert all(inferlet.accepted == set(inferlet.answers) for inferlet in harness.inferlets)
    assert harness.tokens() == run_reference(seed, inferlets, steps)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), pages=st.integers(16 + 12, 16 + 80), lose_worker=st.booleans())
def test_every_future_is_answered_once_whatever_ends(seed: int, pages: int, lose_worker: bool) -> None:
    """Closes at random moments, evictions for lack of pages, and the loss of the worker."""
    harness = Harness(Adaptive(surplus=0), seed, 5, True, num_pages=pages)
    choice = random.Random(seed)
    alive = set(range(5))
    for _ in range(80):
        index = choice.choice(sorted(alive)) if alive else 0
        if alive:
            _try_step(harness, index)
        harness.send()
        if choice.random() < 0.5:
            harness.receive()
        ending = {eviction.owner for eviction in harness.scheduler.take_evictions()}
        ending |= {index} if choice.random() < 0.03 else set()
        for owner in ending:
            _close(harness, owner)
        alive -= ending
    if lose_worker:
        harness.answer(harness.scheduler.worker_lost("it was killed"))
    for owner in range(5):
        _close(harness, owner)
    while harness.sent and not lose_worker:
        harness.receive()
    assert all(inferlet.accepted == set(inferlet.answers) for inferlet in harness.inferlets)
    if not lose_worker:
        usage = harness.scheduler.statistics()
        assert (usage.pages.free, usage.embeds.free) == (usage.pages.total, usage.embeds.total)
        assert usage.token_slots.free == usage.token_slots.total


def _try_step(harness: Harness, index: int) -> None:
    """A step that may be refused for lack of memory; what was not accepted is not owed an answer."""
    inferlet = harness.inferlets[index]
    try:
        inferlet.step(harness.now)
    except CallError:
        inferlet.accepted = set(inferlet.answers) | inferlet.account.futures


def _close(harness: Harness, owner: int) -> None:
    account = harness.inferlets[owner].account
    harness.answer(harness.scheduler.close(account, Cancelled("ended")))
    assert harness.scheduler.close(account, Cancelled("ended again")) == ()
    harness.check()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), failing=st.integers(0, 12))
def test_a_failed_batch_ends_those_whose_state_it_spoils(seed: int, failing: int) -> None:
    harness = Harness(Adaptive(), seed, 3, True)
    for inferlet in harness.inferlets:
        for _ in range(4):
            inferlet.step(0.0)
    broken: set[int] = set()
    for number in range(200):
        wave = harness.scheduler.next_wave(0.0)
        if wave is None:
            break
        done = harness.model.run(wave)
        if number == failing:
            commands = [(number, n) for number, batch in enumerate(wave.batches) for n in range(batch.count())]
            failures = tuple(Failure(number, n, "out of memory") for number, n in commands)
            done = WaveDone(wave.wave, (None,) * len(wave.batches), 0.0, failures)
        for completion in harness.scheduler.wave_done(done, 0.0):
            if completion.future is None:
                assert completion.owner not in broken, "told twice"
                assert isinstance(completion.value, Failed)
                broken.add(completion.owner)
            else:
                harness.inferlets[completion.owner].answer(completion)
        harness.check()
    for inferlet in harness.inferlets:
        if inferlet.account.owner in broken:
            with pytest.raises(WorkerError, match="out of memory"):
                inferlet.account.create_queue()
        else:
            assert inferlet.accepted == set(inferlet.answers)
        _close(harness, inferlet.account.owner)
        assert inferlet.accepted == set(inferlet.answers)


def test_a_small_queue_of_commands_is_refused_without_effect() -> None:
    harness = Harness(Adaptive(), 0, 1, True)
    scheduler = Scheduler(harness.model.describe()[0], quota=Quota(commands=1))
    account = scheduler.open(0, 0.0)
    queue = account.create_queue()
    account.alloc_kvpage(queue, 1, 0.0)
    before = account.usage()
    with pytest.raises(CallError, match="limit is 1"):
        account.alloc_kvpage(queue, 1, 0.0)
    assert account.usage() == before
    assert isinstance(TokenValue(3).token, int)
