"""Random programs, run under random batching: the invariants of the scheduler. Whether what they are told is right is
a matter of test_meaning.py.

A program is a list of steps that several inferlets issue. The reference runs them one command at a time (`Eager`, one
wave in flight, no interleaving). `FakeModel` hashes what every query sees, so one wrong slot, page, order or mask
changes tokens, and it refuses batches that the protocol forbids (a slot or embed written twice, or read too early).
Address spaces may hear of everything late, by a random number of turns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.calls.arrays import addresses
from pie_control.calls.forward.batch import ForwardCommand
from pie_control.calls.fused.step import StepCommand
from pie_control.calls.input_text.embed_txt import EmbedCommand
from pie_control.calls.kind import Batch, Command, LongCommand, Stage, WorkerCommand
from pie_control.calls.values import Value
from pie_control.errors import CallError
from pie_control.ids import Owner
from pie_control.scheduling import (
    Adaptive,
    Closed,
    DispatchPolicy,
    Eager,
    Event,
    KOnly,
    Opened,
    Reason,
    TOnly,
    Turn,
    WorkerLost,
)
from pie_inference.protocol import EmbedTxt, Failure, Forward, WaveDone
from tests.helpers.scheduling import Inferlet, World, greedy, name_token

POLICIES: list[DispatchPolicy] = [Adaptive(), Adaptive(max_in_flight=3, surplus=0), Eager(), KOnly(5), TOnly(2.0)]
SIZES = {"page_size": 4, "num_pages": 600, "num_embeds": 2000, "max_batch_tokens": 64, "max_context": 2000}


@dataclass
class Branch:
    """A context of an inferlet with its own queue."""

    queue: int
    pages: list[int]
    embeds: int  # first of a few of its own
    length: int = 0
    token: int | None = None  # future that names the next token


@dataclass
class Author:
    """Issues random but valid calls of an inferlet, decided by `choice` and the order of its own calls, never by
    timing."""

    inferlet: Inferlet
    choice: random.Random
    branches: list[Branch] = field(default_factory=list)

    def step(self) -> None:
        if not self.branches:
            self.branches.append(self.open_branch([], 0))
            self.extend(self.branches[0], self.choice.randint(1, 30))
            return
        branch = self.choice.choice(self.branches)
        extend, decode = [self.extend_some] * 2, [self.decode] * 4
        actions = [
            *extend,
            *decode,
            self.step_at_once,
            self.step_at_once,
            self.fork,
            self.trim,
            self.peek,
            self.copy,
            self.chain,
            self.retry,
            self.join,
        ]
        self.choice.choice(actions)(branch)

    @property
    def page_size(self) -> int:
        return self.inferlet.space.model.page_size

    def call(self, name: str, *arguments: Any) -> Any:
        return self.inferlet.call(name, *arguments)

    def open_branch(self, shared: list[int], length: int) -> Branch:
        queue = self.inferlet.create_queue()
        pages = self.call("alloc", queue, "kvpage", 2)
        embeds = self.call("alloc", queue, "emb", 40)
        return Branch(queue, [*shared, pages, pages + 1], embeds, length)

    def flat(self, pages: list[int]) -> list[int]:
        return [number for page in pages for number in (page, 1)]

    def grow(self, branch: Branch, tokens: int) -> None:
        missing = -(-(branch.length + tokens) // self.page_size) - len(branch.pages)
        if missing > 0:
            first = self.call("alloc", branch.queue, "kvpage", missing)
            branch.pages.extend(range(first, first + missing))

    def sample(self, branch: Branch, embed: int = 39) -> int:
        future: int = self.call("sample", branch.queue, branch.embeds + embed, greedy())
        return future

    def run(self, branch: Branch, tokens: list[int]) -> None:
        """Embeds, runs and samples, in one or two forwards; the second one may have an embed command of its own, which
        may fill embeds that the first forward reads."""
        count = len(tokens)
        self.grow(branch, count)
        queue, first = branch.queue, branch.embeds
        positions = list(range(branch.length, branch.length + count))
        cut = self.choice.randint(0, count - 1)
        embedded = self.choice.choice([cut, count]) if cut else count
        rest = first + (cut if embedded == count else self.choice.randint(0, cut))
        self.call("embed_txt", queue, tokens[:embedded], positions[:embedded], [first, embedded])
        pages = self.flat(branch.pages)
        own = pages[2 * (branch.length // self.page_size) :]
        if cut:
            self.call("forward", queue, pages, [first, cut], own, [])
        if embedded < count:
            self.call("embed_txt", queue, tokens[cut:], positions[cut:], [rest, count - cut])
        self.call("forward", queue, pages, [rest, count - cut], own, [first + 39, 1])
        branch.length += count
        branch.token = self.sample(branch)

    def extend(self, branch: Branch, count: int) -> None:
        self.run(branch, [self.choice.randrange(256) for _ in range(count)])

    def extend_some(self, branch: Branch) -> None:
        self.extend(branch, self.choice.randint(1, 38))

    def decode(self, branch: Branch) -> None:
        if branch.token is not None:
            self.run(branch, [name_token(branch.token)])

    def step_at_once(self, branch: Branch) -> None:
        """A few tokens, or the one sampled last, with an output: in one call."""
        named = branch.token is not None and self.choice.random() < 0.5
        tokens = [self.choice.randrange(256) for _ in range(self.choice.choice([1, 1, 2, 20]))]
        if named and branch.token is not None:
            tokens = [name_token(branch.token)]
        count = len(tokens)
        self.grow(branch, count)
        first = branch.embeds + self.choice.choice([0, 18])
        positions, pages = list(range(branch.length, branch.length + count)), self.flat(branch.pages)
        own = pages[2 * (branch.length // self.page_size) :]
        step = branch.queue, tokens, positions, [first, count], pages, own, branch.embeds + 39
        if self.choice.random() < 0.5:
            branch.token = self.call("forward_with_sampling", *step, greedy())
        else:
            self.call("forward_with_dist", *step, 3, 1.0)
        branch.length += count

    def fork(self, branch: Branch) -> None:
        full = branch.length // self.page_size
        if len(self.branches) < 4 and full:
            child = self.open_branch(branch.pages[:full], full * self.page_size)
            self.branches.append(child)
            self.extend(child, self.choice.randint(1, 5))

    def join(self, branch: Branch) -> None:
        """Gives a branch up: its queue ends after what it holds, its embeds and the pages of its own come back."""
        if len(self.branches) < 2:
            return
        self.branches.remove(branch)
        kept = {page for other in self.branches for page in other.pages}
        self.call("dealloc", branch.queue, "kvpage", self.flat([page for page in branch.pages if page not in kept]))
        if self.choice.random() < 0.5:
            self.call("dealloc", branch.queue, "emb", [branch.embeds, 40])
        else:  # another queue overwrites what the commands that wait may read
            heir = self.choice.choice(self.branches)
            self.inferlet.destroy_queue(branch.queue)
            self.call("embed_txt", heir.queue, [9, 9], [0, 1], [branch.embeds, 1, branch.embeds + 39, 1])
            self.call("dealloc", heir.queue, "emb", [branch.embeds, 40])

    def trim(self, branch: Branch) -> None:
        last = (branch.length - 1) // self.page_size
        filled = branch.length - last * self.page_size
        if len(self.branches) == 1 and filled > 1:
            keep = self.choice.randint(1, filled - 1)
            self.call("trim_kvpage", branch.queue, [branch.pages[last], 1], keep)
            branch.length = last * self.page_size + keep

    def peek(self, branch: Branch) -> None:
        embed = branch.embeds + 39
        self.call("get_next_dist", branch.queue, embed, 3, 1.0)
        self.call("get_logprobs", branch.queue, embed, [1, 2])
        self.call("verify", branch.queue, [embed, 1], [], greedy())
        self.call("synchronize", branch.queue)

    def copy(self, branch: Branch) -> None:
        """Copies the tokens of the last page to a new one, which takes its place; the old one is freed."""
        size = self.page_size
        last = (branch.length - 1) // size
        if len(self.branches) > 1 or len(branch.pages) != last + 1:
            return
        new = self.call("alloc", branch.queue, "kvpage", 1)
        old, count = branch.pages[last], branch.length - last * size
        self.call("copy_kvpage", branch.queue, [old * size, count], [new * size, count])
        self.call("dealloc", branch.queue, "kvpage", [old, 1])
        branch.pages[last] = new

    def chain(self, branch: Branch) -> None:
        """Overwrites an embed that was just filled, and feeds an output embed to the next forward."""
        self.grow(branch, 2)
        queue, first = branch.queue, branch.embeds
        pages = self.flat(branch.pages)
        for token in (7, self.choice.randrange(256)):
            self.call("embed_txt", queue, [token], [branch.length], [first, 1])
        self.call("forward", queue, pages, [first, 1], pages, [first + 1, 1])
        self.call("forward", queue, pages, [first + 1, 1], pages, [first + 39, 1])
        branch.length += 2
        branch.token = self.sample(branch)

    def retry(self, branch: Branch) -> None:
        """Runs a token, drops it by trim, and puts another in its place without waiting."""
        size = self.page_size
        if len(self.branches) > 1 or branch.length % size == 0:
            return
        queue, first, position = branch.queue, branch.embeds, branch.length
        pages, last = self.flat(branch.pages), branch.pages[branch.length // size]
        self.call("embed_txt", queue, [1, 2], [position, position], [first, 2])
        self.call("forward", queue, pages, [first, 1], pages, [first + 38, 1])
        self.call("trim_kvpage", queue, [last, 1], position % size)
        self.call("forward", queue, pages, [first + 1, 1], pages, [first + 39, 1])
        for embed in (38, 39):
            self.sample(branch, embed)
        branch.length += 1


class Watch:
    """Looks at all that goes into the scheduler and comes out of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owed: dict[Owner, set[int]] = {}  # futures that were handed on, and are not answered
        self.ended: set[Owner] = set()
        self.waiting: dict[Owner, dict[int, int]] = {}  # parts that no wave took yet, by sequence number
        self.last: dict[tuple[Owner, int], int] = {}  # newest command that was dispatched, by queue

    def went_in(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Opened(owner):
                    self.owed[owner], self.waiting[owner] = set(), {}
                case Closed(owner):
                    self.owed.pop(owner, None)
                    self.ended.add(owner)
                case Command() if event.owner in self.owed:
                    if event.future is not None:
                        self.owed[event.owner].add(event.future)
                    if isinstance(event, WorkerCommand):
                        size = event.size if isinstance(event, LongCommand) else 1
                        others = 2 if isinstance(event, StepCommand) else 0  # it is in three batches
                        self.waiting[event.owner][event.seq] = size + others

    def came_out(self, turn: Turn) -> None:
        for wave in turn.waves:
            (formed,) = [one for one in vars(self.world.scheduler)["_in_flight"] if one.number == wave.wave]
            taken = [(command, parts) for batch in formed.batches for command, parts in _parts(batch)]
            self._check_order(sorted(taken, key=_order))
        for completion in turn.completions:
            assert completion.future in self.owed[completion.owner], "answered twice, or without being asked"
            self.owed[completion.owner].remove(completion.future)
        for ending in turn.endings:
            assert ending.owner not in self.ended, "ended twice"
            self.owed.pop(ending.owner)
            self.ended.add(ending.owner)

    def _check_order(self, taken: list[tuple[WorkerCommand, int]]) -> None:
        """Whether commands of a wave, in the order in which the worker runs them, may run now and together."""
        for command, _ in taken:
            earlier = min(self.waiting[command.owner], default=command.seq)
            assert not command.after or earlier > command.after, "it has to wait for a command that is not dispatched"
        ran: dict[tuple[Owner, int], list[WorkerCommand]] = {}
        for command, parts in taken:
            queue = command.owner, command.queue
            assert self.last.get(queue, 0) <= command.seq, "a command overtook another of its queue"
            for one in ran.setdefault(queue, []):
                assert one is command or one.seq < command.seq or _may_overtake(one, command), (
                    "it touches what the overtaken one uses"
                )
            ran[queue].append(command)
            left = self.waiting[command.owner]
            left[command.seq] -= parts
            assert left[command.seq] >= 0, "a command ran twice"
            if not left[command.seq]:
                del left[command.seq]
        for queue, commands in ran.items():
            self.last[queue] = max(one.seq for one in commands)
            late = [one.seq for one in commands if one.seq < self.last[queue]]
            assert not any(seq in self.waiting[queue[0]] for seq in late), "a part of a command was overtaken"


def _may_overtake(one: WorkerCommand, overtaken: WorkerCommand) -> bool:
    """Whether it makes no difference which of two commands of a queue runs first."""
    if not (isinstance(one, EmbedCommand | StepCommand) and isinstance(overtaken, ForwardCommand)):
        return False
    used = {*addresses(overtaken.inputs), *addresses(overtaken.outputs)}
    return used.isdisjoint(addresses(one.embeds))


def _order(taken: tuple[WorkerCommand, int]) -> int:
    """Batches run in their order, but outputs only read: which of them comes first does not matter."""
    command, _ = taken
    return command.seq if command.call.stage is Stage.OUTPUT else 0


def _parts(batch: Batch[Any]) -> Iterator[tuple[WorkerCommand, int]]:
    """The commands of a batch, and how much of each it holds. Asserts that none of a queue conflicts with another."""
    message = batch.build()
    parts = message.q_indptr[1:] - message.q_indptr[:-1] if isinstance(message, Forward) else [1] * len(batch.commands)
    written: dict[tuple[Owner, int], set[int]] = {}
    for command, count in zip(batch.commands, parts, strict=True):
        embeds = written.setdefault((command.owner, command.queue), set())
        if isinstance(message, Forward):
            assert embeds.isdisjoint(addresses(command.inputs)), "it reads what the same batch writes"
        if isinstance(message, Forward | EmbedTxt):
            outputs = set(addresses(command.outputs if isinstance(message, Forward) else command.embeds))
            assert embeds.isdisjoint(outputs), "it writes what the same batch writes"
            embeds |= outputs
        yield command, int(count)


class Harness(World):
    """A world with authors, whose spaces hear of everything up to `late` turns late."""

    def __init__(self, policy: DispatchPolicy, seed: int, inferlets: int, late: int = 0, **sizes: int) -> None:
        super().__init__(policy, None, None, None, **{**SIZES, **sizes})
        self.gated = False
        self.authors = [Author(self.open(), random.Random(seed + number)) for number in range(inferlets)]
        self.watch = Watch(self)
        delay = random.Random(seed)
        self.lateness = lambda: delay.randint(0, late)

    def turn(self, *events: Event, quiet: bool = True) -> Turn:
        self.watch.went_in([*self.events, *events])
        turn = super().turn(*events, quiet=quiet)
        self.watch.came_out(turn)
        return turn

    def finish(self) -> None:
        """Runs until nothing is left."""
        self.turn(quiet=False)
        for _ in range(10_000):
            self.now += 10.0  # behind every deadline
            self.turn()
            if not self.sent:
                break
            self.answer()
        self.tell()
        assert not self.scheduler.statistics().commands_waiting

    def answers(self) -> list[dict[int, object]]:
        return [{future: _plain(value) for future, value in author.inferlet.answers.items()} for author in self.authors]


def _plain(value: Value | CallError) -> object:
    assert isinstance(value, tuple), value
    return tuple(part.tolist() if hasattr(part, "tolist") else part for part in value)


def run_reference(seed: int, inferlets: int, steps: int) -> list[dict[int, object]]:
    harness = Harness(Eager(max_in_flight=1), seed, inferlets)
    for author in harness.authors:
        for _ in range(steps):
            author.step()
            harness.finish()
    return harness.answers()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pages=st.integers(16 + 12, 16 + 80),
    embeds=st.integers(160, 500),
    late=st.sampled_from([0, 0, 1, 4]),
    lose_worker=st.booleans(),
    policy=st.sampled_from(POLICIES),
    tokens=st.sampled_from([3, 17, 64]),
    rows=st.sampled_from([1, 2, 64]),
)
def test_every_future_is_answered_once_whatever_ends(
    seed: int,
    pages: int,
    embeds: int,
    late: int,
    lose_worker: bool,
    policy: DispatchPolicy,
    tokens: int,
    rows: int,
) -> None:
    """Closes at random moments, evictions for lack of pages and embeds, and the loss of the worker."""
    sizes = {"num_pages": pages, "num_embeds": embeds, "max_batch_tokens": tokens, "max_batch_rows": rows}
    harness = Harness(policy, seed, 5, late, **sizes)
    choice = random.Random(seed)
    for _ in range(80):
        if alive := [author for author in harness.authors if author.inferlet.owner in harness.inferlets]:
            author = choice.choice(alive)
            _try_step(author)
            if choice.random() < 0.03:
                harness.close(author.inferlet)
        harness.now += choice.random()
        harness.turn(quiet=choice.random() < 0.9)
        if harness.sent and choice.random() < 0.5:
            harness.answer()
    if lose_worker:
        harness.turn(WorkerLost("it was killed"))
        harness.tell()
        assert {author.inferlet.owner for author in harness.authors} == harness.watch.ended
        return
    for inferlet in list(harness.inferlets.values()):
        harness.close(inferlet)
    harness.finish()
    assert not harness.watch.owed
    usage = harness.scheduler.statistics()
    assert (usage.pages.free, usage.embeds.free) == (usage.pages.total, usage.embeds.total)
    assert usage.token_slots.free == usage.token_slots.total


def _try_step(author: Author) -> None:
    """A step that may be refused for lack of memory; what was accepted of it is run."""
    with suppress(CallError):
        author.step()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), failing=st.integers(0, 12), late=st.integers(0, 2), whole=st.booleans())
def test_failed_commands_hurt_only_those_who_rely_on_them(seed: int, failing: int, late: int, whole: bool) -> None:
    """One wave fails as a whole, or some of its commands do. Who does not have one of them gets the right tokens."""
    harness = Harness(Adaptive(), seed, 3, late)
    for author in harness.authors:
        for _ in range(4):
            author.step()
    choice = random.Random(seed)
    hurt: set[Owner] = set()
    harness.turn()
    for number in range(200):
        if not harness.sent:
            break
        wave = harness.sent[0]
        done = harness.model.run(harness.sent.popleft())
        if number == failing:
            batches = vars(harness.scheduler)["_in_flight"][0].batches
            places = [(n, m) for n, batch in enumerate(wave.batches) for m in range(batch.count())]
            failed = places if whole else [place for place in places if choice.random() < 0.2]
            hurt = {batches[n].commands[m].owner for n, m in failed}
            results = tuple(None for _ in wave.batches) if whole else done.results
            done = WaveDone(wave.wave, results, 0.0, tuple(Failure(*place, "out of memory") for place in failed))
        harness.turn(done)
    harness.tell()
    assert harness.watch.ended <= hurt
    expected = run_reference(seed, 3, 4)
    for author, right in zip(harness.authors, expected, strict=True):
        one = author.inferlet
        assert one.accepted == set(one.answers)
        if one.owner not in hurt:
            assert {future: _plain(value) for future, value in one.answers.items()} == right
        if one.ending is not None:
            assert one.ending.reason is Reason.FAILED
            assert "out of memory" in str(one.ending.error)
