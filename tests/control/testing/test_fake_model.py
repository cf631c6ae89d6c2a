"""The fake model keeps the wire protocol, and its tokens depend on what those of a real one depend on."""

from __future__ import annotations

import numpy as np
import pytest

from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import Batch, GetLogprobs, GetNextDistResult, RunWave, SampleResult, SwapIn, SwapOut
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    indptr,
    ints,
    sample_batch,
)


def fake_driver() -> Driver:
    return Driver(FakeModel().run, "fake")


def test_the_fake_model_depends_on_its_whole_context_in_order() -> None:
    prompt = list(b"the quick brown fox")
    expected = fake_driver().generate(Keys(), prompt, 30)
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, prompt[:7])]))
    assert driver.generate(keys, prompt[7:], 30) == expected
    for changed in (prompt[::-1], prompt[1:], [*prompt[:3], 0, *prompt[4:]]):
        assert fake_driver().generate(Keys(), changed, 30) != expected


def test_the_fake_model_heeds_slots_and_masks() -> None:
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, list(range(20)))]))
    dropped, swapped = keys.fork(), keys.fork()
    del dropped.slots[5]
    swapped.slots[3], swapped.slots[4] = swapped.slots[4], swapped.slots[3]
    copied = keys.fork()
    copied.slots = driver.add_slots(Keys(), 20)
    driver.run(copy_batch(ints(keys.slots), ints(copied.slots)))
    mask = np.ones((1, 21), bool)
    mask[0, 5] = False

    def digest(context: Keys, mask: np.ndarray | None = None) -> bytes:
        row = Extend(context.fork(), [99], mask)
        return driver.logprobs(row, vocab_size=259)[0].tobytes()

    assert digest(keys) == digest(copied) != digest(swapped)
    assert digest(keys, mask) == digest(dropped) != digest(keys)


def test_the_fake_model_swaps_pages() -> None:
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, list(range(20)))]))
    away = keys.fork()
    away.slots = [slot + 100 * 16 for slot in keys.slots]
    first, second = sorted({slot // 16 for slot in keys.slots})
    driver.run(SwapOut(ints([first, second]), ints([9, 3])))
    driver.run(SwapIn(ints([3, 9]), ints([second + 100, first + 100])))
    stayed, came_back = (driver.logprobs(Extend(each, [99]), vocab_size=259)[0] for each in (keys, away))
    assert stayed.tobytes() == came_back.tobytes()


def test_the_fake_model_samples_within_bounds() -> None:
    driver = fake_driver()
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embeds = ints([driver.outputs + 2] * 3)
    dist = driver.ask(GetNextDistResult, dist_batch(embeds[:1], 5))
    allowed = np.packbits(np.arange(259) == 65, bitorder="little")[None]
    result = driver.ask(
        SampleResult,
        sample_batch(
            embeds,
            temperature=np.array([0, 1, 0], np.float32),
            top_k=ints([0, 5, 0]),
            uniform=np.array([0, 0.999, 0]),
            allowed_rows=ints([-1, -1, 0]),
            allowed=allowed,
        ),
    )
    assert result.tokens.tolist() == [dist.tokens[0], dist.tokens[4], 65]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (embed_batch(ints([1, 1]), ints([5, 5])), "written twice"),
        (embed_batch(ints([1]), ints([999])), "outside the vocabulary"),
        (embed_batch(ints([1]), ints([-3])), "token slot 2 is read before"),
        (embed_batch(ints([99999]), ints([1])), "embed numbers are"),
        (copy_batch(ints([1]), ints([2])), "KV slot 1 is read before"),
        (SwapOut(ints([1]), ints([2])), "a page without a filled KV slot"),
        (SwapIn(ints([1]), ints([2])), "a page without a filled host slot"),
        (GetLogprobs(ints([7]), indptr([1]), ints([1])), "embed 7 is read before"),
    ],
)
def test_the_fake_model_refuses_what_the_protocol_forbids(batch: Batch, message: str) -> None:
    done = FakeModel().run(RunWave(1, "fake", (batch, embed_batch(ints([1]), ints([1])))))
    assert done.results == (None, None)
    assert {failure.batch for failure in done.failures} == {0}
    assert message in done.failures[0].message
