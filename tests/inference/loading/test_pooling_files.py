"""How folders in the form of sentence-transformers say how states are pooled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pie_inference.errors import CheckpointError
from pie_inference.loading.pooling_files import read_pooling

TYPE = "sentence_transformers.models."


def write(
    folder: Path, modes: dict[str, object], kinds: tuple[str, ...] = ("Transformer", "Pooling", "Normalize")
) -> None:
    modules = [{"idx": n, "path": f"{n}_{kind}", "type": f"{TYPE}{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_the_way_is_read(modes: dict[str, object], pooling: str, tmp_path: Path) -> None:
    """As older and newer versions of sentence-transformers write it."""
    write(tmp_path, modes | {"include_prompt": True})
    assert read_pooling(tmp_path) == pooling


def test_a_model_that_was_not_made_for_embeddings_has_none(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == ""


@pytest.mark.parametrize(
    ("modes", "kinds", "message"),
    [
        ({"pooling_mode_cls_token": True}, ("Transformer", "Pooling"), "pooling by cls_token; supported: lasttoken or"),
        ({"pooling_mode": ["mean", "max"]}, ("Transformer", "Pooling"), "pooling by max, mean; supported"),
        ({}, ("Transformer", "Pooling"), "pooling by nothing"),
        ({}, ("Transformer", "Dense"), "module of type .*Dense' is not supported"),
        ({}, ("Transformer",), "there are 0 modules of type Pooling"),
    ],
)
def test_what_is_not_supported_is_named(
    modes: dict[str, object], kinds: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    write(tmp_path, modes, kinds)
    with pytest.raises(CheckpointError, match=message):
        read_pooling(tmp_path)


def test_modules_that_are_nested_too_deeply_are_told(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"modules.json: unreadable: its objects are nested too deeply"):
        read_pooling(tmp_path)
