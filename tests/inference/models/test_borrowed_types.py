"""Every causal type of transformers runs over pages, exactly, or is refused with its reason."""

from __future__ import annotations

import pytest

from pie_inference.errors import CheckpointError
from pie_inference.models.borrowed.config import read_borrowed, version
from tests.helpers.borrowed import REFUSED, SEEING, SERVED, SETTINGS, TESTED
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
        assert found.difference < (5e-4 if found.state else 1e-4)
        return
    with pytest.raises(CheckpointError, match=reason):
        read_borrowed(raw, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], None)


@pytest.mark.parametrize("kind", corpus(SEEING, lambda each: True))
def test_the_part_of_a_type_that_makes_text_is_exact(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    from pie_inference.models.borrowed.code import SEEING as CLASSES

    found = read_borrowed(CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict(), CLASSES[kind], None)
    assert found.difference < (5e-4 if found.state else 1e-4)


def test_every_type_is_told() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    told = (ROOT / "docs" / "models.md").read_text()
    listed = told.split("run by their own code):")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert listed.split(", ") == SERVED
    seeing = told.split("the part that makes text is exact, too:")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert seeing.split(", ") == SEEING
    known = {kind for kind, _ in TYPES} | {"gemma4_assistant"}  # whose default configuration cannot be made
    assert version() != TESTED or set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == known
