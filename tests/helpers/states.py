"""Workers whose models keep a state of each text, with the slots that a control layer would name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from pie_inference.protocol import Batch, Forward, RunWave, SwapIn, SwapOut, WaveDone
from pie_inference.recurrence.interface import NONE
from testing.worker_batches import Driver, Extend, Keys, copy_batch, indptr, ints
from tests.helpers.oracle import VOCAB, Oracle, assert_close, random_tokens


class StateOracle(Oracle):
    """An oracle whose batches keep the state of a text, if the model keeps some, in the slot with the number of the
    text's first page."""

    @property
    def has_states(self) -> bool:
        return self.worker.describe()[0].num_states > 0

    def driver(self) -> Driver:
        if not self.has_states:
            return super().driver()

        def run(wave: RunWave) -> WaveDone:
            batches = tuple(in_first_pages(each) if isinstance(each, Forward) else each for each in wave.batches)
            return self.worker.run(msgspec.structs.replace(wave, batches=batches))

        return Driver(run, "model")


def in_first_pages(batch: Forward) -> Forward:
    """The batch with these slots, if it names none."""
    if batch.state_reads is not None:
        return batch
    slots, counts = batch.kv_pages[batch.kv_indptr[:-1]], np.diff(batch.q_indptr)
    keys = np.add.reduceat(batch.kv_ends - batch.kv_begins, batch.kv_indptr[:-1])
    writes = np.full(len(batch.q_embeds), NONE, np.int32)
    writes[batch.q_indptr[1:] - 1] = slots
    reads = np.where(keys > counts, slots, NONE).astype(np.int32)
    return msgspec.structs.replace(batch, state_reads=reads, state_writes=writes)


def driver_of(oracle: StateOracle, slots: Sequence[tuple[Sequence[int], Mapping[int, int]]]) -> Driver:
    """A driver whose forwards, in turn, read a state for each of their sequences, and leave one behind some of their
    rows: these slots, if the model keeps a state."""
    left = list(slots)

    def run(wave: RunWave) -> WaveDone:
        return oracle.worker.run(msgspec.structs.replace(wave, batches=tuple(map(with_slots, wave.batches))))

    def with_slots(batch: Batch) -> Batch:
        if not isinstance(batch, Forward) or not oracle.has_states:
            return batch
        reads, kept = left.pop(0)
        writes = np.full(len(batch.q_embeds), NONE, np.int32)
        writes[list(kept)] = list(kept.values())
        return msgspec.structs.replace(batch, state_reads=np.array(reads, np.int32), state_writes=writes)

    return Driver(run, "model")


def assert_goes_on_within_drafts(oracle: StateOracle) -> None:
    """As drafts are verified: the text goes on behind the third of five tokens, in two ways at once."""
    tokens, keys, other = random_tokens(50, 5), Keys(), random_tokens(4, 6)
    behind = {row: row - 35 for row in range(45, 50)}
    driver = driver_of(oracle, [([NONE], behind), ([12, 12], {1: 20, 3: 21})])
    driver.logprobs(Extend(keys, tokens), vocab_size=VOCAB)
    keys.slots, keys.position = keys.slots[:48], 48
    branches = [keys, keys.fork()]
    steps = [Extend(branch, other[2 * n : 2 * n + 2]) for n, branch in enumerate(branches)]
    for n, result in enumerate(driver.logprobs(*steps, vocab_size=VOCAB)):
        assert_close(result, oracle.expected(tokens[:48] + other[2 * n : 2 * n + 2])[48:])


def assert_pages_are_shared_and_copied(oracle: StateOracle) -> None:
    """A text of two pages and a half goes on beside one that has copied the half page, and one that has opened an
    export of the first two pages: each by several tokens, and then by one. The text leaves its state at the end of the
    second page, and at its own."""
    tokens, tails, owner = random_tokens(40, 5), [random_tokens(5, seed) for seed in (6, 7, 8)], Keys()
    ends = {3: 12, 7: 13, 11: 14}
    slots = [([NONE], {31: 10, 39: 11}), ([11, 11, 10], ends), ([12, 13, 14], {0: 12, 1: 13, 2: 14})]
    driver = driver_of(oracle, slots)
    driver.logprobs(Extend(owner, tokens), vocab_size=VOCAB)
    copied, opened = owner.fork(), Keys(owner.slots[:32], 32)
    source, copied.slots = copied.slots[32:], copied.slots[:32]
    driver.run(copy_batch(ints(source), ints(driver.add_slots(copied, 8))))
    texts = [owner, copied, opened]
    found = [
        driver.logprobs(*(Extend(keys, tail[part]) for keys, tail in zip(texts, tails, strict=True)), vocab_size=VOCAB)
        for part in (slice(0, 4), slice(4, 5))
    ]
    for n, (length, tail) in enumerate(zip((40, 40, 32), tails, strict=True)):
        both = np.concatenate([results[n] for results in found])
        assert_close(both, oracle.expected(tokens[:length] + tail)[length:])


def assert_goes_on_from_the_host(oracle: StateOracle) -> None:
    """A text whose pages were away goes on with the same bits, by the state, if it has one, that went with the first
    of them. The host has room for 8 pages."""
    driver, keys, more = oracle.driver(), Keys(), random_tokens(5, 6)
    driver.logprobs(Extend(keys, random_tokens(40, 5)), vocab_size=VOCAB)
    pages, back, host = [slot // 16 for slot in keys.slots[::16]], [70, 72, 71], [5, 3, 4]

    def states(source: int, target: int) -> tuple[np.ndarray, ...]:
        return (indptr([1, 0, 0]), ints([source]), ints([target])) if oracle.has_states else ()

    driver.run(SwapOut(ints(pages), ints(host), *states(pages[0], 2)))
    away, other = keys.fork(), Keys()
    [stayed] = driver.logprobs(Extend(keys, more), vocab_size=VOCAB)
    other.slots = list(keys.slots[:1])
    driver.logprobs(Extend(other, random_tokens(45, 7)), vocab_size=VOCAB)
    driver.run(SwapIn(ints(host), ints(back), *states(2, back[0])))
    away.slots = [back[n // 16] * 16 + slot % 16 for n, slot in enumerate(keys.slots[:40])]
    [found] = driver.logprobs(Extend(away, more), vocab_size=VOCAB)
    np.testing.assert_array_equal(found, stayed)
