"""Workers whose models keep a state of each text, with the slots that a control layer would name."""

from __future__ import annotations

import msgspec
import numpy as np

from pie_inference.protocol import Batch, Forward, RunWave, SwapIn, SwapOut, WaveDone
from pie_inference.recurrence.interface import NONE
from testing.worker_batches import Driver, Extend, Keys, indptr, ints
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


def assert_goes_on_within_drafts(oracle: Oracle) -> None:
    """As drafts are verified: the text goes on behind the third of five tokens, in two ways at once."""
    tokens, keys, other = random_tokens(50, 5), Keys(), random_tokens(4, 6)
    slots, reads = [[10, 11, 12, 13, 14], [20, 21]], [[NONE], [12, 12]]

    def run(wave: RunWave) -> WaveDone:
        return oracle.worker.run(msgspec.structs.replace(wave, batches=tuple(map(with_slots, wave.batches))))

    def with_slots(batch: Batch) -> Batch:
        if not isinstance(batch, Forward):
            return batch
        writes = np.full(len(batch.q_embeds), NONE, np.int32)
        ends = batch.q_indptr[1:] - 1 if len(slots) == 1 else np.arange(45, 50)
        writes[ends] = slots.pop(0)
        return msgspec.structs.replace(batch, state_reads=np.array(reads.pop(0), np.int32), state_writes=writes)

    driver = Driver(run, "model")
    driver.logprobs(Extend(keys, tokens), vocab_size=VOCAB)
    keys.slots, keys.position = keys.slots[:48], 48
    branches = [keys, keys.fork()]
    steps = [Extend(branch, other[2 * n : 2 * n + 2]) for n, branch in enumerate(branches)]
    for n, result in enumerate(driver.logprobs(*steps, vocab_size=VOCAB)):
        assert_close(result, oracle.expected(tokens[:48] + other[2 * n : 2 * n + 2])[48:])


def assert_goes_on_from_the_host(oracle: StateOracle) -> None:
    """A text whose pages were away goes on with the same bits, by the state that went with the first of them. The host
    has room for 8 pages."""
    driver, keys, more = oracle.driver(), Keys(), random_tokens(5, 6)
    driver.logprobs(Extend(keys, random_tokens(40, 5)), vocab_size=VOCAB)
    pages, back, host = [slot // 16 for slot in keys.slots[::16]], [70, 72, 71], [5, 3, 4]
    one = indptr([1, 0, 0])
    driver.run(SwapOut(ints(pages), ints(host), one, ints(pages[:1]), ints([2])))
    away, other = keys.fork(), Keys()
    [stayed] = driver.logprobs(Extend(keys, more), vocab_size=VOCAB)
    other.slots = list(keys.slots[:1])
    driver.logprobs(Extend(other, random_tokens(45, 7)), vocab_size=VOCAB)
    driver.run(SwapIn(ints(host), ints(back), one, ints([2]), ints(back[:1])))
    away.slots = [back[n // 16] * 16 + slot % 16 for n, slot in enumerate(keys.slots[:40])]
    [found] = driver.logprobs(Extend(away, more), vocab_size=VOCAB)
    np.testing.assert_array_equal(found, stayed)
