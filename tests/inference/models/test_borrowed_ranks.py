"""Ranks share models by transformers' code as its plan says, and compute what one rank does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.assembly.plan import read_model
from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import Ranks, SingleRank, run_ranks
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.models.borrowed.ours import shared_states
from pie_inference.protocol import ForwardWithScores, ForwardWithScoresResult, LoadAdapter
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.borrowed import WHOLE_STATES, WITH_STATE, save_small
from tests.helpers.families import WINDOW, save_reference
from tests.helpers.oracle import VOCAB, Oracle, assert_close, assert_ragged_batch_equals, random_tokens
from tests.helpers.states import (
    StateOracle,
    assert_goes_on_from_the_host,
    assert_goes_on_within_drafts,
    assert_pages_are_shared_and_copied,
    in_first_pages,
)
from tests.helpers.tiers import WHOLE, corpus
from tests.inference.models.test_borrowed import MODELS
from tests.inference.models.test_borrowed_calls import OPTIONS, put_adapter
from tests.inference.models.test_borrowed_state import MODELS as STATEFUL

SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: MODELS[name] for name in ("olmo3", "cohere", "starcoder2", "glm4", "qwen2 moe", "gemma4", "gemma3n")},
    "sinks": ("GraniteSWAForCausalLM", {"sliding_window": WINDOW}),
    "stacked": (
        "Llama4ForCausalLM",
        {"num_local_experts": 4, "intermediate_size_mlp": 96, "head_dim": 16, "attention_chunk_size": 512},
    ),
    "compressed": (
        "YoutuForCausalLM",
        {"q_lora_rank": 32, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
        | {"num_key_value_heads": 4},
    ),
    "a plan by usual names": ("StableLmForCausalLM", {"use_qkv_bias": True}),
    "experts by usual names": MODELS["gpt oss"],
    "layers that nobody names": ("PersimmonForCausalLM", {"intermediate_size": 96}),
    "a vocabulary that is not divided": ("ArceeForCausalLM", {"vocab_size": 273}),
}
TEXTS = [random_tokens(length, length) for length in (40, 3, 17)]


def logprobs(worker: Worker | WorkerGroup, adapters: list[int] | None = None, vocab: int = VOCAB) -> np.ndarray:
    """Of three texts, whose last token runs alone."""
    driver, keys = Driver(worker.run, "model"), [Keys() for _ in TEXTS]
    first = [Extend(each, text[:-1]) for each, text in zip(keys, TEXTS, strict=True)]
    then = [Extend(each, text[-1:]) for each, text in zip(keys, TEXTS, strict=True)]
    results = [driver.logprobs(*parts, vocab_size=vocab, adapters=adapters) for parts in (first, then)]
    return np.concatenate([*results[0], *results[1]])


WITH_ADAPTERS = ["olmo3", "cohere", "qwen2 moe", "layers that nobody names"]


def config_of(oracle: Oracle, **options: Any) -> WorkerConfig:
    return WorkerConfig(oracle.folder, "model", dtype="float32", pages=64, embeds=2048, **options)


@pytest.mark.parametrize("name", corpus(SHARED, lambda name: "as with adapters" if name in WITH_ADAPTERS else name))
def test_two_ranks_compute_what_one_does(name: str, tmp_path: Path) -> None:
    architecture, settings = SHARED[name]
    oracle = Oracle(tmp_path, save_reference(tmp_path, architecture, **settings))
    vocab, config = settings.get("vocab_size", VOCAB), config_of(oracle)
    alone = logprobs(oracle.worker, vocab=vocab)
    held = list[int]()

    def run(ranks: Ranks) -> np.ndarray:
        worker = Worker(config, ranks)
        held.append(worker.describe()[0].weight_bytes)
        return logprobs(worker, vocab=vocab)

    for together in run_ranks(2, run):
        assert_close(together, alone)
    assert held[0] // 2 < 0.85 * oracle.worker.describe()[0].weight_bytes


QUANTIZED = ["olmo3", "starcoder2", "qwen2 moe", "experts by usual names", "stacked", "layers that nobody names"]


@pytest.mark.parametrize("name", QUANTIZED)
def test_two_ranks_with_quantized_weights(name: str, tmp_path: Path) -> None:
    """Scales of a layer that is split by its inputs are those of fewer numbers, so results are not the same."""
    exact = Oracle(tmp_path, save_reference(tmp_path, SHARED[name][0], **SHARED[name][1]))
    config, expected = config_of(exact, quantization="int8"), logprobs(exact.worker)
    error = np.abs(logprobs(Worker(config)) - expected).mean()
    first, second = run_ranks(2, lambda ranks: logprobs(Worker(config, ranks)))
    assert_close(first, second)
    assert 0 < np.abs(first - expected).mean() < 1.2 * error


@pytest.mark.parametrize("name", WITH_ADAPTERS)
def test_two_ranks_with_an_adapter(name: str, tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, save_reference(tmp_path, SHARED[name][0], **SHARED[name][1]))
    assert put_adapter(oracle, tmp_path / "adapter")
    adapters = [1, -1, 1]

    def run(ranks: Ranks) -> np.ndarray:
        worker = Worker(config_of(oracle), ranks)
        assert not worker.load_adapter(LoadAdapter(1, str(tmp_path / "adapter"))).error
        return logprobs(worker, adapters)

    alone = logprobs(oracle.worker, adapters)
    assert np.abs(alone - logprobs(oracle.worker)).max() > 0.01
    for together in run_ranks(2, run):
        assert_close(together, alone)


def assert_keeps_states(oracle: StateOracle) -> None:
    """Batches, forks, copies, exports, drafts and the host, against transformers' forward."""
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 20, 25], new=[40, 1, 1, 6, 1])
    assert_pages_are_shared_and_copied(oracle)
    assert_goes_on_within_drafts(oracle)
    assert_goes_on_from_the_host(oracle)


def scores_of(oracle: StateOracle) -> np.ndarray:
    """How much attention each token of a text gets."""
    driver = oracle.driver()
    embed, forward = driver.forward_batch([Extend(Keys(), TEXTS[0])])
    asked = ForwardWithScores(**msgspec.structs.asdict(in_first_pages(forward)))
    return driver.ask(ForwardWithScoresResult, embed, asked).scores


def on_ranks(size: int, oracle: StateOracle, states: int = 1) -> list[int]:
    """Has ranks do all that, each with its part of the states: together, these are as large as `states` whole ones.
    How many bytes of weights the ranks have together."""
    scores, whole = scores_of(oracle), oracle.worker.describe()[0]

    def run(ranks: Ranks) -> int:
        own = copy.copy(oracle)
        own.worker = Worker(own.config, ranks)
        assert_keeps_states(own)
        assert_close(scores_of(own), scores)
        about = own.worker.describe()[0]
        assert about.state_bytes == states * whole.state_bytes
        assert size * own.worker._served.states.pool.nbytes == about.num_states * about.state_bytes
        assert size * host_bytes(own.worker) == about.num_host_states * about.state_bytes
        return own.worker.describe()[0].weight_bytes

    return run_ranks(size, run)


@pytest.mark.parametrize("kind", corpus(WITH_STATE, lambda kind: kind in ("lfm2", "minimax", "zamba")))
def test_two_ranks_keep_states(kind: str, tmp_path: Path) -> None:
    oracle = StateOracle(tmp_path, save_small(kind, tmp_path), **OPTIONS)
    assert (
        max(on_ranks(2, oracle, 2 if kind in WHOLE_STATES else 1)) // 2
        < 0.85 * oracle.worker.describe()[0].weight_bytes
    )


@WHOLE
@pytest.mark.parametrize("name", STATEFUL)
def test_four_ranks_keep_states(name: str, tmp_path: Path) -> None:
    architecture, settings = STATEFUL[name]
    reference = save_reference(tmp_path, architecture, **settings | {"num_key_value_heads": 4})
    on_ranks(4, StateOracle(tmp_path, reference, host_pages=8))


def test_heads_that_ranks_do_not_divide_are_whole(tmp_path: Path) -> None:
    """Two heads on four ranks: these share the inputs of convolutions alone."""
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16}
    settings = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    settings |= {"linear_value_head_dim": 32, "num_key_value_heads": 4, **heads}
    oracle = StateOracle(tmp_path, save_reference(tmp_path, "OlmoHybridForCausalLM", **settings), host_pages=8)
    inputs, kept = 4 * (2 * 2 * 16 + 2 * 32), 2 * 16 * 32

    def run(ranks: Ranks) -> int:
        own = copy.copy(oracle)
        own.worker = Worker(own.config, ranks)
        assert_keeps_states(own)
        return own.worker._served.states.pool[0].nbytes

    assert run_ranks(4, run) == [4 * (inputs // 4 + kept)] * 4


@pytest.mark.parametrize(("heads", "groups", "size"), [(12, 12, 3), (12, 4, 2), (12, 3, 4), (6, 2, 3), (8, 1, 4)])
def test_each_rank_has_the_groups_of_its_heads(heads: int, groups: int, size: int) -> None:
    vectors = torch.arange(2.0 * groups).view(2, groups, 1)
    expected = vectors.repeat_interleave(heads // groups, 1).chunk(size, 1)
    for number, each in enumerate(expected):
        ranks = Two()
        ranks.rank, ranks.size = number, size
        own = shared_states._own(vectors, 1, heads, ranks)
        assert torch.equal(own.repeat_interleave(heads // size // own.shape[1], 1), each)


def test_a_state_that_is_not_exact_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank takes the first heads for its own."""
    save_reference(tmp_path, STATEFUL["bamba"][0], **STATEFUL["bamba"][1])
    monkeypatch.setattr(shared_states, "_own", lambda vectors, place, count, ranks: vectors.narrow(place, 0, 1))
    config = read_model(WorkerConfig(tmp_path, "model", cache_dir=tmp_path)).config
    assert config.state_of(Two()) == config.state
    assert "each rank keeps whole states" in config.code
    assert "one rank only" not in config.code


def host_bytes(worker: Worker) -> int:
    """Memory of the host's room for states."""
    return worker._served.host_states._room._pieces.nbytes


class Two(SingleRank):
    """The first of two ranks, without the other."""

    size = 2


def test_a_style_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pie_inference.models.borrowed.filling import split

    save_reference(tmp_path, SHARED["olmo3"][0], **SHARED["olmo3"][1])
    monkeypatch.setattr(split, "WHOLE", split.WHOLE - {"embedding_rowwise"})
    config = WorkerConfig(tmp_path, "model", cache_dir=tmp_path, pages=64, embeds=512)
    reason = "one rank only: transformers' plan says 'embedding_rowwise' for model.embed_tokens, which Pie does"
    assert reason in read_model(config).config.code
    with pytest.raises(ConfigError, match=f"--tensor-parallel: Olmo3ForCausalLM .* {reason}.*; leave"):
        Worker(config, Two())


def test_a_split_that_gives_other_numbers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody adds up what the ranks find."""
    from pie_inference.models.borrowed.filling import split

    save_reference(tmp_path, SHARED["qwen2 moe"][0], **SHARED["qwen2 moe"][1])
    monkeypatch.setattr(split.Splits, "add_up_experts", lambda _: None)
    code = read_model(WorkerConfig(tmp_path, "model", cache_dir=tmp_path)).config.code
    assert "one rank only: split in two, the logits" in code


@pytest.mark.parametrize("model", [SHARED["olmo3"], STATEFUL["lfm2"]])
def test_heads_that_cannot_be_shared_are_named(model: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    architecture, settings = model
    save_reference(tmp_path, architecture, **settings | {"num_key_value_heads": 1})
    with pytest.raises(CheckpointError, match="1 key-value heads cannot be split over 2 ranks"):
        Worker(WorkerConfig(tmp_path, "model", pages=64, embeds=512), Two())
    assert json.loads((tmp_path / "config.json").read_text())["num_key_value_heads"] == 1
    assert torch.get_default_dtype() == torch.float32
