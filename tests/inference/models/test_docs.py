"""docs/adding-a-model.md and docs/models.md tell what is."""

from __future__ import annotations

import re

from pie_inference.models.registry import FAMILIES
from tests.helpers.families import FAMILIES as SMALL_MODELS
from tests.helpers.tree import ROOT
from tests.inference.models.test_state import FAMILIES as SMALL_MODELS_WITH_STATES


def test_the_example_is_the_file() -> None:
    text = (ROOT / "docs" / "adding-a-model.md").read_text()
    shown = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert shown
    for file, code in shown:
        assert (ROOT / file).read_text() == code


def test_every_file_that_is_named_exists() -> None:
    text = (ROOT / "docs" / "adding-a-model.md").read_text()
    for name in re.findall(r"`((?:models|layers|ops|tests)/[\w/]+\.py)`", text):
        assert (ROOT / name).exists() or (ROOT / "pie_inference" / name).exists(), name


def test_every_architecture_is_told_and_tested() -> None:
    told = re.findall(r"`(\w+For\w+)`", (ROOT / "docs" / "models.md").read_text())
    assert sorted(told) == sorted(FAMILIES)
    tested = {architecture for architecture, _ in (SMALL_MODELS | SMALL_MODELS_WITH_STATES).values()}
    seeing = {"Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"}  # tests/inference/vision
    text_alone = {f"{name}ForConditionalGeneration" for name in ("Gemma3", "Qwen3_5", "Qwen3_5Moe")}
    assert tested | seeing | text_alone == set(FAMILIES)
