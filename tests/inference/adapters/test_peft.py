"""Adapters that PEFT writes give the logits that PEFT gives, alone and beside others in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.protocol import AdapterLoaded, LoadAdapter
from pie_inference.serving.worker import Worker
from testing.worker_batches import Driver, Extend, Keys
from tests.helpers.families import FAMILIES, save_reference
from tests.helpers.late import Late

peft = Late("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning", "ignore::UserWarning:peft")

VOCAB = 272
PROMPT = [12, 200, 7, 91, 30, 4, 77]
OPTIONS: dict[str, Any] = {"pages": 64, "host_pages": 8, "embeds": 1024, "dtype": "float32", "threads": 1}
QKV = ["q_proj", "k_proj", "v_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 6, "target_modules": [*QKV, "o_proj"]},
    "query and value": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]},
    "up": {"r": 5, "target_modules": ["up_proj"]},
    "all": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "stabilized": {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": ["down_proj", "gate_proj"]},
    "expression": {"r": 2, "target_modules": r".*\.layers\.1\..*(q|down)_proj"},
    "excluded": {"r": 2, "target_modules": QKV, "exclude_modules": ["k_proj"]},
    "excluded by expression": {"r": 2, "target_modules": QKV, "exclude_modules": r".*\.0\..*k_proj"},
    "one layer": {"r": 2, "target_modules": QKV, "layers_to_transform": [1]},
    "one layer by name": {"r": 2, "target_modules": QKV, "layers_to_transform": 0, "layers_pattern": "layers"},
    "patterns": {
        "r": 4,
        "target_modules": [*QKV, "o_proj", "down_proj"],
        "rank_pattern": {"q_proj": 7, r"layers\.1\.self_attn\.v_proj": 2},
        "alpha_pattern": {"o_proj": 3, r"^model.layers.0.mlp.down_proj": 20},
    },
}


def save_adapter(reference: Any, folder: Path, settings: dict[str, Any], seed: int = 0) -> np.ndarray:
    """Saves an adapter with random weights; log-probabilities that PEFT gives for PROMPT with it."""
    model = peft.get_peft_model(reference, peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)
        model.eval()
        expected = logprobs_of(model)
    model.save_pretrained(folder)
    model.unload()
    return expected


def logprobs_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].float()
    found: np.ndarray = logits.log_softmax(-1).numpy()
    return found


def run(driver: Driver, adapters: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Log-probabilities [tokens, VOCAB] of prompts in one batch, each with its adapter."""
    return driver.logprobs(*(Extend(Keys(), prompt) for prompt in prompts), vocab_size=VOCAB, adapters=adapters)


def load(worker: Worker, number: int, folder: Path) -> AdapterLoaded:
    answer = worker.load_adapter(LoadAdapter(number, str(folder)))
    assert answer.error is None, answer.error
    return answer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A Llama in `model`, and adapters beside it, with what PEFT gives for each; "": without one."""
    folder = tmp_path_factory.mktemp("adapters")
    reference = save_reference(folder / "model", "LlamaForCausalLM")
    expected = {"": logprobs_of(reference)}
    for seed, (name, settings) in enumerate(CONFIGS.items()):
        expected[name] = save_adapter(reference, folder / name, settings, seed)
    return folder, expected


@pytest.fixture(scope="module")
def worker(folders: tuple[Path, dict[str, np.ndarray]]) -> Iterator[Worker]:
    threads = torch.get_num_threads()
    worker = Worker(WorkerConfig(folders[0] / "model", "model", **OPTIONS))
    for number, name in enumerate(CONFIGS):
        load(worker, number, folders[0] / name)
    yield worker
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_adapter_gives_the_logits_of_peft(
    name: str, worker: Worker, folders: tuple[Path, dict[str, np.ndarray]]
) -> None:
    [found] = run(Driver(worker.run, "model"), [list(CONFIGS).index(name)], [PROMPT])
    np.testing.assert_allclose(found, folders[1][name], atol=1e-4)
    assert np.abs(found - folders[1][""]).max() > 0.1


def test_a_batch_mixes_adapters(worker: Worker, folders: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Also rows without one, the same adapter apart in the batch, and sequences of one row."""
    names = ["all", "", "attention", "", "all", "up", "stabilized", "attention", "patterns"]
    numbers = [list(CONFIGS).index(name) if name else -1 for name in names]
    driver = Driver(worker.run, "model")
    found = run(driver, numbers, [PROMPT] * len(names))
    for name, own in zip(names, found, strict=True):
        np.testing.assert_allclose(own, folders[1][name], atol=1e-4)
    for own, name in zip(run(driver, numbers, [PROMPT[:1]] * len(names)), names, strict=True):
        np.testing.assert_allclose(own, folders[1][name][:1], atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_sequence_in_steps_equals_a_whole_one(
    seed: int, worker: Worker, folders: tuple[Path, dict[str, np.ndarray]]
) -> None:
    """Sequences with adapters at random are split at random between batches, in which others stand beside them."""
    choice = np.random.default_rng(seed)
    names = ["", *CONFIGS]
    chosen = [names[choice.integers(len(names))] for _ in range(6)]
    driver = Driver(worker.run, "model")
    keys, done = [Keys() for _ in chosen], [0] * len(chosen)
    while min(done) < len(PROMPT):
        open_ = [n for n in range(len(chosen)) if done[n] < len(PROMPT) and choice.random() < 0.7]
        if not open_:
            continue
        parts = {n: int(choice.integers(1, len(PROMPT) - done[n] + 1)) for n in choice.permutation(open_).tolist()}
        extends = [Extend(keys[n], PROMPT[done[n] : done[n] + count]) for n, count in parts.items()]
        numbers = [list(CONFIGS).index(chosen[n]) if chosen[n] else -1 for n in parts]
        results = driver.logprobs(*extends, vocab_size=VOCAB, adapters=numbers)
        for (n, count), own in zip(parts.items(), results, strict=True):
            np.testing.assert_allclose(own, folders[1][chosen[n]][done[n] : done[n] + count], atol=1e-4)
            done[n] += count


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "granite", "olmo2", "phi3", "qwen2", "qwen3", "mixtral"])
def test_families(name: str, tmp_path: Path) -> None:
    """All that takes adapters, of each kind of model; beside experts, attention."""
    targets = [*QKV, "o_proj"] if name == "mixtral" else "all-linear"
    reference = save_reference(tmp_path / "model", FAMILIES[name][0], **FAMILIES[name][1])
    expected = save_adapter(reference, tmp_path / "adapter", {"r": 4, "target_modules": targets})
    worker = Worker(WorkerConfig(tmp_path / "model", "model", **OPTIONS))
    load(worker, 3, tmp_path / "adapter")
    [found] = run(Driver(worker.run, "model"), [3], [PROMPT])
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int8"},
        {"quantization": "int4-32"},
        {"dtype": "bfloat16"},
        {"kernels": "torch", "attention": "torch", "quantization": "int8"},
    ],
    ids=str,
)
def test_an_adapter_stands_beside_other_forms_of_weights(
    settings: dict[str, Any], folders: tuple[Path, dict[str, np.ndarray]]
) -> None:
    """The adapter moves logits by as much as it does beside whole weights."""
    worker = Worker(WorkerConfig(folders[0] / "model", "model", **{**OPTIONS, **settings}))
    load(worker, 0, folders[0] / "all")
    bare, found = run(Driver(worker.run, "model"), [-1, 0], [PROMPT, PROMPT])
    expected = folders[1]
    error, without = np.abs(found - expected["all"]), np.abs(bare - expected["all"])
    assert error.mean() < without.mean() / 4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "modules_to_save": (
        {"modules_to_save": ["embed_tokens"]},
        "modules_to_save is set: it has whole layers of its own",
    ),
    "dora": ({"use_dora": True}, "use_dora is set: DoRA divides by norms"),
    "bias": ({"bias": "lora_only"}, "bias is 'lora_only'"),
    "lora_bias": ({"lora_bias": True}, "lora_bias is set"),
    "head": ({"target_modules": ["lm_head", "q_proj"]}, "belongs to no linear layer that takes adapters"),
    "embeddings": ({"target_modules": ["embed_tokens"]}, "belongs to no linear layer that takes adapters"),
    "pissa": ({"init_lora_weights": "pissa"}, "changes the base model's weights"),
    "olora": ({"init_lora_weights": "OLoRA"}, "changes the base model's weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_by_name(
    name: str, tmp_path: Path, worker: Worker, folders: tuple[Path, dict[str, np.ndarray]]
) -> None:
    import transformers

    settings, message = REFUSED[name]
    model = transformers.LlamaForCausalLM.from_pretrained(folders[0] / "model")
    peft.get_peft_model(model, peft.LoraConfig(**{"target_modules": ["q_proj"], **settings})).save_pretrained(tmp_path)
    answer = worker.load_adapter(LoadAdapter(99, str(tmp_path)))
    assert answer.error is not None
    assert message in answer.error
