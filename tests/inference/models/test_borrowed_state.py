"""Models by transformers' code whose layers keep a state serve as transformers computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.protocol import (
    ForwardWithScores,
    ForwardWithScoresResult,
    GetLogprobs,
    GetLogprobsResult,
    LoadAdapter,
    RunWave,
)
from testing.worker_batches import Extend, Keys
from tests.helpers.adapters import PREFIX, make_adapter
from tests.helpers.borrowed import save_small
from tests.helpers.families import save_reference
from tests.helpers.oracle import (
    VOCAB,
    assert_close,
    assert_ragged_batch_equals,
    load_reference,
    log_probabilities,
    random_tokens,
)
from tests.helpers.states import (
    StateOracle,
    assert_goes_on_from_the_host,
    assert_goes_on_within_drafts,
    in_first_pages,
)
from tests.helpers.tiers import corpus

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": (
        "BambaForCausalLM",
        {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "head_dim": 16},
    ),
    "jamba": (
        "JambaForCausalLM",
        {"num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4}
        | {"num_experts": 4, "expert_layer_period": 3, "expert_layer_offset": 1},
    ),
    "lfm2": ("Lfm2ForCausalLM", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
    "mamba2": ("Mamba2ForCausalLM", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2}),
}


@pytest.fixture(scope="module", params=corpus(MODELS, lambda each: each == "jamba"))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StateOracle:
    return _model(tmp_path_factory.mktemp("model"), request.param, host_pages=8)


def test_batches_of_texts(oracle: StateOracle) -> None:
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 80, 20, 25, 33], new=[70, 1, 1, 1, 6, 1, 2])


def test_drafts(oracle: StateOracle) -> None:
    assert_goes_on_within_drafts(oracle)


def test_states_go_to_the_host_with_their_pages(oracle: StateOracle) -> None:
    assert_goes_on_from_the_host(oracle)


def test_parts_of_a_text_are_the_text(oracle: StateOracle) -> None:
    driver, tokens, keys = oracle.driver(), random_tokens(60, 7), Keys()
    parts = (tokens[:1], tokens[1:7], tokens[7:48], tokens[48:])
    found = [driver.logprobs(Extend(keys, part), vocab_size=VOCAB)[0] for part in parts]
    assert_close(np.concatenate(found), oracle.expected(tokens))


def test_scores_are_those_of_all_pieces_together(oracle: StateOracle) -> None:
    driver, texts = oracle.driver(), [random_tokens(count, count) for count in (30, 1, 9)]
    embed, forward = driver.forward_batch([Extend(Keys(), text) for text in texts])
    forward = in_first_pages(forward)
    found = driver.ask(ForwardWithScoresResult, embed, ForwardWithScores(**msgspec.structs.asdict(forward))).scores
    with torch.no_grad():
        outputs = [oracle.reference(torch.tensor([text]), output_attentions=True) for text in texts]
    layers = [getattr(output, "attentions", ()) for output in outputs]
    scores = [[each[0].sum(1).mean(0) for each in one if each is not None] for one in layers]
    expected = [
        torch.stack(one).mean(0) if one else torch.zeros(len(text)) for one, text in zip(scores, texts, strict=True)
    ]
    np.testing.assert_allclose(found, torch.cat(expected), atol=1e-4)


def test_a_batch_with_a_wrong_command_runs_no_piece(oracle: StateOracle) -> None:
    """Its commands run again one by one, with the states as they were."""
    driver, texts, keys = oracle.driver(), [random_tokens(20, seed) for seed in (1, 2)], [Keys(), Keys()]
    both = list(zip(keys, texts, strict=True))
    driver.logprobs(*(Extend(one, text[:10]) for one, text in both), vocab_size=VOCAB)
    embed, forward = driver.forward_batch([Extend(one, text[10:19]) for one, text in both])
    wrong = np.append(forward.out_embeds[:-1], 1 << 20).astype(np.int32)
    done = oracle.worker.run(
        RunWave(9, "model", (embed, in_first_pages(msgspec.structs.replace(forward, out_embeds=wrong))))
    )
    assert [failure.command for failure in done.failures] == [1]
    [result] = driver.logprobs(Extend(keys[0], texts[0][19:]), vocab_size=VOCAB)
    assert_close(result, oracle.expected(texts[0])[19:])


def test_adapters_go_with_their_pieces(tmp_path: Path) -> None:
    oracle = _model(tmp_path, "bamba")
    attends = {f"{PREFIX}.1.mamba.in_proj.lora_{part}.weight": None for part in "AB"}
    sizes = {"mamba.in_proj": (64, 776)}
    adapter = make_adapter(tmp_path / "adapter", modules=list(sizes), layers=3, sizes=sizes, tensors=attends)
    assert oracle.worker.load_adapter(LoadAdapter(0, str(adapter))).error is None
    driver, texts = oracle.driver(), [random_tokens(count, count) for count in (20, 9, 12)]

    def run(numbers: list[int], *texts: list[int]) -> list[np.ndarray]:
        embed, forward = driver.forward_batch([Extend(Keys(), text) for text in texts])
        rows = forward.out_embeds
        forward = msgspec.structs.replace(in_first_pages(forward), adapters=np.array(numbers, np.int32))
        vocab = np.tile(np.arange(VOCAB, dtype=np.int32), len(rows))
        score = GetLogprobs(rows, np.arange(len(rows) + 1, dtype=np.int32) * VOCAB, vocab)
        table = driver.ask(GetLogprobsResult, embed, forward, score).logprobs.reshape(-1, VOCAB)
        return np.split(table, np.cumsum([len(text) for text in texts])[:-1])

    together = run([0, -1, 0], *texts)
    for number, text, found in zip([0, -1, 0], texts, together, strict=True):
        assert_close(found, run([number], text)[0])
        assert (np.abs(found - oracle.expected(text)).max() > 0.01) == (number == 0)


@pytest.mark.parametrize("name", corpus(["mamba2", "bamba"], lambda _: "any"))  # last states of the first are float32
def test_bfloat16_is_as_near_to_float32_as_the_reference_is(name: str, tmp_path: Path) -> None:
    oracle = _model(tmp_path, name)
    reference = load_reference(oracle.folder, torch.bfloat16)
    rounded = StateOracle(oracle.folder, oracle.reference, dtype="bfloat16")
    ours, theirs = [], []
    for tokens in (random_tokens(100, seed) for seed in (8, 9, 10)):
        truth, keys, driver = oracle.expected(tokens), Keys(), rounded.driver()
        parts = [driver.logprobs(Extend(keys, part), vocab_size=VOCAB)[0] for part in (tokens[:80], tokens[80:])]
        ours.append(np.square(np.concatenate(parts) - truth).mean(-1))
        theirs.append(np.square(log_probabilities(reference, tokens) - truth).mean(-1))
    assert np.median(ours) < 1.2**2 * np.median(theirs)


def test_pools_are_sized_by_the_state(tmp_path: Path) -> None:
    oracle = _model(tmp_path, "lfm2", states=5)
    about = oracle.worker.describe()[0]
    assert (about.num_states, about.state_bytes) == (5, 4 * 2 * 64 * 3)
    assert oracle.worker._served.states.pool.nbytes == 5 * about.state_bytes
    assert "cannot be moved" in about.fixed_positions


def _model(folder: Path, name: str, **options: Any) -> StateOracle:
    architecture, config = MODELS[name]
    return StateOracle(folder, save_reference(folder, architecture, **config), **options)


def test_what_a_proof_runs_is_the_same_each_time(tmp_path: Path) -> None:
    """Or a proof, whose bound is narrow, could fail today and not tomorrow."""
    first, second = (save_small("mamba2", tmp_path) for _ in range(2))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
