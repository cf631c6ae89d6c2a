"""Each family equals transformers' own model on random checkpoints that transformers wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import save_reference
from oracle import VOCAB, Oracle, assert_close, load_reference, log_probabilities, random_tokens
from worker_batches import Driver, Extend, Keys, ints

from pie_inference.config import WorkerConfig
from pie_inference.protocol import CopySlots
from pie_inference.worker import Worker

WINDOW = 24
HEADS = {"head_dim": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": WINDOW, "head_dim": 24}),
    "mistral without window": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2 with windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", HEADS),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 4.0, "head_dim": 16}
        | {"final_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 20, "head_dim": 16, "num_hidden_layers": 4}
        | {"sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi3 partly rotated": (
        "Phi3ForCausalLM",
        {"tie_word_embeddings": True, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75}
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3 + [1.5] * 3, "long_factor": [2.0] * 6}},
    ),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True, **HEADS},
    ),
    "qwen3 moe, some layers": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1], **HEADS},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    architecture, config = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    return Oracle(folder, save_reference(folder, architecture, **config))


def test_prefill_and_decode(oracle: Oracle) -> None:
    tokens, keys, driver = random_tokens(100), Keys(), oracle.driver()
    expected = oracle.expected(tokens)
    [prefill] = driver.logprobs(Extend(keys, tokens[:95]), vocab_size=VOCAB)
    assert_close(prefill, expected[:95])
    for n in range(95, 100):
        [decode] = driver.logprobs(Extend(keys, tokens[n : n + 1]), vocab_size=VOCAB)
        assert_close(decode, expected[n : n + 1])


def test_ragged_batches(oracle: Oracle) -> None:
    driver = oracle.driver()
    before, new = [0, 0, 3, 80, 20, 25, 33], [70, 5, 1, 1, 6, 1, 2]
    texts = [random_tokens(a + b, 10 + n) for n, (a, b) in enumerate(zip(before, new, strict=True))]
    sequences = [Keys() for _ in before]
    started = [Extend(keys, text[:a]) for keys, text, a in zip(sequences, texts, before, strict=True) if a]
    driver.logprobs(*started, vocab_size=VOCAB)
    parts = [Extend(keys, text[a:]) for keys, text, a in zip(sequences, texts, before, strict=True)]
    for result, text, start in zip(driver.logprobs(*parts, vocab_size=VOCAB), texts, before, strict=True):
        assert_close(result, oracle.expected(text)[start:])


def test_forks_share_pages(oracle: Oracle) -> None:
    driver, trunk, prompt = oracle.driver(), Keys(), random_tokens(40, 3)
    driver.logprobs(Extend(trunk, prompt), vocab_size=VOCAB)
    branches = [trunk, trunk.fork()]
    source, branches[1].slots = branches[1].slots[32:], branches[1].slots[:32]
    driver.run(CopySlots(ints(source), ints(driver.add_slots(branches[1], 8))))
    texts = [random_tokens(9, 20 + n) for n in range(2)]
    for part in (slice(0, 8), slice(8, 9)):
        steps = [Extend(branch, text[part]) for branch, text in zip(branches, texts, strict=True)]
        results = driver.logprobs(*steps, vocab_size=VOCAB)
    for result, text in zip(results, texts, strict=True):
        assert_close(result, oracle.expected(prompt + text)[-1:])


def test_bfloat16_is_as_near_to_float32_as_the_reference_is(oracle: Oracle) -> None:
    tokens = random_tokens(100, 8)
    truth = oracle.expected(tokens)
    theirs = log_probabilities(load_reference(oracle.folder, torch.bfloat16), tokens)
    worker = Worker(WorkerConfig(oracle.folder, "model", dtype="bfloat16", pages=64, embeds=2048))
    [ours] = Driver(worker.run, "model").logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert deviation(ours, truth) < 1.2 * deviation(theirs, truth)


def deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.square(actual - expected).mean()))
