"""Random programs at a model that keeps a state of each text, against one that runs all again."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from pie_control.calls.exports.sharing import fetched
from pie_control.calls.fused.verify import Verified
from pie_control.calls.values import Import, Token
from pie_control.errors import CallError, Exhausted, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.resources.kinds import STATES
from pie_control.resources.quotas import Quota
from pie_control.resources.tables.states import MOST_PIECES
from pie_control.testing.fake_model import FakeModel, hash_key, mix
from pie_inference.protocol import Forward
from pie_inference.recurrence.batches import runs_of
from pie_inference.recurrence.interface import NONE
from pie_inference.testing import byte_tokenizer
from tests.control.scheduling.test_prefixes import ask, found, offer, packed
from tests.helpers.scheduling import SIZES, Inferlet, World, beside, greedy

SIZE = 4  # slots of a page
CPU = torch.device("cpu")
POWERS = np.multiply.accumulate(np.full(1024, 0x9E3779B97F4A7C15, np.uint64))
TOKENS = mix(np.arange(byte_tokenizer.VOCAB_SIZE))
PROGRAMS = int(os.environ.get("PIE_STATE_PROGRAMS", "40"))


def behind(state: np.uint64, token: np.uint64) -> np.uint64:
    """The state behind a token, which depends on all before it and their order."""
    return np.uint64(mix(np.array([state], np.uint64) * np.uint64(3) + token)[0])


class ModelWithStates(FakeModel):
    """Its outputs depend on the state of their text, too. It knows only the slots that a batch names."""

    def __init__(self, slots: int, **sizes: int) -> None:
        super().__init__("fake", **{**SIZES, "page_size": SIZE, **sizes})
        self._description = msgspec.structs.replace(
            self._description, num_states=slots, states_by_row=True, state_bytes=2 * 8 * SIZE
        )
        self.pool = mix(np.arange(slots))  # of texts before

    def _forward(self, batch: Forward) -> None:
        runs = runs_of(batch, len(self.pool), CPU)
        inputs = self._embeds.read(batch.q_embeds)
        super()._forward(batch)
        after, written = np.zeros(len(inputs), np.uint64), self.pool.copy()
        for n, read in enumerate(runs.reads.tolist()):
            state = np.uint64(0) if read == NONE else self.pool[read]
            for row in range(batch.q_indptr[n], batch.q_indptr[n + 1]):
                after[row] = state = behind(state, inputs[row])
                if (slot := int(runs.writes[row])) != NONE:
                    written[slot] = state
        self.pool = written
        self._embeds.values[batch.out_embeds] ^= after[batch.out_rows]


def next_token(tokens: list[int]) -> int:
    """The most probable one behind a text, by running all of it again."""
    state = np.uint64(0)
    for token in tokens:
        state = behind(state, TOKENS[token])
    keys = hash_key(TOKENS[tokens], np.arange(len(tokens)))
    output = mix(np.array([np.sum(keys * POWERS[: len(keys)])]))[0] ^ state
    return int((mix(output ^ TOKENS) >> np.uint64(11)).argmax())


@dataclass(eq=False)
class Text:
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    has_state: bool = True  # that nobody keeps

    def ranges(self) -> list[int]:
        return [number for page in self.pages for number in (page, 1)]

    def end(self, length: int) -> End:
        """The place behind so many tokens."""
        return End(tuple(self.pages[: -(-length // SIZE)]), length)


class End(NamedTuple):
    """A place behind the tokens in pages."""

    pages: tuple[int, ...]
    length: int

    def slots(self) -> set[int]:
        return set([page * SIZE + slot for page in self.pages for slot in range(SIZE)][: self.length])


@dataclass(eq=False)
class Running:
    """A text that a decode run goes on with."""

    text: Text
    future: int
    expected: list[int]
    kept: bool  # the state that it began with


@dataclass(eq=False)
class Draft:
    """Tokens behind a text, of which some are not what comes."""

    text: Text
    future: int
    tokens: list[int]
    right: int


RUN_QUEUE, RUN_OUTPUT, RUN_INPUT = 3, 48, 49
"""Of decode runs; nobody else uses them."""
DRAFTED, CHECKED, MOST_DRAFTED = 50, 56, 6
"""Embeds of drafts, and how many."""


class Program:
    """One inferlet that runs texts in two queues, and knows what each forward must give."""

    def __init__(self, world: World, seed: random.Random) -> None:
        self.random = seed
        self.inferlet: Inferlet = world.open(0, CHECKED + MOST_DRAFTED)
        self.inferlet.create_queue()
        self.inferlet.create_queue()
        self.running: Running | None = None
        self.drafted: Draft | None = None
        self.went_on = 0  # from a state within a draft
        self.texts: list[Text] = []
        self.kept: set[End] = set()  # where states are
        self.sealed: set[int] = set()  # pages
        self.imports: dict[int, list[int]] = {}  # the tokens that were asked for, by future
        self.imported = 0
        self.expected: dict[int, Token | Verified] = {}  # by future

    def act(self) -> None:
        if not self.texts or (len(self.texts) < 4 and self.random.random() < 0.15):
            self.texts.append(Text())
        self.end_run(cancel=self.random.random() < 0.1)
        self.take_imports()
        self.end_draft()
        busy = set(self.running.text.pages) if self.running is not None else set()
        texts = [one for one in self.texts if not busy & set(one.pages)]
        if self.drafted is not None:
            texts = [one for one in texts if one is not self.drafted.text]
        if not texts:
            return
        text = self.random.choice(texts)
        acts = [self.run, self.fork, self.keep, self.cut, self.let_go, self.change, self.drop, self.name_wrongly]
        acts += [self.decode, self.export, self.ask, self.draft, self.go_back]
        self.random.choices(acts, [24, 8, 6, 6, 1, 2, 2, 2, 6, 12, 20, 9, 5])[0](text)

    def has_state(self, text: Text) -> bool:
        return text.has_state or text.end(len(text.tokens)) in self.kept

    def run(self, text: Text) -> None:
        """Runs some tokens: kept or not, in one call or in parts, with a token or scores read behind them."""
        pick, call, queue = self.random, self.inferlet.call, self.random.choice([1, 2])
        count = pick.choice([1, 1, 2, 5, 20])
        kept = count > 5 or pick.random() < 0.85
        if not self.own_end(text):
            return
        try:
            while kept and len(text.pages) * SIZE < len(text.tokens) + count:
                text.pages.append(call("alloc", queue, "kvpage", 1))
        except Exhausted:
            self.drop(text)
            return
        tokens, first = pick.choices(range(200), k=count), len(text.tokens)
        first_embed = pick.choice([0, 24])
        inputs, pages = [first_embed, count], text.ranges() if text.pages else []
        positions, output = list(range(first, first + count)), first_embed + 22
        given = queue, pages, inputs, pages if kept else [], [output, 1]
        try:
            if pick.random() < 0.5:
                future = call("forward", *given, *beside(tokens, positions, sampler=greedy()))
            else:
                call("embed_txt", queue, tokens, positions, inputs)
                if kept and count > 1:
                    call("forward", queue, pages, [first_embed, 1], pages, [])
                    call("forward", queue, pages, [first_embed + 1, count - 1], pages, [output, 1])
                else:
                    call("forward", *given)
                future = call("sample", queue, output, greedy())
        except (InvalidState, InvalidArgument):
            assert not self.has_state(text)
            self.drop(text)
            return
        except (Exhausted, QuotaExceeded):
            self.drop(text)
            return
        assert self.has_state(text), "it ran without its state"
        self.expected[future] = Token(next_token(text.tokens + tokens))
        if kept:
            text.tokens += tokens
            text.has_state = True

    def decode(self, text: Text) -> None:
        """Begins a run of some steps behind a token, from a state that is kept or not."""
        pick, call, steps = self.random, self.inferlet.call, self.random.choice([1, 2, 3, 9])
        if self.running is not None or not self.has_state(text) or not self.own_end(text):
            return
        token, first = pick.randrange(200), len(text.tokens)
        try:
            while len(text.pages) * SIZE < first + steps:
                text.pages.append(call("alloc", RUN_QUEUE, "kvpage", 1))
            pages = text.ranges()
            call("embed_txt", RUN_QUEUE, [token], [first], [RUN_INPUT, 1])
            call("forward", RUN_QUEUE, pages, [RUN_INPUT, 1], pages, [RUN_OUTPUT, 1])
        except (Exhausted, QuotaExceeded):
            self.drop(text)
            return
        text.tokens.append(token)
        text.has_state = True
        if kept := pick.random() < 0.3:
            self.keep(text)
        expected: list[int] = []
        while len(expected) < steps:
            expected.append(next_token([*text.tokens, *expected]))
        stop = pick.choice([[], [pick.choice(expected)]])
        given = RUN_OUTPUT, greedy(), RUN_INPUT, first + 1, pages, pages, steps, stop, ""
        try:
            future = call("decode", RUN_QUEUE, *given)
        except (Exhausted, QuotaExceeded):
            return
        if stop:
            expected = expected[: expected.index(stop[0]) + 1]
        self.running = Running(text, future, expected, kept)
        text.has_state = steps == 1 and not kept

    def end_run(self, *, cancel: bool = False) -> None:
        """If it is over, or cancelled, its text has what was delivered."""
        run = self.running
        if run is None:
            return
        over = run.future in self.inferlet.answers
        if not over and not (cancel and self.inferlet.cancel(run.future)):
            return
        self.running, came = None, self.inferlet.tokens.get(run.future, [])
        assert came == (run.expected if over else run.expected[: len(came)])
        text = run.text
        text.tokens += came[:-1]
        text.has_state = (over and (len(came) > 1 or not run.kept)) or text.has_state

    def draft(self, text: Text) -> None:
        """Runs tokens behind a text and checks them."""
        call, queue, count = self.inferlet.call, self.random.choice([1, 2]), self.random.randint(1, MOST_DRAFTED)
        if self.drafted is not None or not self.has_state(text) or not self.own_end(text):
            return
        tokens, right, expected = [self.random.randrange(200)], self.random.randrange(count), []
        while len(tokens) <= count:
            expected.append(next_token(text.tokens + tokens))
            tokens.append((expected[-1] + (len(tokens) == right + 1)) % byte_tokenizer.VOCAB_SIZE)
        tokens.pop()
        first = len(text.tokens)
        try:
            while len(text.pages) * SIZE < first + count:
                text.pages.append(call("alloc", queue, "kvpage", 1))
            pages, outputs = text.ranges(), [CHECKED, count]
            call("embed_txt", queue, tokens, list(range(first, first + count)), [DRAFTED, count])
            call("forward_draft", queue, pages, [DRAFTED, count], pages, outputs, "")
        except (Exhausted, QuotaExceeded):
            self.drop(text)
            return
        future = call("verify", queue, outputs, tokens[1:], greedy())
        self.expected[future] = Verified(right, expected[right])
        self.drafted = Draft(text, future, tokens, right)
        text.has_state = False

    def end_draft(self) -> None:
        """If it was checked, its text has what was right of it."""
        if self.drafted is None or self.drafted.future not in self.inferlet.answers:
            return
        draft, text, self.drafted = self.drafted, self.drafted.text, None
        text.tokens += draft.tokens[: draft.right + 1]
        self.inferlet.call("trim_kvpage", 1, text.ranges(), len(text.tokens))
        length = len(text.tokens)
        self.go_back_to(text, length)
        went_on = text in self.texts and len(text.tokens) == length
        self.went_on += went_on and draft.right < len(draft.tokens) - 1

    def go_back(self, text: Text) -> None:
        """Goes back to the last place where a state is."""
        self.go_back_to(text, self.random.randint(0, len(text.tokens)))

    def go_back_to(self, text: Text, length: int) -> None:
        found = self.inferlet.call("find_state", 1, text.ranges(), length)
        kept = [one.length for one in self.kept if one.length <= length and text.end(one.length) == one]
        assert found >= max(kept, default=0)
        others = {page for other in self.texts if other is not text for page in other.pages}
        end = text.end(found)
        is_shared = end not in self.kept and others & set(end.pages[-1:])  # who goes on there takes others' states away
        if found < len(text.tokens) and (is_shared or (others | self.sealed) & set(text.pages[found // SIZE :])):
            self.drop(text)
            return
        self.inferlet.call("trim_kvpage", 1, text.ranges(), found)
        self.lose({page * SIZE + slot for page in text.pages for slot in range(SIZE)} - text.end(found).slots())
        text.tokens, text.has_state = text.tokens[:found], text.end(found) not in self.kept

    def fork(self, text: Text) -> None:
        """Shares the full pages up to a place where a state is, and copies the tokens of the last one."""
        ends = [one.length for one in self.kept if text.end(one.length) == one]
        length = self.random.choice([len(text.tokens), *ends])
        end, used = text.end(length), length % SIZE
        if len(self.texts) > 6 or not (used or end in self.kept):
            return
        has_state = length == len(text.tokens) and text.has_state
        pages = list(end.pages)
        if used:
            try:
                pages[-1] = self.inferlet.call("alloc", 1, "kvpage", 1)
            except Exhausted:
                return
            self.inferlet.call("copy_kvpage", 1, [end.pages[-1] * SIZE, used], [pages[-1] * SIZE, used])
            has_state |= end in self.kept
        self.texts.append(Text(pages, text.tokens[:length], has_state))

    def keep(self, text: Text) -> None:
        if not text.tokens:
            return
        if not self.has_state(text):
            with pytest.raises(InvalidState, match="keeps a state of each text"):
                self.inferlet.call("keep_state", 1, text.ranges())
            return
        self.inferlet.call("keep_state", self.random.choice([1, 2]), text.ranges())
        text.has_state = False
        self.kept.add(text.end(len(text.tokens)))

    def cut(self, text: Text) -> None:
        """Goes back to a place where a state is."""
        ends = [one for one in self.kept if one.length < len(text.tokens) and text.end(one.length) == one]
        if not ends:
            return
        end = self.random.choice(ends)
        behind = set(text.pages[end.length // SIZE :])
        if behind & self.sealed or any(behind & set(other.pages) for other in self.texts if other is not text):
            return
        self.inferlet.call("trim_kvpage", self.random.choice([1, 2]), text.ranges(), end.length)
        self.lose({page * SIZE + slot for page in text.pages for slot in range(SIZE)} - end.slots())
        unused = text.pages[len(end.pages) :]
        text.pages, text.tokens, text.has_state = list(end.pages), text.tokens[: end.length], False
        if unused:
            self.inferlet.call("dealloc", 2, "kvpage", [number for page in unused for number in (page, 1)])

    def let_go(self, text: Text) -> None:
        end = text.end(len(text.tokens))
        if text.tokens and self.has_state(text):
            self.inferlet.call("drop_state", 1, text.ranges(), len(text.tokens))
            text.has_state = False
            self.kept.discard(end)

    def lose(self, slots: set[int]) -> None:
        """No state that has read these slots is worth anything."""
        self.kept = {one for one in self.kept if one.slots().isdisjoint(slots)}
        for text in self.texts:
            text.has_state &= text.end(len(text.tokens)).slots().isdisjoint(slots)

    def change(self, text: Text) -> None:
        """Empties slots of the text, or writes over them: its state is worth nothing from then on."""
        if len(text.tokens) < 2 or self.sealed & set(text.pages):
            return
        if self.random.random() < 0.5:
            last = len(text.tokens) - 1
            self.inferlet.call("trim_kvpage", 1, text.ranges(), last)
            slot = text.pages[last // SIZE] * SIZE + last % SIZE
            self.inferlet.call("copy_kvpage", 1, [text.pages[0] * SIZE, 1], [slot, 1])
            self.lose({slot})
        else:
            first = text.pages[0] * SIZE
            self.inferlet.call("copy_kvpage", 1, [first + 1, 1], [first, 1])
            self.lose({first})

    def drop(self, text: Text) -> None:
        self.texts.remove(text)
        used = {page for other in self.texts for page in other.pages}
        if own := [page for page in text.pages if page not in used]:
            self.lose({page * SIZE + slot for page in own for slot in range(SIZE)})
            self.inferlet.call("dealloc", 2, "kvpage", [number for page in own for number in (page, 1)])
            self.sealed -= set(own)

    def own_end(self, text: Text) -> bool:
        """The page with the last tokens is a copy, if nobody may write to it. False: there is no room."""
        place, used = divmod(len(text.tokens), SIZE)
        if not used or text.pages[place] not in self.sealed:
            return True
        old, has_state = text.pages[place], text.end(len(text.tokens)) in self.kept
        try:
            new = self.inferlet.call("alloc", 1, "kvpage", 1)
        except Exhausted:
            self.drop(text)
            return False
        self.inferlet.call("copy_kvpage", 1, [old * SIZE, used], [new * SIZE, used])
        text.pages[place] = new
        if has_state:
            self.kept.add(text.end(len(text.tokens)))
        if not any(old in other.pages for other in self.texts):
            self.lose({old * SIZE + slot for slot in range(SIZE)})
            self.inferlet.call("dealloc", 2, "kvpage", [old, 1])
            self.sealed.discard(old)
        return True

    def export(self, text: Text) -> None:
        """By name, or as a beginning."""
        if not text.tokens:
            return
        by_keys = self.random.random() < 0.4
        end = text.end(len(text.tokens))
        pages = [number for page in end.pages for number in (page, 1)]
        given = (pages, packed(text.tokens), "") if by_keys else (self.random.choice("ab"), pages, packed(text.tokens))
        call = self.inferlet.call
        try:
            call("export_prefix" if by_keys else "export_kvpage", self.random.choice([1, 2]), *given)
        except (InvalidState, InvalidArgument):
            assert not self.has_state(text)
            return
        assert self.has_state(text), "it was exported without its state"
        self.sealed |= set(end.pages)
        self.kept.add(end)
        text.has_state = False
        if by_keys:  # those at ends of pages before are exported, too
            starts = range(SIZE, end.length, SIZE)
            self.kept.update(text.end(one) for one in starts if call("find_state", 1, text.ranges(), one) == one)

    def ask(self, text: Text) -> None:
        """For an export of any program, or a beginning of a text of its own that it goes on with."""
        if self.random.random() < 0.5:
            future = self.inferlet.call("import_kvpage", 2, self.random.choice("ab"))
            self.imports[future] = []
        elif text.tokens:
            tokens = [*text.tokens, *self.random.choices(range(200), k=SIZE)]
            future = self.inferlet.call("import_prefix", 2, packed(tokens), "")
            self.imports[future] = tokens

    def take_imports(self) -> None:
        for future in [one for one in self.imports if one in self.inferlet.answers]:
            tokens, answer = self.imports.pop(future), self.inferlet.answers[future]
            if not isinstance(answer, Import):
                continue
            try:
                first, count = fetched(self.inferlet.space, future)
            except (Exhausted, QuotaExceeded):
                continue
            if count:
                tokens = answer.tokens.tolist() or tokens[: int((answer.positions >= 0).sum())]
                text = Text(list(range(first, first + count)), tokens, False)
                self.texts.append(text)
                self.sealed |= set(text.pages)
                self.kept.add(text.end(len(tokens)))
                self.imported += 1

    def name_wrongly(self, text: Text) -> None:
        """Contexts that are not the text, in order, are refused, and nothing changes."""
        if len(text.pages) < 2 or len(text.tokens) <= SIZE or not self.has_state(text):
            return
        self.inferlet.call("embed_txt", 1, [1], [900], [47, 1])
        pages = text.ranges()
        wrongs = [pages[2:], [*pages[2:4], *pages[:2], *pages[4:]]]
        for wrong in wrongs + [pages[:2]] * (self.inferlet.call("find_state", 1, pages, SIZE) != SIZE):
            with pytest.raises(InvalidState, match="keeps a state of each text"):
                self.inferlet.call("forward", 1, wrong, [47, 1], [], [])
        self.inferlet.call("mask_kvpage", 1, pages, [1, 1])
        with pytest.raises(InvalidState, match="with no token hidden"):
            self.inferlet.call("forward", 1, pages, [47, 1], [], [])
        self.inferlet.call("mask_kvpage", 1, pages, [])

    def check(self) -> int:
        """All that was answered."""
        for future, value in self.inferlet.answers.items():
            if self.inferlet.ending is None:
                assert isinstance(value, NotFound) or not isinstance(value, CallError), value
            if isinstance(value, Token | Verified) and future in self.expected:
                assert value == self.expected[future]
        return len(self.inferlet.answers)


@pytest.mark.parametrize("seed", range(4))
def test_no_result_differs_from_running_all_again(seed: int) -> None:
    answers = imported = went_on = 0
    for number in range(PROGRAMS // 4):
        pick = random.Random(seed * 1_000_003 + number)
        world = World(
            model=ModelWithStates(
                pick.choice([5, 9, 40]), num_pages=pick.choice([60, 300]), max_batch_tokens=pick.choice([8, 64])
            )
        )
        programs = [Program(world, pick) for _ in range(2)]
        for _ in range(pick.randrange(10, 60)):
            program = pick.choice(programs)
            if program.inferlet.ending is None:
                program.act()
            if pick.random() < 0.4:
                world.turn()
                while world.sent and pick.random() < 0.7:
                    world.answer()
        world.drain()
        answers += sum(program.check() for program in programs)
        imported += sum(program.imported for program in programs)
        went_on += sum(program.went_on for program in programs)
    assert answers > 3 * (PROGRAMS // 4)
    assert imported >= PROGRAMS // 20
    assert went_on > PROGRAMS // 40


def test_a_state_counts_as_the_pages_of_its_size() -> None:
    world = World(model=ModelWithStates(4), quota=Quota(pages=5))
    inferlet = world.open(2, 8)
    inferlet.embed(0)
    inferlet.forward()
    assert inferlet.space.usage().pages == 2 + 2
    world.drain()
    states = world.scheduler.statistics().states
    assert (states.used, states.total) == (1, 4)
    inferlet.call("embed_txt", 1, [1], [0], [1, 1])
    page = inferlet.call("alloc", 1, "kvpage", 1)
    with pytest.raises(QuotaExceeded, match="2 more asked for, the limit is 5"):
        inferlet.call("forward", 1, [], [1, 1], [page, 1], [])
    inferlet.call("dealloc", 1, "kvpage", [inferlet.pages, 2])
    world.drain()
    assert world.scheduler.memory.usage()[STATES].used == 0
    inferlet.call("forward", 1, [], [1, 1], [page, 1], [])


def test_masks_are_refused() -> None:
    world = World(model=ModelWithStates(4))
    inferlet = world.open(2, 8)
    inferlet.embed(0)
    inferlet.forward(output=2)
    inferlet.embed(1)
    pages = [inferlet.pages, 2]
    with pytest.raises(InvalidArgument, match="leave the mask out"):
        inferlet.call("forward_with_mask", 1, pages, [0, 1], pages, [], [1, 0, 2])


def test_a_decode_run_takes_the_state_along() -> None:
    world = World(model=ModelWithStates(4))
    inferlet = world.open(4, 8)
    pages, text = [inferlet.pages, 4], [65, 66]
    inferlet.embed(0, 2, tokens=text)
    inferlet.forward(0, 2, output=2)
    expected: list[int] = []
    for _ in range(6):
        expected.append(next_token([*text, *expected]))
    stop = expected[3]
    run = inferlet.call("decode", 1, inferlet.embeds + 2, greedy(), inferlet.embeds + 3, 2, pages, pages, 9, [stop], "")
    with pytest.raises(InvalidState, match="there is no state at the end"):
        inferlet.call("keep_state", 1, pages)
    world.drain()
    assert inferlet.answers[run] == tuple(expected[:4])
    assert inferlet.space.states.owned == 1
    given = [stop], [5], [inferlet.embeds + 4, 1], pages, pages, inferlet.embeds + 5, greedy()
    future = inferlet.call("forward_with_sampling", 1, *given)
    world.drain()
    assert inferlet.token(future) == expected[4]
    run = inferlet.call("decode", 1, inferlet.embeds + 5, greedy(), inferlet.embeds + 3, 6, pages, pages, 9, [], "")
    world.turn()
    inferlet.cancel(run)
    world.drain()
    assert inferlet.space.states.owned == 0, "nobody knows what it has read"


def test_a_fork_inside_a_page_has_the_state_and_runs_nothing_again() -> None:
    world = World(model=ModelWithStates(4))
    inferlet = world.open(2, 8)
    text = [65, 66, 67, 68, 69, 70]
    inferlet.embed(0, 6, tokens=text)
    inferlet.forward(0, 6)
    page = inferlet.call("alloc", 1, "kvpage", 1)
    inferlet.call("copy_kvpage", 1, [(inferlet.pages + 1) * SIZE, 2], [page * SIZE, 2])
    assert inferlet.space.states.owned == 1
    futures = []
    for last, token in ((page, 80), (inferlet.pages + 1, 90)):
        pages = [inferlet.pages, 1, last, 1]
        given = [6, 1], pages, pages, 7, greedy()
        futures.append(inferlet.call("forward_with_sampling", 1, [token], [6], *given))
    assert inferlet.space.states.owned == 2
    waves = world.drain()
    assert [inferlet.token(future) for future in futures] == [next_token([*text, token]) for token in (80, 90)]
    forwards = [batch for wave in waves for batch in wave.batches if isinstance(batch, Forward)]
    assert sum(len(batch.q_embeds) for batch in forwards) == 6 + 2


def filled(world: World, pages: int, text: list[int]) -> Inferlet:
    """An inferlet that has run a text."""
    inferlet = world.open(pages, 32)
    inferlet.embed(0, len(text), tokens=text)
    inferlet.forward(0, len(text))
    return inferlet


def goes_on(inferlet: Inferlet, pages: list[int], text: list[int], token: int) -> int:
    """The future of the token behind a text in these pages, and one more token."""
    output = [inferlet.call("alloc", inferlet.queue, "kvpage", 1), 1]
    given = [inferlet.embeds, 1], [*pages, *output], output, inferlet.embeds + 1, greedy()
    return int(inferlet.call("forward_with_sampling", inferlet.queue, [token], [len(text)], *given))


@pytest.mark.parametrize("by_name", [False, True])
def test_who_has_the_same_beginning_runs_its_own_tokens_alone(by_name: bool) -> None:
    world, text = World(model=ModelWithStates(4)), list(range(65, 77))
    maker = filled(world, 3, text)
    if by_name:
        maker.call("export_kvpage", 1, "beginning", [maker.pages, 3], packed(text))
    else:
        offer(maker, 3, text)
    other = world.open(0, 32)
    future = other.call("import_kvpage", 1, "beginning") if by_name else ask(other, [*text, 90, 91, 92, 93, 94])
    world.drain()
    pages = list(found(other, future))
    assert pages[1] == 3
    assert other.space.states.owned == 1
    makers = goes_on(maker, [maker.pages, 3], text, 80)
    others = [goes_on(other, pages, text, token) for token in (90, 91)]
    forwards = [batch for wave in world.drain() for batch in wave.batches if isinstance(batch, Forward)]
    assert sum(len(batch.q_embeds) for batch in forwards) == 3, "tokens of the beginning ran again"
    assert maker.token(makers) == next_token([*text, 80])
    assert [other.token(one) for one in others] == [next_token([*text, token]) for token in (90, 91)]
    world.close(maker)
    other.call("dealloc", 1, "kvpage", pages)
    world.drain()
    states = world.scheduler.statistics().states
    assert states.used == 1, "the one of the export"


def test_a_beginning_is_found_up_to_the_last_page_with_a_state() -> None:
    """Another inferlet can leave one where the first one has left none, though its pages are there."""
    world, text = World(model=ModelWithStates(9)), list(range(65, 77))
    maker = filled(world, 3, text)
    offer(maker, 3, text)
    branch = [*text[:8], 100, 101, 102, 103]
    other = world.open(0, 32)
    missed = ask(other, branch)
    world.drain()
    assert found(other, missed)[1] == 0
    second = filled(world, 2, branch[:8])
    offer(second, 2, branch)
    world.drain()
    world.close(second)
    future = ask(other, branch)
    whole = ask(other, text)
    world.drain()
    assert found(other, whole)[1] == 3
    pages = list(found(other, future))
    assert pages[1] == 2
    token = goes_on(other, pages, branch[:8], 100)
    world.drain()
    assert other.token(token) == next_token(branch[:9])


def test_a_beginning_may_end_within_a_page() -> None:
    world, text = World(model=ModelWithStates(9)), list(range(65, 75))
    for end in (9, 10):  # two that have the same pages before
        maker = filled(world, 3, text[:end])
        maker.call("export_prefix", 1, [maker.pages, 3], packed(text[:end]), "")
        world.drain()
        world.close(maker)
    other = world.open(0, 32)
    asked = {
        10: ask(other, [*text, 90, 91]),
        9: ask(other, [*text[:9], 90, 91]),
        0: ask(other, [*text[:8], 90, 91, 92, 93]),
    }
    world.drain()
    for length, future in asked.items():
        answer = other.answers[future]
        assert isinstance(answer, Import)
        assert answer.positions[answer.positions >= 0].tolist() == list(range(length))
        pages = list(found(other, future))
        assert pages[1] == -(-length // SIZE)
        if length:
            token = goes_on(other, pages, text[:length], 90)
            world.drain()
            assert other.token(token) == next_token([*text[:length], 90])
    states = world.scheduler.statistics().states
    world.close(other)
    world.drain()
    assert world.scheduler.statistics().states.used == 2 < states.used


def test_states_of_exports_make_room() -> None:
    world, text = World(model=ModelWithStates(2)), list(range(65, 73))
    for number in range(3):
        maker = filled(world, 2, text)
        maker.call("export_kvpage", 1, f"{number}", [maker.pages, 2], packed(text))
        world.drain()
        assert maker.ending is None
        world.close(maker)
    world.drain()
    assert len(world.scheduler.memory.exports) == 2


def test_without_a_state_behind_it_a_text_is_not_exported() -> None:
    world, text = World(model=ModelWithStates(4)), list(range(65, 77))
    maker = filled(world, 3, text)
    with pytest.raises(InvalidState, match="there is no state at the end"):
        offer(maker, 2, text)
    with pytest.raises(InvalidState, match="no state to be exported"):
        maker.call("export_kvpage", 1, "empty", [maker.call("alloc", 1, "kvpage", 1), 1], "")


def drafted(inferlet: Inferlet, count: int) -> list[int]:
    """A text of two tokens in four pages, and a draft of `count` tokens behind it."""
    pages = [inferlet.pages, 4]
    inferlet.embed(0, 2, tokens=[65, 66])
    inferlet.forward(0, 2)
    inferlet.call("embed_txt", 1, list(range(70, 70 + count)), list(range(2, 2 + count)), [inferlet.embeds + 2, count])
    inferlet.call("forward_draft", 1, pages, [inferlet.embeds + 2, count], pages, [], "")
    return pages


def test_a_draft_leaves_states_as_long_as_there_is_plenty_of_them() -> None:
    world = World(model=ModelWithStates(8))
    inferlet = world.open(4, 8)
    pages = drafted(inferlet, 6)
    last = [pages[0], 1, pages[0] + 1, 1]
    inferlet.call("trim_kvpage", 1, pages, 7)
    with pytest.raises(InvalidState, match="go on from there when what reads the outputs of the draft has answered"):
        inferlet.call("keep_state", 1, last)
    assert [inferlet.call("find_state", 1, pages, length) for length in (1, 2, 7)] == [0, 2, 2]
    world.drain()
    assert world.scheduler.memory.usage()[STATES].used == 1 + 4, "of six that are free, two are for others"
    assert [inferlet.call("find_state", 1, pages, length) for length in (2, 3, 6, 7)] == [2, 3, 6, 6]
    inferlet.call("trim_kvpage", 1, pages, 5)
    inferlet.call("forward_with_sampling", 1, [80], [5], [6, 1], pages, pages, 7, greedy())
    world.drain()
    assert world.scheduler.memory.usage()[STATES].used == inferlet.space.states.owned == 1
    assert [inferlet.call("find_state", 1, pages, length) for length in (5, 6)] == [0, 6]


def test_drafts_stand_in_no_line() -> None:
    world = World(model=ModelWithStates(2))
    inferlet = world.open(4, 8)
    pages = drafted(inferlet, 3)
    world.drain()
    assert inferlet.ending is None
    assert [inferlet.call("find_state", 1, pages, length) for length in (4, 5)] == [2, 5]


def test_drafts_that_cannot_run_are_refused() -> None:
    world = World(model=ModelWithStates(4, max_batch_tokens=8))
    inferlet = world.open(3, 9)
    inferlet.embed(0, 9)
    with pytest.raises(InvalidArgument, match="9 inputs are more than 8: draft fewer tokens"):
        inferlet.call("forward_draft", 1, [], [0, 9], [inferlet.pages, 3], [], "")
    with pytest.raises(InvalidArgument, match="without output pages leaves nothing"):
        inferlet.call("forward_draft", 1, [], [0, 2], [], [], "")
    with pytest.raises(InvalidArgument, match="at least one input embed"):
        inferlet.call("forward_draft", 1, [], [], [inferlet.pages, 3], [], "")


def test_a_text_in_many_pieces_is_not_copied_without_end() -> None:
    """Each end of it on which a state hangs is gone through whenever a slot changes: 4,000 took seconds."""
    pages, length = 600, 800
    world = World(model=ModelWithStates(9, num_pages=pages + 400, max_batch_tokens=1024))
    inferlet = world.open(pages, length)
    inferlet.embed(0, length)
    inferlet.forward(0, length)
    first = inferlet.pages * SIZE
    holes = range(first + length, first + pages * SIZE, 2)
    scattered = [number for slot in holes[:length] for number in (slot, 1)]
    inferlet.call("copy_kvpage", 1, [first, length], scattered)
    text, last = [inferlet.pages + length // SIZE, length * 2 // SIZE], holes[length - 1]
    assert inferlet.call("find_state", 1, text, length) == length
    *free, one_more = range(first + length + 1, first + length + 2 * MOST_PIECES // length, 2)
    for slot in free:
        inferlet.call("copy_kvpage", 1, [last, 1], [slot, 1])
    with pytest.raises(QuotaExceeded, match=f"in \\d+ pieces, and {length} more .* limit is {MOST_PIECES}: give texts"):
        inferlet.call("copy_kvpage", 1, [last, 1], [one_more, 1])
    assert inferlet.call("find_state", 1, text, length - 1) == 0
    world.drain()
    assert inferlet.ending is None
