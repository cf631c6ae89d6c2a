"""The model of a paced worker answers every call, in the form of the protocol, whatever the batching."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from pie_inference.options import OptionError, WorkerOptions
from pie_inference.options.pace import Pace, parse_pace
from pie_inference.protocol import (
    BATCHES,
    Batch,
    CopyEmb,
    Failure,
    ForwardWithScores,
    GetEmbedding,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    GetNextDistResult,
    RunWave,
    SampleResult,
    ShiftKvpage,
    SwapIn,
    SwapOut,
    Verify,
    VerifyResult,
)
from pie_inference.testing.byte_tokenizer import VOCAB_SIZE
from pie_inference.testing.paced_model import PacedModel
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    image_batch,
    indptr,
    ints,
    sample_batch,
)

OPTIONS = WorkerOptions(pages=256, host_pages=8, embeds=2048)


def paced_model(pace: str = "15ms+20us") -> PacedModel:
    return PacedModel("paced", parse_pace(pace), OPTIONS)


def driver() -> Driver:
    return Driver(paced_model().run, "paced")


def output_of(driver: Driver, *tokens: int) -> np.ndarray:
    """The embed that holds the output of a sequence; each call takes the next ones."""
    driver.run(*driver.forward_batch([Extend(Keys(), list(tokens))]))
    driver.outputs += len(tokens)
    return ints([driver.outputs - 1])


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("15ms", Pace(0.015)),
        ("2.5ms+20us", Pace(0.0025, 20e-6)),
        ("1s+0.5ms", Pace(1.0, 0.0005)),
        ("0us", Pace(0.0)),
    ],
)
def test_paces_are_read(text: str, pace: Pace) -> None:
    assert parse_pace(text) == pace


@pytest.mark.parametrize(
    "text", ["", "15", "15 ms", "-1ms", "15ms+", "15ms+1", "15ms+1us+1us", "inf", "1e3ms", "15mss"]
)
def test_other_texts_are_no_paces(text: str) -> None:
    with pytest.raises(OptionError, match="such as 15ms or 15ms\\+20us"):
        parse_pace(text)


def test_a_wave_takes_the_time_that_its_tokens_ask_for() -> None:
    model = paced_model()
    batches = Driver(model.run, "paced").forward_batch([Extend(Keys(), [1, 2, 3]), Extend(Keys(), [4])])
    assert model.run(RunWave(7, "paced", batches)).seconds == pytest.approx(0.015 + 4 * 20e-6)
    assert model.run(RunWave(8, "paced", ())).seconds == pytest.approx(0.015)


def test_every_call_has_an_answer() -> None:
    one = driver()
    embeds = output_of(one, 65, 66)
    embed, forward = one.forward_batch([Extend(Keys(), [68])])
    vision = paced_model().describe()[0].vision
    assert vision is not None
    tile = np.zeros((1, vision.tile_size, vision.tile_size, 3), np.uint8)
    places = ints(range(80, 80 + vision.tile_embeds))
    verify = verify_batch(np.repeat(embeds, 2), ints([5, -1]), [2])
    batches: list[Batch] = [
        SwapOut(ints([1]), ints([0])),
        SwapIn(ints([0]), ints([2])),
        copy_batch(ints([3]), ints([40])),
        CopyEmb(embeds, embeds + 1, indptr([1])),
        ShiftKvpage(ints([41]), ints([3]), indptr([1])),
        image_batch(vision, tile, places, [0]),
        embed,
        ForwardWithScores(**msgspec.structs.asdict(forward)),
        *one.forward_batch([Extend(Keys(), [67])]),
        sample_batch(embeds),
        verify,
        dist_batch(embeds, 3),
        GetLogprobs(embeds, indptr([1]), ints([70])),
        GetNextDist(embeds, ints([3]), np.ones(1, np.float32), indptr([1])),
        GetLogprobs(embeds, indptr([1]), ints([70]), indptr([1])),
        GetEmbedding(embeds, indptr([1]), np.zeros(1, np.bool_), ints([4]), np.ones(1, np.bool_)),
    ]
    assert {type(batch) for batch in batches} == set(BATCHES.values())
    model = paced_model()
    done = model.run(RunWave(1, "paced", tuple(batches)))
    assert done.failures == ()
    assert [type(result) for result in done.results] == [type(batch.zeros()) for batch in batches]


def verify_batch(embeds: np.ndarray, draft: np.ndarray, lengths: Sequence[int]) -> Verify:
    count = len(lengths)
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    return Verify(embeds, indptr(lengths), draft, zeros, ints([0] * count), ones, zeros, np.zeros(len(embeds)))


def test_tokens_do_not_depend_on_the_batching() -> None:
    prompts = [list(b"one prompt"), list(b"another"), list(b"a third one")]
    alone = [driver().generate(Keys(), prompt, 20) for prompt in prompts]
    assert together(prompts, 20) == alone
    assert len({tuple(tokens) for tokens in alone}) == len(prompts)
    for tokens in alone:
        assert bytes(tokens).decode().isprintable()
        assert len(set(tokens)) > 5


def together(prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy tokens behind prompts, all of which are in each batch."""
    one, keys, pending = driver(), [Keys() for _ in prompts], list(prompts)
    tokens: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        batches = one.forward_batch([Extend(*pair) for pair in zip(keys, pending, strict=True)])
        ends = np.cumsum([len(part) for part in pending])
        result = one.ask(SampleResult, *batches, sample_batch(ints(one.outputs + ends - 1)))
        pending = [[token] for token in result.tokens.tolist()]
        tokens = [[*before, *new] for before, new in zip(tokens, pending, strict=True)]
    return tokens


def test_a_token_slot_stands_for_its_token() -> None:
    one = driver()
    embeds = output_of(one, 65)
    token = int(one.ask(SampleResult, sample_batch(embeds, token_slots=ints([9]))).tokens[0])
    by_slot, by_value = (output_of(one, value) for value in (-10, token))
    read = one.ask(SampleResult, sample_batch(np.concatenate([by_slot, by_value]))).tokens
    other = one.ask(SampleResult, sample_batch(output_of(one, token + 1))).tokens
    assert read[0] == read[1] != other[0]


def test_distributions_agree_with_samples() -> None:
    one = driver()
    embeds = output_of(one, 1, 2, 3)
    token = one.ask(SampleResult, sample_batch(embeds)).tokens[0]
    dist = one.ask(GetNextDistResult, dist_batch(np.repeat(embeds, 2), VOCAB_SIZE))
    assert dist.indptr.tolist() == [0, VOCAB_SIZE, 2 * VOCAB_SIZE]
    assert dist.tokens[0] == dist.tokens[VOCAB_SIZE] == token
    assert sorted(dist.tokens[:VOCAB_SIZE]) == list(range(VOCAB_SIZE))
    row = dist.probabilities[:VOCAB_SIZE]
    assert (np.diff(row) < 0).all()
    assert row.sum() == pytest.approx(1)
    assert dist.rest == pytest.approx([0, 0], abs=1e-6)
    few = one.ask(GetNextDistResult, dist_batch(embeds, 5))
    assert few.probabilities.sum() + few.rest[0] == pytest.approx(1)
    logprobs = one.ask(GetLogprobsResult, GetLogprobs(embeds, indptr([5]), few.tokens)).logprobs
    assert np.exp(logprobs) == pytest.approx(few.probabilities)


def test_masks_are_obeyed() -> None:
    one = driver()
    embeds = np.repeat(output_of(one, 1, 2, 3), 3)
    free = int(one.ask(SampleResult, sample_batch(embeds)).tokens[0])
    for only in (0, free, VOCAB_SIZE - 1):
        allowed = np.packbits(np.arange(VOCAB_SIZE) == only, bitorder="little")[None]
        result = one.ask(SampleResult, sample_batch(embeds, allowed_rows=ints([-1, 0, 0]), allowed=allowed))
        assert result.tokens.tolist() == [free, only, only]


def test_drafts_are_accepted_as_far_as_they_are_right() -> None:
    one = driver()
    embeds = np.concatenate([output_of(one, token) for token in (5, 6, 7)])
    right = [int(one.ask(SampleResult, sample_batch(embeds[n : n + 1])).tokens[0]) for n in range(3)]
    rows = np.concatenate([embeds, embeds])
    draft = ints([*right[:2], -1, right[0], right[1] ^ 1, -1])
    result = one.ask(VerifyResult, verify_batch(rows, draft, [3, 3]))
    assert result.accepted.tolist() == [2, 1]
    assert result.tokens.tolist() == [right[2], right[1]]


def test_a_batch_that_breaks_the_protocol_fails_alone() -> None:
    wrong, right = embed_batch(ints([999999]), ints([1])), sample_batch(ints([3]))
    done = paced_model().run(RunWave(1, "paced", (wrong, right)))
    assert done.results[0] is None
    assert isinstance(done.results[1], SampleResult)
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, 0)]
    assert isinstance(done.failures[0], Failure)
    assert done.failures[0].message.startswith("embed_txt: index 999999 is out of bounds")
