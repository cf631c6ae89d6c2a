"""Models whose layers keep a state equal transformers' own models on random checkpoints that transformers wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import SingleRank, run_ranks
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.inspection import measure as measuring
from pie_inference.inspection.checkup import check_up
from pie_inference.inspection.rates import Rates
from pie_inference.models.families import qwen3_5
from pie_inference.models.registry import read_architecture
from pie_inference.protocol import LoadAdapter, RunWave, SwapOut
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.families import save_reference
from tests.helpers.oracle import (
    VOCAB,
    Oracle,
    assert_close,
    assert_decodes,
    assert_ragged_batch_equals,
    load_reference,
    log_probabilities,
    random_tokens,
)
from tests.helpers.scheduling import World, greedy
from tests.helpers.states import (
    StateOracle,
    assert_goes_on_from_the_host,
    assert_goes_on_within_drafts,
    in_first_pages,
)
from tests.inference.adapters.test_peft import PROMPT, save_adapter
from tests.inference.models.test_ranks import run_rank

DENSE, DENSE_WITH_IMAGES = "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"
MOE, NEXT = "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM"
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
SETTINGS: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": [f"{kind}_attention" for kind in ("linear", "full", "linear", "linear", "full")],
}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": (DENSE, SETTINGS),
    "qwen3.5 moe": (MOE, SETTINGS | EXPERTS),
    "qwen3-next": (NEXT, SETTINGS | EXPERTS | {"mlp_only_layers": [2], "num_hidden_layers": 5}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StateOracle:
    architecture, settings = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    return StateOracle(folder, save_reference(folder, architecture, **settings), host_pages=8)


def test_prefill_and_decode(oracle: StateOracle) -> None:
    assert_decodes(oracle)


def test_ragged_batches(oracle: StateOracle) -> None:
    assert_ragged_batch_equals(oracle, before=[0, 0, 3, 80, 20, 25, 33], new=[70, 5, 1, 1, 6, 1, 2])


def test_states_behind_each_row_and_forks_of_them(oracle: StateOracle) -> None:
    assert_goes_on_within_drafts(oracle)


def test_states_go_to_the_host_with_their_pages(oracle: StateOracle) -> None:
    assert_goes_on_from_the_host(oracle)


def test_a_swap_without_states_fails_alone(oracle: StateOracle) -> None:
    """And one with a state that does not exist."""
    pages = np.array([1, 2, 3], np.int32)
    wrong = np.array([4, 1 << 20], np.int32)
    told = [
        oracle.worker.run(RunWave(1, "model", (batch,))).failures
        for batch in (SwapOut(pages, pages), SwapOut(pages, pages, np.array([0, 1, 1, 2]), wrong, pages[:2] - 1))
    ]
    assert [[failure.command for failure in failures] for failures in told] == [[0, 1, 2], [2]]
    assert "a swap must name those that hang on its pages" in told[0][0].message
    assert "state slot 1048576 does not exist" in told[1][0].message


def test_bfloat16_is_as_near_to_float32_as_the_reference_is(oracle: StateOracle) -> None:
    """Within a fifth."""
    reference = load_reference(oracle.folder, torch.bfloat16)
    rounded = StateOracle(oracle.folder, oracle.reference, dtype="bfloat16")
    ours, theirs = [], []
    for tokens in (random_tokens(400, seed) for seed in (8, 9, 10)):
        truth = oracle.expected(tokens)
        [result] = rounded.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
        ours.append(np.square(result - truth).mean(-1))
        theirs.append(np.square(log_probabilities(reference, tokens) - truth).mean(-1))
    assert np.median(ours) < 1.2**2 * np.median(theirs)


def test_a_state_is_the_same_number_however_a_text_is_cut(oracle: StateOracle) -> None:
    """By plain torch in float64, too: as near as rounding allows."""
    exact, tokens = StateOracle(oracle.folder, oracle.reference, dtype="float64"), random_tokens(60)
    driver = exact.driver()
    whole, parts = Keys(), Keys()
    driver.logprobs(Extend(whole, tokens), vocab_size=VOCAB)
    for part in (tokens[:7], tokens[7:48], tokens[48:]):
        driver.logprobs(Extend(parts, part), vocab_size=VOCAB)
    pool = exact.worker._served.states.pool
    one, other = (pool[keys.slots[0] // 16] for keys in (whole, parts))
    assert one.dtype == torch.float64
    assert (one - other).abs().max() < 1e-12 * one.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_compute_what_one_does(name: str, tmp_path: Path) -> None:
    architecture, settings = FAMILIES[name]
    save_reference(tmp_path, architecture, **settings)
    tokens = torch.arange(60) * 7 % VOCAB
    _, batch = Driver(lambda wave: pytest.fail("not run"), "model").forward_batch([Extend(Keys(), tokens.tolist())])
    alone = run_rank(tmp_path, SingleRank(), tokens, batch)
    for together in run_ranks(2, lambda ranks: run_rank(tmp_path, ranks, tokens, batch)):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=5e-4)


def test_the_text_model_of_a_checkpoint_with_images(tmp_path: Path) -> None:
    reference = save_reference(tmp_path, DENSE, **SETTINGS)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed | {"model.visual.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    config = {"architectures": [DENSE_WITH_IMAGES], "vision_config": {}}
    config["text_config"] = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = check_up(WorkerConfig(tmp_path, "model")).shape
    assert told is not None
    assert told.parameters == sum(tensor.numel() for tensor in tensors.values())
    oracle, tokens = StateOracle(tmp_path, reference), random_tokens(50, 9)
    [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


def test_experts_that_stand_in_two_tensors(tmp_path: Path) -> None:
    """Published checkpoints of Qwen3.5 have them so."""
    reference = save_reference(tmp_path, MOE, **SETTINGS, **EXPERTS)
    tensors = load_file(tmp_path / "model.safetensors")
    stacked: dict[str, torch.Tensor] = {}
    for layer in range(5):
        prefix = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors.pop(f"{prefix}.{n}.{name}_proj.weight") for n in range(4)])
            for name in ("gate", "up", "down")
        )
        stacked |= {f"{prefix}.gate_up_proj": torch.cat((gate, up), 1), f"{prefix}.down_proj": down}
    save_file(
        {name: tensor.contiguous() for name, tensor in (tensors | stacked).items()}, tmp_path / "model.safetensors"
    )
    oracle, tokens = StateOracle(tmp_path, reference), random_tokens(50, 9)
    [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    assert_close(result, oracle.expected(tokens))


@pytest.mark.parametrize("quantization", ["int8", "int4-32"])
def test_quantized_layers_leave_gates_and_convolutions_exact(quantization: str, oracle: StateOracle) -> None:
    rounded = StateOracle(oracle.folder, oracle.reference, dtype="bfloat16", quantization=quantization)
    tokens = random_tokens(60, 4)
    [result] = rounded.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB)
    difference = np.abs(result - oracle.expected(tokens)).mean()
    assert difference < (0.5 if quantization == "int8" else 1.5)


def test_the_number_of_states_is_an_option(tmp_path: Path) -> None:
    oracle = StateOracle(tmp_path, save_reference(tmp_path, DENSE, **SETTINGS), states=5, host_pages=100)
    about = oracle.worker.describe()[0]
    numbers = 3 * (3 * 160 + 4 * 16 * 24)
    assert (about.num_states, about.state_bytes) == (5, 4 * numbers)
    assert oracle.worker._served.states.pool.nbytes == 5 * about.state_bytes
    assert about.num_host_states == 2  # of 100 pages, where the device has 5 for 256
    told = check_up(WorkerConfig(tmp_path, "model", states=5, pages=256, host_pages=100, dtype="float32")).choice
    assert told is not None
    assert (told.host_pages, told.host_states) == (100, 2)
    assert (told.num_states, told.state_bytes) == (5, about.state_bytes)


def test_a_model_without_states_takes_no_option_for_them(tmp_path: Path) -> None:
    save_reference(tmp_path, "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="--states: LlamaForCausalLM keeps keys and values only"):
        Oracle(tmp_path, torch.nn.Identity(), states=5)


@pytest.mark.parametrize("missing", ["state_reads", "state_writes"])
def test_a_forward_without_slots_fails_alone(missing: str, oracle: StateOracle) -> None:
    _, batch = oracle.driver().forward_batch([Extend(Keys(), [1, 2, 3])])
    done = oracle.worker.run(RunWave(1, "model", (msgspec.structs.replace(in_first_pages(batch), **{missing: None}),)))
    assert "must name the slots of states" in done.failures[0].message


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning", "ignore::UserWarning:peft")
@pytest.mark.parametrize("name", FAMILIES)
def test_gates_of_states_and_of_shared_experts_take_adapters(name: str, tmp_path: Path) -> None:
    """PEFT adapts them, as all linear layers."""
    architecture, settings = FAMILIES[name]
    reference = save_reference(tmp_path / "model", architecture, **settings)
    gates = ["in_proj_ba", "in_proj_a", "in_proj_b", "shared_expert_gate", "q_proj"]
    expected = save_adapter(reference, tmp_path / "adapter", {"r": 4, "target_modules": gates})
    oracle = StateOracle(tmp_path / "model", reference)
    assert oracle.worker.load_adapter(LoadAdapter(1, str(tmp_path / "adapter"))).error is None
    bare, found = oracle.driver().logprobs(*(Extend(Keys(), PROMPT) for _ in "ab"), vocab_size=VOCAB, adapters=[-1, 1])
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - bare).max() > 0.1


def config_json(**more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    return {"architectures": [DENSE], "vocab_size": 272, "num_hidden_layers": 8, **sizes, **more}


def test_every_fourth_layer_has_attention_by_default() -> None:
    config = read_architecture(config_json())
    assert isinstance(config, qwen3_5.Qwen35Config)
    assert [layer for layer, attends in enumerate(config.attends) if attends] == [3, 7]
    assert len(config.attention) == 2
    assert config.state is not None
    assert (config.state.layers, config.state.numbers) == (6, 3 * 8192 + 32 * 128 * 128)
    assert config.rope[0].dim == 64
    assert "cannot be moved" in config.fixed_positions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 8 layers"),
        ({"layer_types": ["mamba"] * 8}, "layer type 'mamba' is not supported"),
        ({"layer_types": ["linear_attention"] * 8}, "no layer with attention"),
        ({"linear_num_value_heads": 33}, "linear_num_value_heads 33 is no multiple of linear_num_key_heads 16"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be a whole number from 2"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_architecture(config_json(**wrong))


def test_what_transformers_does_not_serve_either_is_refused_by_the_family() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CheckpointError, match="hidden_act 'gelu_pytorch_tanh' is not supported, only silu"):
        read_architecture(config_json(hidden_act="gelu_pytorch_tanh"))


def test_the_control_layer_names_the_slots_of_texts_and_forks(oracle: StateOracle) -> None:
    world = World(model=oracle.worker)
    inferlet, size = world.open(3, 80), world.description.page_size
    text, more = random_tokens(2 * size + 5, 11), random_tokens(4, 12)
    inferlet.embed(0, len(text), tokens=text)
    inferlet.forward(0, len(text))
    copy = inferlet.call("alloc", 1, "kvpage", 1)
    last = inferlet.pages + 2
    inferlet.call("copy_kvpage", 1, [last * size, 5], [copy * size, 5])
    answers = {}
    for page, tokens in ((copy, more[:2]), (last, more[2:])):
        for n, token in enumerate(tokens):
            pages, at = [inferlet.pages, 2, page, 1], inferlet.embeds + 70
            step = [token], [len(text) + n], [at, 1], pages, pages, at + 1, greedy()
            answers[inferlet.call("forward_with_sampling", 1, *step)] = text + tokens[: n + 1]
    world.drain()
    for future, whole in answers.items():
        assert inferlet.token(future) == int(oracle.expected(whole)[-1].argmax())


def test_runs_whose_states_a_failed_batch_has_changed_fail(
    oracle: StateOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is short behind the first layers of a batch: texts that go on in their own slots are lost, others run one
    by one."""
    driver, own, new = oracle.driver(), Keys(), Keys()
    tokens, other = random_tokens(20), random_tokens(7, seed=1)
    driver.logprobs(Extend(own, tokens), vocab_size=VOCAB)
    served = oracle.worker._served
    forward, calls = served.model.forward, list[int]()

    def short(hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(len(hidden))
        found = forward(hidden, *rest)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("tried to allocate 20 GiB")
        return found

    monkeypatch.setattr(served.model, "forward", short)
    embed, batch = driver.forward_batch([Extend(own, [9]), Extend(new, other)])
    done = oracle.worker.run(RunWave(1, "model", (embed, in_first_pages(batch))))
    assert calls == [8, 7]
    assert [failure.command for failure in done.failures] == [0]
    assert "tried to allocate 20 GiB; the text's state was changed meanwhile" in done.failures[0].message
    monkeypatch.undo()
    [found] = driver.logprobs(Extend(new, [5]), vocab_size=VOCAB)
    assert_close(found, oracle.expected([*other, 5])[-1:])


def test_its_speed_is_measured(oracle: StateOracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many texts as there are states for."""
    monkeypatch.setattr(measuring, "measure_rates", lambda *_, **__: Rates(1e9, 1e9))
    found = measuring.measure(replace(oracle.config, states=2), sequences=(1, 8), budget=0.001)
    assert [(speed.work, speed.sequences) for speed in found.speeds] == [("prefill", 1), ("decode", 1), ("decode", 2)]
