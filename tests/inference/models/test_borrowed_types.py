"""Every causal type of transformers runs over pages, exactly, or is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pie_inference.adapters.files import FILE, common_name
from pie_inference.adapters.peft_config import CONFIG_FILE
from pie_inference.errors import CheckpointError
from pie_inference.loading.weight_sizes import TOWERS
from pie_inference.models.borrowed.config import BorrowedConfig, read_borrowed, version
from pie_inference.protocol import LoadAdapter
from testing.worker_batches import Extend, Keys
from tests.helpers.borrowed import (
    REFUSED,
    SEEING,
    SERVED,
    SETTINGS,
    TESTED,
    WITHOUT_GRAPHS,
    WITHOUT_PLAN,
    save_small,
)
from tests.helpers.oracle import VOCAB, Oracle, assert_close, random_tokens
from tests.helpers.states import StateOracle
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT

TYPES = [(kind, "") for kind in SERVED] + [(kind, reason) for reason, kinds in REFUSED.items() for kind in kinds]


@pytest.mark.parametrize("told", corpus(TYPES, lambda each: each[1]), ids=lambda each: each[0])
def test_a_type_is_exact_or_refused(told: tuple[str, str]) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, reason = told
    raw = CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict()
    if not reason:
        found = read_borrowed(raw, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], None)
        assert_told(kind, found)
        return
    with pytest.raises(CheckpointError, match=reason):
        read_borrowed(raw, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], None)


@pytest.mark.parametrize("kind", corpus(SEEING, lambda each: True))
def test_the_part_of_a_type_that_makes_text_is_exact(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    from pie_inference.models.borrowed.code import SEEING as CLASSES

    found = read_borrowed(CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict(), CLASSES[kind], None)
    assert_told(kind, found)


def assert_told(kind: str, found: BorrowedConfig) -> None:
    """It is exact, and ranks and graphs serve it as the documentation says."""
    assert found.difference < (5e-4 if found.state else 1e-4)
    reason = "keep a state" if found.state else "has no plan" if kind in WITHOUT_PLAN else ""
    assert reason in found.survey.one_rank
    assert bool(reason) == bool(found.survey.one_rank)
    reasons = [why for why, kinds in WITHOUT_GRAPHS.items() if kind in kinds]
    reason = "with a state" if found.state else next(iter(reasons), "")
    assert reason in found.survey.no_graphs
    assert bool(reason) == bool(found.survey.no_graphs)


GRAPHLESS = [kind for kinds in WITHOUT_GRAPHS.values() for kind in kinds]


@pytest.mark.parametrize("kind", corpus([*SEEING, "phi4_multimodal"], lambda kind: kind != "phi4_multimodal"))
def test_sizes_count_the_part_that_makes_text(kind: str) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from pie_inference.models.borrowed import code, parts

    raw = CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict()
    config = code.read(raw, code.SEEING.get(kind) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    with torch.device("meta"):
        model = code.class_of(config)._from_config(config)
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    served = {id(tensor) for tensor in parts.text_part(model).state_dict(keep_vars=True).values()}
    counted = {tensor for tensor, name in names.items() if not any(part in name for part in TOWERS)}
    assert served & names.keys() == counted


def test_every_type_is_told() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    told = (ROOT / "docs" / "models.md").read_text()
    listed = told.split("run by their own code):")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert listed.split(", ") == SERVED
    seeing = told.split("the part that makes text is exact, too:")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert seeing.split(", ") == SEEING
    for kinds, mark in ((WITHOUT_PLAN, "neither a plan nor such names:"), (GRAPHLESS, "for other reasons:")):
        listed = " ".join(told.split(mark)[1].split(".\n")[0].split())
        assert sorted(listed.split(", ")) == sorted(kinds)
    known = {kind for kind, _ in TYPES} | {"gemma4_assistant"}  # whose default configuration cannot be made
    assert version() != TESTED or set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == known


OF_TEXT = [kind for kind in SERVED if kind not in SEEING]


@pytest.mark.parametrize("kind", corpus(OF_TEXT, lambda kind: kind if kind in ("gpt2", "qwen3") else ""))
def test_masks_hidden_tokens_and_adapters(kind: str, tmp_path: Path) -> None:
    oracle, tokens = StateOracle(tmp_path, save_small(kind, tmp_path), model_code="transformers"), random_tokens(20, 3)
    if not oracle.has_states:  # such a model takes no masks
        shown = np.random.default_rng(0).random((5, 7)) < 0.6
        shown[:, 2:] = np.tril(shown[:, 2:]) | np.eye(5, dtype=np.bool_)
        assert_close(*masked(oracle, tokens[:8], shown, range(8) if kind == "opt" else None))
    if put_adapter(oracle, tmp_path / "adapter"):
        [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB, adapters=[1])
        assert_close(result, oracle.expected(tokens))


def masked(
    oracle: Oracle, tokens: list[int], shown: np.ndarray, positions: range | None
) -> tuple[np.ndarray, np.ndarray]:
    """What is found and what is expected for eight tokens, of which the second is hidden once three have run, and the
    others see what is `shown`. That is less than a window: the reference takes a mask in its place."""
    driver, keys = oracle.driver(), Keys()
    [first] = driver.logprobs(Extend(keys, tokens[:3]), vocab_size=VOCAB)
    del keys.slots[1]
    [second] = driver.logprobs(Extend(keys, tokens[3:], shown), vocab_size=VOCAB)
    visible = np.tri(8, dtype=np.bool_)
    visible[3:] = np.insert(shown, 1, False, axis=1)
    return np.concatenate([first, second]), oracle.expected(tokens, visible, positions)


def put_adapter(oracle: Oracle, folder: Path) -> bool:
    """Loads an adapter of all layers that take one, by number 1, and adds it to the reference. Whether there are any:
    some code multiplies by other modules than linear layers."""
    taken = oracle.worker._served.adapters.layers.shapes()
    generator, tensors, named = torch.Generator().manual_seed(0), {}, list[str]()
    for name, module in oracle.reference.named_modules():
        if common_name(name) in taken and isinstance(module, torch.nn.Linear):
            down = torch.randn(4, module.in_features, generator=generator) * module.in_features**-0.5
            up = torch.randn(module.out_features, 4, generator=generator) / 4
            named.append(name)
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
            module.weight.data += up @ down
    assert len(named) == len(taken)
    if named:
        folder.mkdir()
        save_file(tensors, folder / FILE)
        given = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": named, "bias": "none"}
        (folder / CONFIG_FILE).write_text(json.dumps(given))
        assert not oracle.worker.load_adapter(LoadAdapter(1, str(folder))).error
    return bool(named)
