"""Models equal transformers' own on random checkpoints, however their tokens are batched."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.protocol import Forward, GetLogprobs, GetLogprobsResult, ShiftKvpage
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, copy_batch, embed_batch, indptr, ints
from tests.helpers.oracle import (
    VOCAB,
    Oracle,
    assert_close,
    assert_decodes,
    assert_ragged_batch_equals,
    random_tokens,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no groups": {"num_kv_heads": 4},
    "groups of 4": {"num_kv_heads": 1},
    "groups of 7": {"num_heads": 7, "num_kv_heads": 1, "hidden_size": 112, "head_dim": 16},
    "head_dim": {"head_dim": 32},
    "tied": {"tie_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3": {"rope": LLAMA3},
    "llama3 old keys": {"rope": LLAMA3, "old_rope_keys": True},
    "linear": {"rope": {"rope_type": "linear", "factor": 4.0}},
    "linear old keys": {"rope": {"type": "linear", "factor": 4.0}, "old_rope_keys": True},
    "yarn": {"rope": YARN},
    "sharded": {"shards": 3},
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle.of(make_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_and_decode_equal_the_reference(name: str, tmp_path: Path) -> None:
    assert_decodes(Oracle.of(make_checkpoint(tmp_path, **SHAPES[name])), 147, 3)


@pytest.mark.parametrize("cuts", [(1, 2), (16, 17), (64, 65), (5, 100), (128, 129)])
def test_a_split_prefill_equals_a_whole_one(oracle: Oracle, cuts: tuple[int, ...]) -> None:
    tokens, keys, driver = random_tokens(140, 1), Keys(), oracle.driver()
    edges = [0, *cuts, len(tokens)]
    parts = [driver.logprobs(Extend(keys, tokens[a:b]), vocab_size=VOCAB)[0] for a, b in pairwise(edges)]
    assert_close(np.concatenate(parts), oracle.expected(tokens))


def test_parts_that_were_moved_behind_each_other_equal_a_dense_run_where_they_do_not_see_each_other(
    oracle: Oracle,
) -> None:
    first, second, last = random_tokens(20, 7), random_tokens(13, 8), random_tokens(4, 9)
    one, other, driver = Keys(), Keys(), oracle.driver()
    for keys, part in ((one, first), (other, second)):
        driver.logprobs(Extend(keys, part), vocab_size=VOCAB)
    driver.run(ShiftKvpage(ints(other.slots), ints(range(20, 33)), indptr([13])))
    [result] = driver.logprobs(Extend(Keys(one.slots + other.slots, 33), last), vocab_size=VOCAB)
    visible = np.tri(37, dtype=np.bool_)
    visible[20:33, :20] = False
    assert_close(result, oracle.expected(first + second + last, visible)[33:])


def test_prefill_split_within_one_batch(oracle: Oracle) -> None:
    """Keys are written before any attention runs, so a second command may continue the first in the same batch."""
    tokens, driver = random_tokens(40, 2), oracle.driver()
    keys, rows = Keys(), ints(range(40))
    _, first = driver.forward_batch([Extend(keys, tokens[:25])])
    _, second = driver.forward_batch([Extend(keys, tokens[25:])])
    score = GetLogprobs(rows + driver.outputs, indptr([VOCAB] * 40), ints(list(range(VOCAB)) * 40))
    result = driver.ask(GetLogprobsResult, embed_batch(rows, ints(tokens)), join(first, second), score)
    assert_close(result.logprobs.reshape(40, VOCAB), oracle.expected(tokens))


def join(first: Forward, second: Forward) -> Forward:
    """Both batches as one; the embeds of the second come behind those of the first."""
    count = len(first.q_embeds)

    def together(name: str, shift: int = 0) -> np.ndarray:
        return np.concatenate([getattr(first, name), getattr(second, name) + shift])

    return Forward(
        q_indptr=ints([*first.q_indptr, *(second.q_indptr[1:] + count)]),
        q_embeds=ints(together("q_embeds", count)),
        q_positions=together("q_positions"),
        q_slots=together("q_slots"),
        kv_indptr=ints([*first.kv_indptr, *(second.kv_indptr[1:] + first.kv_indptr[-1])]),
        kv_pages=together("kv_pages"),
        kv_begins=together("kv_begins"),
        kv_ends=together("kv_ends"),
        dense=np.concatenate([first.dense, second.dense]),
        out_rows=ints(together("out_rows", count)),
        out_embeds=ints(together("out_embeds", count)),
    )


def test_mixed_batches(oracle: Oracle) -> None:
    """Long and short prefills, decodes and short continuations of very different lengths in one Forward."""
    before = [0, 0, 3, 150, 20, 16, 90, 1, 0, 40]
    assert_ragged_batch_equals(oracle, before, new=[100, 5, 1, 1, 1, 1, 7, 1, 70, 3])


def test_forks_share_pages(oracle: Oracle) -> None:
    driver, trunk, prompt = oracle.driver(), Keys(), random_tokens(40, 3)
    driver.logprobs(Extend(trunk, prompt), vocab_size=VOCAB)
    branches = [trunk.fork() for _ in range(3)]
    for branch in branches[1:]:  # the last page is not full: each branch but the first needs its own copy
        source, branch.slots = branch.slots[32:], branch.slots[:32]
        driver.run(copy_batch(ints(source), ints(driver.add_slots(branch, 8))))
    texts = [random_tokens(10, 20 + n) for n in range(3)]
    for part in range(10):
        steps = [Extend(branch, text[part : part + 1]) for branch, text in zip(branches, texts, strict=True)]
        results = driver.logprobs(*steps, vocab_size=VOCAB)
    for result, text in zip(results, texts, strict=True):
        assert_close(result, oracle.expected(prompt + text)[-1:])


def test_keys_left_out_are_not_seen(oracle: Oracle) -> None:
    """Windows, sinks and dropped tokens: a key that is not in a run does not exist."""
    driver, keys, tokens = oracle.driver(), Keys(), random_tokens(60, 4)
    driver.logprobs(Extend(keys, tokens[:50]), vocab_size=VOCAB)
    dropped = {3, 4, 15, 16, 17, *range(20, 48)}
    keys.slots = [slot for n, slot in enumerate(keys.slots) if n not in dropped]
    visible = np.tril(np.ones((60, 60), bool))
    visible[50:, sorted(dropped)] = False
    [result] = driver.logprobs(Extend(keys, tokens[50:]), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens, visible)[50:])


@pytest.mark.parametrize("count", [1, 9, 80])
def test_explicit_masks(oracle: Oracle, count: int) -> None:
    driver, keys, tokens = oracle.driver(), Keys(), random_tokens(30 + count, 5)
    plain, plain_tokens = Keys(), random_tokens(30, 6)
    driver.logprobs(Extend(keys, tokens[:30]), Extend(plain, plain_tokens[:29]), vocab_size=VOCAB)
    mask = np.random.default_rng(7).random((count, 30 + count)) < 0.5
    mask[:, 30:] |= np.eye(count, dtype=bool)
    visible = np.tril(np.ones((30 + count, 30 + count), bool))
    visible[30:] = mask
    masked, causal = driver.logprobs(
        Extend(keys, tokens[30:], mask), Extend(plain, plain_tokens[29:]), vocab_size=VOCAB
    )
    assert_close(masked, oracle.expected(tokens, visible)[30:])
    assert_close(causal, oracle.expected(plain_tokens)[29:])


def test_a_query_that_sees_nothing_is_finite(oracle: Oracle) -> None:
    driver, keys = oracle.driver(), Keys()
    [result] = driver.logprobs(Extend(keys, [1, 2, 3], np.zeros((3, 3), bool)), vocab_size=VOCAB)
    assert np.isfinite(result).all()


def test_an_output_can_be_an_input(oracle: Oracle) -> None:
    """The outputs of one Forward are vectors like any other to the next one."""
    driver, keys = oracle.driver(), Keys()
    embed, forward = driver.forward_batch([Extend(keys, [5, 6, 7])])
    driver.run(embed, forward)
    again = Keys()
    _, second = driver.forward_batch([Extend(again, [0, 0, 0])])
    fed_back = Forward(**{**fields_of(second), "q_embeds": second.q_embeds + driver.outputs})
    driver.run(fed_back)
    with torch.inference_mode():
        reference = oracle.reference.model
        hidden = reference(torch.tensor([[5, 6, 7]])).last_hidden_state
        expected = reference(inputs_embeds=hidden).last_hidden_state[0]
    actual = oracle.worker._served.embeds.vectors[driver.outputs : driver.outputs + 3]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def fields_of(message: Forward) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    oracle = Oracle.of(make_checkpoint(tmp_path))
    worker = Worker(WorkerConfig(tmp_path, "model", dtype="bfloat16", pages=64, embeds=2048))
    tokens = random_tokens(100, 8)
    [actual] = Driver(worker.run, "model").logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    error = np.abs(np.exp(actual) - np.exp(oracle.expected(tokens))).sum(-1).mean()
    assert error < 0.1  # of a total of 2 for distributions without overlap
