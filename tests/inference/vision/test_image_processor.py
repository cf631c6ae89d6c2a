"""What a checkpoint says of its images is read, or refused by the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pie_inference.assembly.plan import make_plan, read_model
from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import SingleRank
from pie_inference.errors import CheckpointError
from pie_inference.models.image_processor import read_image_processor
from pie_inference.models.registry import read_architecture
from testing.vision_checkpoint import make_vision_checkpoint, processor_config


def write(folder: Path, **changes: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor_config(32, 64, True), **changes}))
    return folder


def test_a_processor_is_read(tmp_path: Path) -> None:
    read = read_image_processor(write(tmp_path, resample=3, do_image_splitting=False), 32)
    assert (read.longest_edge, read.split, read.resample) == (64, False, 3)
    assert read.mean == (0.5, 0.45, 0.4)


def test_one_within_the_file_of_transformers_5_is_read_too(tmp_path: Path) -> None:
    combined = {"processor_class": "SmolVLMProcessor", "image_processor": processor_config(32, 128, True)}
    (tmp_path / "processor_config.json").write_text(json.dumps(combined))
    assert read_image_processor(tmp_path, 32).longest_edge == 128


REFUSED: dict[str, Any] = {
    "do_resize": False,
    "do_normalize": False,
    "do_rescale": False,
    "max_image_size": {"longest_edge": 48},
    "resample": 17,
    "image_mean": [0.5, 0.5],
    "image_std": [0.5, 0.5, 0],
    "size": [64],
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_not_supported_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=rf"preprocessor_config\.json: {key}"):
        read_image_processor(write(tmp_path, **{key: REFUSED[key]}), 32)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = make_vision_checkpoint(tmp_path)
    (folder / "preprocessor_config.json").unlink()
    config = WorkerConfig(folder, "model")
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: there is no such file"):
        make_plan(config, read_model(config), SingleRank())


WRONG_MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "another language model": ({"text_config": {"model_type": "gemma"}}, "text_config: model_type 'gemma'"),
    "no language model": ({"text_config": None}, "'text_config' is missing"),
    "another activation": ({"vision_config": {"hidden_act": "relu"}}, "vision_config: hidden_act 'relu'"),
    "heads": ({"vision_config": {"num_attention_heads": 3}}, "hidden_size is not a multiple of num_attention_heads"),
    "shuffle": ({"scale_factor": 3}, "scale_factor 3 does not divide 4 patches of a side"),
    "image token": ({"image_token_id": 10**6}, "image_token_id 1000000 is outside of the vocabulary"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_models_that_differ_are_refused(tmp_path: Path, name: str) -> None:
    changes, message = WRONG_MODELS[name]
    config = json.loads((make_vision_checkpoint(tmp_path) / "config.json").read_text())
    changed = {key: {**config[key], **value} if isinstance(value, dict) else value for key, value in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        read_architecture({**config, **changed})


def test_a_layer_of_a_tile_counts_as_a_share_of_a_wave_at_most(tmp_path: Path) -> None:
    """So there is room for it beside those who decode."""
    few, many = (
        make_plan(config, read_model(config), SingleRank()).vision
        for config in (
            WorkerConfig(make_vision_checkpoint(tmp_path), "model", max_batch_tokens=tokens) for tokens in (4, 512)
        )
    )
    assert few is not None
    assert many is not None
    assert few.layer_tokens == 4 // 4
    assert few.layer_tokens < many.layer_tokens < 512 // 4
    assert few.layers == many.layers == 2
    assert many.tile_tokens == 2 * many.layer_tokens
