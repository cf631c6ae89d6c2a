"""Every causal type of transformers runs over pages, exactly, or is refused with its reason."""

from __future__ import annotations

import pytest
import torch

from pie_inference.errors import CheckpointError
from pie_inference.loading.weight_sizes import TOWERS
from pie_inference.models.borrowed.config import BorrowedConfig, read_borrowed, version
from tests.helpers.borrowed import (
    ONE_RANK,
    REFUSED,
    SEEING,
    SEEING_REFUSED,
    SERVED,
    SETTINGS,
    TESTED,
    WHOLE_STATES,
    WITH_STATE,
    WITHOUT_GRAPHS,
)
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
        assert bool(found.state) == (kind in WITH_STATE)
        numbers = [found.survey.state_numbers(ranks) for ranks in (1, 2)]
        assert numbers[0] == numbers[1] * (1 if kind in WHOLE_STATES else 2)
        assert ("each rank keeps whole states" in found.code) == (kind in WHOLE_STATES)
        return
    with pytest.raises(CheckpointError, match=reason):
        read_borrowed(raw, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], None)


@pytest.mark.parametrize("kind", corpus(SEEING, lambda each: True))
def test_the_part_of_a_type_that_makes_text_is_exact(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    from pie_inference.models.borrowed.code import SEEING as CLASSES

    found = read_borrowed(CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict(), CLASSES[kind], None)
    assert_told(kind, found)


REFUSALS = [(kind, reason) for reason, kinds in SEEING_REFUSED.items() for kind in kinds]


@pytest.mark.parametrize("told", corpus(REFUSALS, lambda each: each[1]), ids=lambda each: each[0])
def test_a_type_of_more_than_text_is_refused(told: tuple[str, str]) -> None:
    from transformers import CONFIG_MAPPING

    from pie_inference.models.borrowed.code import SEEING as CLASSES

    kind, reason = told
    with pytest.raises(CheckpointError, match=reason):
        read_borrowed(CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict(), CLASSES[kind], None)


def assert_told(kind: str, found: BorrowedConfig) -> None:
    """It is exact, and ranks and graphs serve it as the documentation says."""
    assert found.difference < (5e-4 if found.state else 1e-4)
    without_graphs = {"with a state": [kind] if found.state else [], **WITHOUT_GRAPHS}
    for known, said in ((ONE_RANK, found.survey.one_rank), (without_graphs, found.survey.no_graphs)):
        reason = next((why for why, kinds in known.items() if kind in kinds), "")
        assert reason in said
        assert bool(reason) == bool(said)


FOR_ONE_RANK = [kind for kinds in ONE_RANK.values() for kind in kinds]
GRAPHLESS = [kind for kinds in WITHOUT_GRAPHS.values() for kind in kinds]


@pytest.mark.parametrize("kind", corpus(SEEING, lambda kind: kind == "phi4_multimodal"))
def test_sizes_count_the_part_that_makes_text(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    from pie_inference.models.borrowed import code, parts

    raw = CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict()
    config = code.read(raw, code.SEEING[kind])
    with torch.device("meta"):
        model = code.class_of(config)._from_config(config)
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    served = {id(tensor) for tensor in parts.text_part(model).state_dict(keep_vars=True).values()}
    counted = {tensor for tensor, name in names.items() if not any(part in name for part in TOWERS)}
    assert served & names.keys() == counted


def test_every_type_is_told() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from pie_inference.models.borrowed.code import SEEING as CLASSES

    told = (ROOT / "docs" / "models.md").read_text()
    listed = told.split("run by their own code):")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert listed.split(", ") == SERVED
    seeing = told.split("the part that makes text is exact, too:")[1].split("\n\n")[1].rstrip(".").replace("\n", " ")
    assert seeing.split(", ") == SEEING
    refused = " ".join(told.split("Refused of them are")[1].split("\n\n")[0].split())
    assert all(kind in refused for kind, _ in REFUSALS)
    for kinds, mark in (
        (FOR_ONE_RANK, "on one rank only:"),
        (GRAPHLESS, "for other reasons:"),
        (WHOLE_STATES, "whole states:"),
    ):
        listed = " ".join(told.split(mark)[1].split(".\n")[0].split())
        assert sorted(listed.split(", ")) == sorted(kinds)
    known = {kind for kind, _ in TYPES} | {"gemma4_assistant"}  # whose default configuration cannot be made
    assert version() != TESTED or set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == known
    assert version() != TESTED or set(CLASSES) == {*SEEING, *(kind for kind, _ in REFUSALS)}
