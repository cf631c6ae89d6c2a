"""Each family equals transformers' own model on random checkpoints that transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.protocol import GetEmbedding, GetEmbeddingResult
from pie_inference.serving.worker import Worker
from testing.worker_batches import Driver, Extend, Keys, ints
from tests.helpers.families import FAMILIES, save_reference
from tests.helpers.oracle import (
    VOCAB,
    Oracle,
    assert_close,
    assert_decodes,
    assert_forks_share_pages,
    assert_keys_move,
    assert_ragged_batch_equals,
    load_reference,
    log_probabilities,
    random_tokens,
)


@pytest.fixture(scope="module", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    architecture, config = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    return Oracle(folder, save_reference(folder, architecture, **config))


def test_prefill_and_decode(oracle: Oracle) -> None:
    assert_decodes(oracle)


def test_ragged_batches(oracle: Oracle) -> None:
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 80, 20, 25, 33], new=[70, 5, 1, 1, 6, 1, 2])


def test_forks_share_pages(oracle: Oracle) -> None:
    assert_forks_share_pages(oracle)


def test_moved_tokens_are_at_their_new_positions(oracle: Oracle) -> None:
    assert_keys_move(oracle)


def test_float64_is_float64_everywhere(oracle: Oracle) -> None:
    """What is kept of a prefix differs by the batches that computed it, in float64 as little as that can."""
    worker = Worker(WorkerConfig(oracle.folder, "model", dtype="float64", pages=64, embeds=2048))
    driver, tokens, pages = Driver(worker.run, "model"), random_tokens(60), worker._served.cache
    whole, parts = Keys(), Keys()
    [result] = driver.logprobs(Extend(whole, tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))
    for part in (tokens[:7], tokens[7:48], tokens[48:]):
        driver.logprobs(Extend(parts, part), vocab_size=VOCAB)
    for layer in range(pages.shape.num_layers):
        one, other = (pages.read(layer, pages.locate(ints(keys.slots))) for keys in (whole, parts))
        assert one.dtype == torch.float64
        assert (one - other).abs().max() < 1e-12 * one.abs().max().clamp(min=1)


def test_bfloat16_is_as_near_to_float32_as_the_reference_is(oracle: Oracle) -> None:
    """Within a fifth; with experts within half, for which of two is a little better is decided by rounding there."""
    reference = load_reference(oracle.folder, torch.bfloat16)
    worker = Worker(WorkerConfig(oracle.folder, "model", dtype="bfloat16", pages=64, embeds=2048))
    ours, theirs = [], []
    for tokens in (random_tokens(100, seed) for seed in (8, 9, 10)):
        truth = oracle.expected(tokens)
        [result] = Driver(worker.run, "model").logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
        ours.append(deviations(result, truth))
        theirs.append(deviations(log_probabilities(reference, tokens), truth))
    chooses = any("experts" in key for key in json.loads((oracle.folder / "config.json").read_text()))
    slack = 1.5 if chooses else 1.2
    assert np.median(ours) < slack * np.median(theirs)


def deviations(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Root of the mean square of each row. Of many, the median counts: a row that went to another expert is far off."""
    roots: np.ndarray = np.sqrt(np.square(actual - expected).mean(-1))
    return roots


@pytest.mark.parametrize(
    ("root", "head"), [("language_model.model", "language_model.lm_head"), ("model.language_model", "lm_head")]
)
@pytest.mark.parametrize("tied", [True, False])
def test_the_text_model_of_a_checkpoint_with_images(root: str, head: str, tied: bool, tmp_path: Path) -> None:
    architecture, settings = FAMILIES["gemma3"]
    reference = save_reference(tmp_path, architecture, **settings, tie_word_embeddings=tied)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", f"{root}.", 1): tensor for name, tensor in tensors.items()}
    if not tied:
        renamed[f"{head}.weight"] = renamed.pop("lm_head.weight")
    save_file(renamed | {"vision_tower.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}, "tie_word_embeddings": tied}
    config["text_config"] = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    oracle, tokens = Oracle(tmp_path, reference), random_tokens(50, 9)
    [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


@pytest.mark.parametrize("code", ["own", "transformers"])
def test_a_head_beside_the_table_is_used_though_the_config_ties_them(code: str, tmp_path: Path) -> None:
    architecture, settings = FAMILIES["qwen2"]
    save_reference(tmp_path, architecture, **settings)
    tensors = load_file(tmp_path / "model.safetensors")
    head = torch.randn(tensors["model.embed_tokens.weight"].shape, generator=torch.Generator().manual_seed(1))
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    oracle, tokens = Oracle(tmp_path, load_reference(tmp_path, torch.float32), model_code=code), random_tokens(50, 9)
    [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


@pytest.mark.parametrize("code", ["own", "transformers"])
def test_a_tied_table_may_be_stored_as_the_head_alone(code: str, tmp_path: Path) -> None:
    reference = save_reference(tmp_path, "Qwen2ForCausalLM", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    assert_decodes(Oracle(tmp_path, reference, model_code=code), 20, 2)


@pytest.mark.parametrize("code", ["own", "transformers"])
def test_the_window_of_a_mistral_is_that_of_the_layers_which_its_config_names(code: str, tmp_path: Path) -> None:
    """As Ministral 8B has it, which transformers takes for a type of its own."""
    architecture, config = FAMILIES["mistral"]
    save_reference(tmp_path, architecture, **config)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"layer_types": ["full_attention", "sliding_attention"]}))
    assert_decodes(Oracle(tmp_path, load_reference(tmp_path, torch.float32), model_code=code))


def test_long_factors_beyond_the_first_context(tmp_path: Path) -> None:
    """transformers uses them for a text that is longer, as this one is."""
    architecture, settings = FAMILIES["phi3 partly rotated"]
    settings = {**settings, "original_max_position_embeddings": 64}
    oracle = Oracle(tmp_path, save_reference(tmp_path, architecture, **settings), max_context=128)
    tokens, keys = random_tokens(100, 10), Keys()
    [result] = oracle.driver().logprobs(Extend(keys, tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


def test_vectors_are_the_last_states_normalized(oracle: Oracle) -> None:
    tokens, driver = random_tokens(60, 9), oracle.driver()
    with torch.inference_mode():
        states = oracle.reference.model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    driver.run(*driver.forward_batch([Extend(Keys(), tokens)]))
    embeds, size = driver.outputs + np.arange(60), states.shape[1]
    batch = GetEmbedding(
        ints([embeds[-1], *embeds]), ints([0, 1, 61]), np.array([False, True]), ints([size, 32]), np.ones(2, np.bool_)
    )
    vectors = driver.ask(GetEmbeddingResult, batch).vectors
    for found, wanted in zip(np.split(vectors, [size]), (states[-1], states.mean(0)[:32]), strict=True):
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), rtol=1e-4, atol=1e-4)
