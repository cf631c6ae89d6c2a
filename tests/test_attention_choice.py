"""Which attention backend serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pie_inference import config
from pie_inference.attention import choose
from pie_inference.attention.choose import CANDIDATES, Candidate, Wanted, choose_attention
from pie_inference.attention.interface import AttentionSpec
from pie_inference.errors import ConfigError
from pie_inference.kv_cache.pool import KvCache, KvShape


@pytest.fixture
def wanted() -> Wanted:
    cache = KvCache(KvShape(1, 2, 16, 8, torch.float32), 4, torch.device("cpu"))
    return Wanted(cache, 4, (AttentionSpec(scale=0.25),))


def test_the_options_name_the_candidates() -> None:
    assert set(config.ATTENTIONS) == {"auto", *CANDIDATES}


def test_auto_takes_the_first_that_can(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_candidate = CANDIDATES["torch"]
    elsewhere = replace(torch_candidate, devices=("cuda",))
    blocked = replace(torch_candidate, obstacle=lambda _: "it is broken")
    monkeypatch.setattr(choose, "CANDIDATES", {"a": elsewhere, "b": blocked, "torch": torch_candidate})
    assert type(choose_attention("auto", wanted)).__name__ == "TorchAttention"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"devices": ("cuda",)}, "it runs on cuda, not on cpu"), ({"obstacle": lambda _: "it is broken"}, "it is broken")],
)
def test_a_choice_that_cannot_serve_is_refused(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], reason: str
) -> None:
    candidate: Candidate = replace(CANDIDATES["torch"], **change)  # type: ignore[arg-type]
    monkeypatch.setattr(choose, "CANDIDATES", {"odd": candidate, **CANDIDATES})
    with pytest.raises(ConfigError, match=f"--attention odd: {reason}"):
        choose_attention("odd", wanted)
